"""Region cover: what a block reads of a buffer has been written when it is read, and completely.

Writers that stand before the reader have, at that place, written what belongs to the current iteration of the loops
around both; writers in earlier nests, everything. The union of that must hold what the reader reads in the same
iteration. First boxes are compared (`tir/analysis/regions.py`), which is quick and works for any size. Where boxes do
not show it, small nests are taken point by point: there also counts what earlier iterations of serial loops
have written, which is how a rolling buffer and a scan work.

A reduction that shares a loop over its reduce iterator with the reader has not finished: the reader would see partial
results.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tilewright.ir.expr import Buffer, Var, as_index, free_vars
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.sites import Site, shared_loops, site_accesses, sites
from tilewright.schedule.verdict import HOLDS, Verdict, fails, unknown
from tilewright.tir.analysis.points import MAX_POINTS, Integers, try_grid, values, where_all_hold
from tilewright.tir.analysis.regions import Access, BufferRegion, Span, box, contains, exact_union
from tilewright.tir.func import Func
from tilewright.tir.stmt import For, IterKind


class Writer(NamedTuple):
    site: Site
    stores: tuple[Access, ...]  # to the buffer in question
    shared: tuple[For, ...]  # the loops around reader and writer

    @property
    def fixed(self) -> frozenset[Var]:
        return frozenset(n.var for n in self.shared)


def cover(reader: Site, reads: Sequence[Access], writers: Sequence[Writer]) -> Verdict:
    """Has what `reader` reads of one buffer been written by then? `writers` are all sites that store to it, itself
    included.
    """
    buffer = reads[0].buffer
    initialised = reader.block.init is not None and _own_places(reader, writers)
    needed = [r for r in reads if not (initialised and r.indices in initialised)]
    if not needed:  # an accumulator, which init has set
        return HOLDS
    others = [w for w in writers if w.site is not reader]
    simplify = Simplifier(_ranges(reader, writers))
    if reader.block.name not in {w.site.block.name for w in writers}:
        for w in others:
            loop = _unfinished(w)
            if loop is not None and _may_meet(w.stores, needed, simplify):
                return fails(
                    f"{buffer.name} is read inside {loop.var.name}, over which {w.site.block.name} still reduces"
                )
    if all(_is_in_box(reader, r, others, simplify) for r in needed):
        return HOLDS
    for r in needed:
        verdict = _count(reader, r, writers)
        if not verdict:
            return verdict
    return HOLDS


def writers_of(reader: Site, users: Sequence[tuple[Site, tuple[Access, ...]]]) -> list[Writer]:
    """The sites that store to a buffer, as `reader` sees them."""
    return [Writer(s, stores, shared_loops(s, reader)) for s, stores in users if stores]


def made_before(func: Func, block: str, buffer: Buffer) -> Verdict:
    """Has what a block reads of a buffer been written by then?"""
    found = [(s, [a for a in site_accesses(s) if a.buffer is buffer]) for s in sites(func).all]
    (reader,) = [s for s, _ in found if s.block.name == block]
    stores = [(s, tuple(a for a in every if a.is_write)) for s, every in found]
    reads = [a for s, every in found if s is reader for a in every if not a.is_write]
    return cover(reader, reads, writers_of(reader, stores))


def _own_places(reader: Site, writers: Sequence[Writer]) -> set[object]:
    return {s.indices for w in writers if w.site is reader for s in w.stores}


def _may_meet(stores: Sequence[Access], reads: Sequence[Access], simplify: Simplifier) -> bool:
    """Are there elements that may be among both? Buffers that were attached to each other have rows of their own."""

    def meet(a: Access, b: Access) -> bool:
        spans = [(simplify.bounds(i), simplify.bounds(j)) for i, j in zip(a.indices, b.indices, strict=True)]
        return all(x.lo <= y.hi and y.lo <= x.hi for x, y in spans)

    return any(meet(a, b) for a in stores for b in reads)


def _unfinished(w: Writer) -> For | None:
    """A loop around both that feeds a reduce iterator of the writer."""
    for it, binding in zip(w.site.block.iters, w.site.block.bindings, strict=True):
        if it.kind is IterKind.REDUCE and it.extent > 1:
            used = free_vars(binding)
            for loop in w.shared:
                if loop.var in used and loop.extent > 1:
                    return loop
    return None


def _ranges(reader: Site, writers: Sequence[Writer]) -> dict[Var, Interval]:
    everything = reader.ranging
    for w in writers:
        everything |= w.site.ranging
    return {v: Interval(0, n - 1) for v, n in everything.items()}


# ---------------------------------------------------------------------------------------------------------- boxes


def _is_in_box(reader: Site, read: Access, writers: Sequence[Writer], simplify: Simplifier) -> bool:
    """Do the writers with the same loops in common with the reader fill a box that holds what is read?"""
    groups: dict[frozenset[Var], list[Writer]] = {}
    for w in writers:
        if w.site.position < reader.position:
            groups.setdefault(w.fixed, []).append(w)
    for fixed, group in groups.items():
        written = filled(group, fixed, simplify)
        if written is None:
            continue
        ranging = {v: n for v, n in reader.ranging.items() if v not in fixed}
        spans = box(read, ranging, simplify).spans
        shape = read.buffer.shape
        if all(
            contains(have, need or Span(as_index(0), size), size, simplify)
            for have, need, size in zip(written, spans, shape, strict=True)
        ):
            return True
    return False


def filled(group: Sequence[Writer], fixed: frozenset[Var], simplify: Simplifier) -> BufferRegion | None:
    """The box that the writers fill together while the variables of `fixed` stay."""
    boxes: list[BufferRegion] = []
    for w in group:
        ranging = {v: n for v, n in w.site.ranging.items() if v not in fixed}
        for store in w.stores:
            found = box(store, ranging, simplify)
            spans = tuple(s for s in found.spans if s is not None)
            kept = all(store.keeps_domain(c, simplify) for c in found.conditions)
            if found.exact and kept and len(spans) == len(found.spans):
                boxes.append(spans)
    return exact_union(boxes, simplify) if boxes else None


# ------------------------------------------------------------------------------------------------------- counting


class _Touched(NamedTuple):
    """Elements, by their place in the buffer, with the iteration of the shared loops: `apart` numbers the iteration of
    those that run at once, `turn` that of those that run in order.
    """

    element: Integers
    apart: Integers
    turn: Integers
    turns: int


def _count(reader: Site, read: Access, writers: Sequence[Writer]) -> Verdict:
    buffer = read.buffer
    unclear = unknown(f"what {reader.block.name} reads of {buffer.name} is not known to be written")
    asked = _touched(reader, read, ())
    if asked is None:
        return unclear
    covered = np.zeros(len(asked.element), np.bool_)
    is_exact = not read.guarded  # a Select inside the block may leave elements out
    for w in writers:
        if w.site.block is reader.block and reader.block.try_store is None:
            is_exact = (
                False  # it may fill its scratch before it reads that: the order inside is not looked at
            )
        seen = _touched(reader, read, w.shared)
        rows = math.prod(n.extent for n in w.shared if n.kind.is_at_once) * buffer.size
        if seen is None or rows > 4 * MAX_POINTS:
            is_exact = False
            continue
        first = np.full(rows, seen.turns, np.int64)  # the turn in which each element is first written
        for store in w.stores:
            made = None if store.guarded else _touched(w.site, store, w.shared)
            if made is None:
                is_exact = False
            else:
                np.minimum.at(first, made.apart * buffer.size + made.element, made.turn)
        later = int(w.site.position >= reader.position)  # written after it is read: only earlier turns count
        covered |= first[seen.apart * buffer.size + seen.element] <= seen.turn - later
    if covered.all():
        return HOLDS
    if not is_exact:
        return unclear
    place = np.unravel_index(int(asked.element[int(np.argmin(covered))]), buffer.shape)
    text = ", ".join(str(i) for i in place)
    return fails(f"{reader.block.name} reads {buffer.name}[{text}] before anything has written it")


def _touched(site: Site, access: Access, shared: Sequence[For]) -> _Touched | None:
    ranging = site.ranging
    points = try_grid(ranging, (*access.indices, *access.conditions))
    if points is None:
        return None
    size = math.prod(ranging.values())
    here = where_all_hold(access.conditions, points, size)
    index = [values(i, points, size) for i in access.indices]
    for i, extent in zip(index, access.buffer.shape, strict=True):
        here &= (i >= 0) & (i < extent)
    element = np.zeros(size, np.int64)
    for i, extent in zip(index, access.buffer.shape, strict=True):
        element = element * extent + i
    apart, turn = np.zeros(size, np.int64), np.zeros(size, np.int64)
    turns = 1
    for loop in shared:
        value = values(loop.var, points, size)
        if loop.kind.is_at_once:
            apart = apart * loop.extent + value
        else:
            turn = turn * loop.extent + value
            turns *= loop.extent
    return _Touched(element[here], apart[here], turn[here], turns)
