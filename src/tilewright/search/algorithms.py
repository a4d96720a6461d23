"""Which algorithm computes a Func, where it has several: the one that costs least.

Layouts are not chosen yet, and depend on the algorithms; so operands count as laid out well.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf, prod
from typing import TypeAlias

from tilewright.cost.stream import stream_seconds
from tilewright.families.gemm.panel_tile import best_tile
from tilewright.families.gemm.recipe import Contraction, try_contraction
from tilewright.families.winograd.recipe import find_stages
from tilewright.families.winograd.space import best_stages_seconds
from tilewright.support.errors import UserError
from tilewright.target.target import Target
from tilewright.tir.digest import func_digest
from tilewright.tir.func import Alternative, Func, Module
from tilewright.tir.stmt import blocks

Allows: TypeAlias = Callable[[float], bool]  # is an error of this size allowed?


def choose_algorithms(module: Module, target: Target, allows: Allows) -> tuple[Module, dict[str, str]]:
    """The module without alternatives, each Func by the cheapest algorithm whose error is allowed; and the algorithms
    of those that do not compute what is written.
    """
    rankings: dict[str, list[int]] = {}  # Funcs that are equal but for their names have equal costs
    names: dict[str, str] = {}
    funcs: list[Func] = []
    for f in module.funcs:
        chosen = _chosen(f, target, allows, rankings)
        if chosen is not None:
            names[f.name] = chosen.name
        funcs.append(replace(f, alternatives=()) if chosen is None else _made(chosen))
    return replace(module, funcs=tuple(funcs)), names


def take_algorithm(module: Module, func: str, name: str, allows: Allows) -> Module:
    """The module with a Func by the algorithm of this name; UserError if it has none such, or its error is not
    allowed.
    """
    found = next((f for f in module.funcs if f.name == func), None)
    if found is None:
        raise UserError(f"the program has no Func {func}")
    chosen = next((a for a in found.alternatives if a.name == name), None)
    if chosen is None:
        known = ", ".join(a.name for a in found.alternatives) or "only what is written"
        raise UserError(f"{func} cannot be computed by {name!r}", hint=f"there is: {known}")
    error = chosen.error()
    if not allows(error):
        raise UserError(
            f"{name} adds an error of {error:.1e} to {func}, more than the accuracy allows",
            hint="compile with the accuracy that the trace was made with",
        )
    return module.with_func(_made(chosen))


def drop_alternatives(module: Module) -> Module:
    """The module in which nothing is left to choose."""
    return replace(module, funcs=tuple(replace(f, alternatives=()) for f in module.funcs))


def _made(chosen: Alternative) -> Func:
    """The Func by this algorithm, which says so, with the error that it adds."""
    func = chosen.make()
    return replace(func, algorithm=f"{func.algorithm}, error {chosen.error():.1e}")


def _chosen(func: Func, target: Target, allows: Allows, rankings: dict[str, list[int]]) -> Alternative | None:
    others = func.alternatives
    if not others or not allows(0.0):
        return None
    plain = replace(func, alternatives=())
    key = func_digest(plain)
    if key not in rankings:
        seconds = {n: algorithm_seconds(a.make(), target) for n, a in enumerate(others)}
        least = algorithm_seconds(plain, target)
        rankings[key] = sorted((n for n, t in seconds.items() if t < least), key=lambda n: seconds[n])
    return next((others[n] for n in rankings[key] if allows(others[n].error())), None)


def algorithm_seconds(func: Func, target: Target) -> float:
    """Of the contraction in `func` and of what is transformed for it, on one core."""
    reductions = [b for b in blocks(func.body) if b.is_reduction]
    c = try_contraction(reductions[0]) if len(reductions) == 1 else None
    if c is None:
        return inf
    stages = find_stages(func)
    return _direct_seconds(c, target) if stages is None else best_stages_seconds(func, stages, target)


def _direct_seconds(c: Contraction, target: Target) -> float:
    """The direct algorithm: tiles are of neighbours along the last row iterator."""
    rows = c.rows[-1].extent if c.rows else 1
    times = prod(it.extent for it in (*c.rows[:-1], *c.cols[:-1], *c.batch))
    weights = c.b.buffer.bytes
    return max(best_tile(c, rows, target).seconds * times, stream_seconds(weights, weights, target.machine))
