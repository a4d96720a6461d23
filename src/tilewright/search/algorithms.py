"""Which algorithm computes a Func, where it has several: the one that costs least.

Layouts are not chosen yet, and depend on the algorithms; so operands count as laid out well.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf, prod
from typing import TypeAlias

from tilewright.cost.machine import machine_of
from tilewright.cost.stream import stream_seconds
from tilewright.families.gemm.panel_tile import best_tile
from tilewright.families.gemm.recipe import Contraction, try_contraction
from tilewright.families.winograd.recipe import find_stages
from tilewright.families.winograd.space import stages_seconds
from tilewright.target.target import Target
from tilewright.tir.digest import digest
from tilewright.tir.func import Func, Module
from tilewright.tir.stmt import blocks

Allows: TypeAlias = Callable[[float], bool]  # is an error of this size allowed?


def choose_algorithms(module: Module, target: Target, allows: Allows) -> Module:
    """The module without alternatives: each Func by the cheapest algorithm whose error is allowed."""
    rankings: dict[str, list[int]] = {}  # Funcs that are equal but for their names have equal costs
    return replace(module, funcs=tuple(_chosen(f, target, allows, rankings) for f in module.funcs))


def _chosen(func: Func, target: Target, allows: Allows, rankings: dict[str, list[int]]) -> Func:
    plain, others = replace(func, alternatives=()), func.alternatives
    if not others or not allows(0.0):
        return plain
    made: dict[int, Func] = {}
    key = digest(plain)
    if key not in rankings:
        made = {n: a.make() for n, a in enumerate(others)}
        seconds = {n: algorithm_seconds(f, target) for n, f in made.items()}
        least = algorithm_seconds(plain, target)
        rankings[key] = sorted((n for n, t in seconds.items() if t < least), key=lambda n: seconds[n])
    for n in rankings[key]:
        error = others[n].error()
        if allows(error):
            found = made[n] if n in made else others[n].make()
            return replace(found, algorithm=f"{found.algorithm}, error {error:.1e}")
    return plain


def algorithm_seconds(func: Func, target: Target) -> float:
    """Of the contraction in `func` and of what is transformed for it, on one core."""
    reductions = [b for b in blocks(func.body) if b.is_reduction]
    c = try_contraction(reductions[0]) if len(reductions) == 1 else None
    if c is None:
        return inf
    stages = find_stages(func)
    return _product(c, target) if stages is None else stages_seconds(func, stages, target)


def _product(c: Contraction, target: Target) -> float:
    """A sum of products: tiles are of neighbours along the last row iterator."""
    rows = c.rows[-1].extent if c.rows else 1
    times = prod(it.extent for it in (*c.rows[:-1], *c.cols[:-1], *c.batch))
    weights = c.b.buffer.bytes
    return max(
        best_tile(c, rows, target).seconds * times, stream_seconds(weights, weights, machine_of(target))
    )
