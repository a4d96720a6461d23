"""Block bindings: do the loops around a block run its instances as they should?

The binding is *affine* if the loops run each point of the iterators' domain exactly once. A block that `compute_at` has
moved may run instances again, or leave some out that nobody reads; that is no problem as long as its reductions are
whole: between one init and the next, all points of the reduce domain run, each once. So the loops outside of
all those that feed reduce iterators may repeat a reduction, and others may not.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tilewright.ir.condition import conjuncts
from tilewright.ir.expr import (
    TRUE,
    Expr,
    Var,
    as_index,
    free_vars,
)
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.cover import Writer, filled
from tilewright.schedule.find import starts_at_zero
from tilewright.schedule.sites import Site, extents
from tilewright.schedule.verdict import HOLDS, Verdict, fails, unknown
from tilewright.tir.analysis.bijection import Image, Unrecognised, image
from tilewright.tir.analysis.points import (
    MAX_POINTS,
    Counted,
    count_instances,
    try_grid,
    values,
    where_all_hold,
)
from tilewright.tir.analysis.regions import Access, Span, contains
from tilewright.tir.stmt import Block, IterKind


class Binding(NamedTuple):
    affine: Verdict
    problem: str = ""  # what makes the program wrong; empty if nothing does
    gap: str = ""  # … unless other blocks do the rest: the parts of a partitioned loop


def binding(site: Site) -> Binding:
    block = site.block
    own = extents(site.own_loops)
    around = {v: n for v, n in extents(site.loops).items() if v not in own}
    ranges = {v: Interval(0, n - 1) for v, n in (own | around).items()}
    for b in site.outer:
        ranges |= {it.var: Interval(0, it.extent - 1) for it in b.iters}
    simplify = Simplifier(ranges)
    domain = [it.extent for it in block.iters]
    conditions = conditions_of(block)
    found = image(block.bindings, domain, conditions, own, simplify)
    if isinstance(found, Image) and found.is_whole(domain):
        return _of_reduction(HOLDS, block, own, conditions, simplify)
    counted = None if isinstance(found, Image) else count_instances(block.bindings, domain, conditions, own)
    if counted is not None and counted.reason is None:
        return _of_reduction(HOLDS, block, own, conditions, simplify)
    affine = _verdict(block, domain, own, found, counted)
    if counted is not None and counted.outside is not None:
        return Binding(affine, counted.outside)
    return _of_reduction(affine, block, own, conditions, simplify)


def conditions_of(block: Block) -> tuple[Expr, ...]:
    return () if block.predicate is TRUE else tuple(conjuncts(block.predicate))


def _verdict(
    block: Block,
    domain: Sequence[int],
    own: dict[Var, int],
    found: Image | Unrecognised,
    counted: Counted | None,
) -> Verdict:
    if counted is not None and counted.reason is not None:
        return fails(counted.reason)
    if isinstance(found, Unrecognised):
        used = set[Var]().union(*(free_vars(e) for e in (*block.bindings, block.predicate)))
        idle = next((v.name for v, n in own.items() if n > 1 and v not in used), None)
        return unknown(found.reason) if idle is None else fails(f"the loop {idle} repeats its instances")
    dim = next(n for n, extent in enumerate(domain) if not found.fills(n, extent))
    it = block.iters[dim]
    return fails(f"{it.var.name} runs over {found.spans[dim].extent} of its {it.extent} values")


def _of_reduction(
    affine: Verdict, block: Block, own: dict[Var, int], conditions: tuple[Expr, ...], simplify: Simplifier
) -> Binding:
    """Is a reduction with an init whole, wherever it is run?"""
    reduce = [n for n, it in enumerate(block.iters) if it.kind is IterKind.REDUCE]
    if block.init is None or not reduce:
        return Binding(affine)
    feeding = set[Var]().union(*(free_vars(block.bindings[n]) for n in reduce))
    fixed: list[Var] = []
    for v, n in own.items():
        if v in feeding and n > 1:
            break
        fixed.append(v)
    ranging = {v: n for v, n in own.items() if v not in fixed}
    domain = [it.extent for it in block.iters]
    starts = starts_at_zero(block.bindings, block) and feeding.isdisjoint(_feeding_spatial(block))
    if affine and starts:
        return Binding(affine)
    found = image(block.bindings, domain, conditions, ranging, simplify)
    if starts and isinstance(found, Image) and all(found.fills(n, domain[n]) for n in reduce):
        return Binding(affine)
    return _count_reduction(affine, block, own, fixed, reduce, conditions)


def _feeding_spatial(block: Block) -> set[Var]:
    pairs = zip(block.iters, block.bindings, strict=True)
    return set[Var]().union(*(free_vars(b) for it, b in pairs if it.kind is IterKind.SPATIAL))


def _count_reduction(
    affine: Verdict,
    block: Block,
    own: dict[Var, int],
    fixed: Sequence[Var],
    reduce: Sequence[int],
    conditions: tuple[Expr, ...],
) -> Binding:
    """Every instance taken one by one, in order: each group between two inits starts with one and is whole."""
    points = try_grid(own, (*block.bindings, *conditions))
    if points is None:
        return Binding(affine)
    size = math.prod(own.values())
    here = where_all_hold(conditions, points, size)
    group, step = np.zeros(size, np.int64), np.zeros(size, np.int64)
    groups, steps = 1, 1
    for v in fixed:
        group, groups = group * own[v] + values(v, points, size), groups * own[v]
    for n, (it, e) in enumerate(zip(block.iters, block.bindings, strict=True)):
        value = values(e, points, size)
        if n in reduce:
            step, steps = step * it.extent + value, steps * it.extent
        else:
            group, groups = group * it.extent + value, groups * it.extent
    if groups * steps > 16 * MAX_POINTS:
        return Binding(affine)
    group, step = group[here], step[here]
    counts = np.bincount(group * steps + step, minlength=groups * steps).reshape(groups, steps)
    ran = counts.any(axis=1)
    name = block.name
    if (counts[ran] > 1).any():
        return Binding(affine, f"{name} adds to its result more than once at one point of its reduction")
    if (counts[ran] == 0).any():
        return Binding(affine, gap=f"{name} leaves out points of its reduction")
    _, first = np.unique(group, return_index=True)
    if step[first].any():
        return Binding(affine, gap=f"{name} updates a result before its init has run")
    return Binding(affine)


def unwritten_element(writers: Sequence[tuple[Site, Sequence[Access]]]) -> str:
    """An element that the sites would write together if each ran over its whole domain, and that none of them writes;
    empty if there is none, or if it is not known.
    """
    buffer = writers[0][1][0].buffer
    everything = {v: n for site, _ in writers for v, n in site.ranging.items()}
    simplify = Simplifier({v: Interval(0, n - 1) for v, n in everything.items()})
    box = filled([Writer(site, tuple(stores), ()) for site, stores in writers], frozenset(), simplify)
    if box is not None and all(
        contains(have, Span(as_index(0), size), size, simplify)
        for have, size in zip(box, buffer.shape, strict=True)
    ):
        return ""
    if buffer.size > MAX_POINTS:
        return ""
    promised, written = np.zeros(buffer.size, np.bool_), np.zeros(buffer.size, np.bool_)
    for site, stores in writers:
        domain = {it.var: it.extent for b in (*site.outer, site.block) for it in b.iters}
        inner = {v: n for v, n in site.ranging.items() if v not in extents(site.loops)}
        for store in stores:
            for mask, indices, conditions, ranging in (
                (promised, store.place, (), domain | inner),
                (written, store.indices, store.conditions, site.ranging),
            ):
                points = try_grid(ranging, (*indices, *conditions))
                if points is None or store.guarded:
                    return ""
                size = math.prod(ranging.values())
                here = where_all_hold(conditions, points, size)
                element = np.zeros(size, np.int64)
                for i, extent in zip(indices, buffer.shape, strict=True):
                    value = values(i, points, size)
                    here &= (value >= 0) & (value < extent)
                    element = element * extent + value
                mask[element[here]] = True
    left = promised & ~written
    if not left.any():
        return ""
    place = np.unravel_index(int(np.argmax(left)), buffer.shape) if buffer.shape else ()
    who = " and ".join(site.block.name for site, _ in writers)
    text = ", ".join(str(int(i)) for i in place)
    return f"{buffer.name}[{text}] is in the domain of {who}, and is never written"
