"""Blocks without a reduction: elementwise chains, copies, transposes, padding.

Loops run in the order of the output's memory, cut where a condition on them changes, so that vectors need no masks.
The innermost of them, fused while that makes no access worse, become vectors; the rest is divided among workers where
there is enough to do.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Expr,
    Load,
    Select,
    Var,
    as_index,
    conjuncts,
    free_vars,
    loads,
    walk,
)
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.nest import find_block
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.parallel import ENOUGH_PARTS, PARALLEL_WORK, parallel_prefix
from tilewright.schedule.recipes.register_tile import loops_of
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.split import Split
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, Store

_MIN_CUT = 256  # elements of a part that is worth code of its own
_MAX_CUTS = 4  # of one loop


def schedule_spatial(s: Draft, name: str, target: Target) -> None:
    """Schedule an all-spatial block that is alone under its loops."""
    block = find_block(s.func, name)
    if not block.iters or not isinstance(block.body, Store):
        return
    order = memory_order(block)
    if len(order) > 1:
        s.apply(Reorder(tuple(order)))
    ranges = {it.var: Interval(0, it.extent - 1) for it in block.iters}
    work = math.prod(it.extent for it in block.iters)
    _schedule_nest(s, _Part(name, tuple(order), ranges), target, is_shared=work >= PARALLEL_WORK)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the block's domain: `order` has the loops that are its own, from the outermost in; `ranges` is where
    its iterators run.
    """

    block: str
    order: tuple[str, ...]
    ranges: Mapping[Var, Interval]


def _schedule_nest(s: Draft, part: _Part, target: Target, *, is_shared: bool) -> None:
    """Cut the part where conditions change (the border of a padding, the pieces of a concatenation), and make vectors
    of what has none; with `is_shared`, workers share the work.
    """
    cut = _find_cut(s, part, is_shared=is_shared)
    if cut is None:
        _vectorize(s, part, target, is_shared=is_shared)
        return
    at, var, points = cut
    parts = list(_cut(find_block(s.func, part.block), part, at, var, points))
    s.apply(LoopPartition(part.order[at], points))
    if is_shared and at:
        parallel_prefix(s, part.order[:at])
    for p in parts:
        _schedule_nest(s, p, target, is_shared=is_shared and not at)


def _cut(block: Block, part: _Part, at: int, var: Var, points: tuple[int, ...]) -> Iterator[_Part]:
    start = 0
    for n, end in enumerate((*points, part.ranges[var].hi - part.ranges[var].lo + 1)):
        low = part.ranges[var].lo
        names = {it.var: Var(f"{it.var.name}_p{n}") for it in block.iters}
        ranges = {names[v]: r for v, r in part.ranges.items()}
        ranges[names[var]] = Interval(low + start, low + end - 1)
        yield _Part(f"{part.block}_p{n}", tuple(f"{loop}_p{n}" for loop in part.order[at:]), ranges)
        start = int(end)


def _find_cut(s: Draft, part: _Part, *, is_shared: bool) -> tuple[int, Var, tuple[int, ...]] | None:
    """(which loop, its iterator, the iterations before which a condition changes) of the outermost loop that can be
    cut.
    """
    block = find_block(s.func, part.block)
    assert isinstance(block.body, Store)
    if math.prod(s.loop(n).extent for n in part.order) < _MIN_CUT:
        return None
    iters = {loop: v for v, loop in _loops(block).items()}
    value = Simplifier(part.ranges)(block.body.value)
    conditions = {c for e in walk(value) if isinstance(e, Select) for c in conjuncts(e.cond)}
    above = 1
    for at, loop in enumerate(part.order):
        if loop not in iters:  # a single iteration
            continue
        var = iters[loop]
        points = {p for c in conditions if (p := _turning_point(c, var, part.ranges[var])) is not None}
        # Workers share the loops above a cut: there must be none, or enough.
        if 0 < len(points) <= _MAX_CUTS and (at == 0 or not is_shared or above >= ENOUGH_PARTS):
            return at, var, tuple(sorted(points))
        above *= s.loop(loop).extent
    return None


def _loops(block: Block) -> dict[Var, str]:
    """The loop of each iterator, which runs it alone, perhaps from a point on."""
    return {
        it.var: next(iter(free_vars(b))).name
        for it, b in zip(block.iters, block.bindings, strict=True)
        if free_vars(b)
    }


def _turning_point(cond: Expr, var: Var, within: Interval) -> int | None:
    """The iteration, counted from the first, before which a comparison of `var` with a constant changes; None if
    it does not, or is not such a one.
    """
    if not isinstance(cond, Binary) or cond.op not in (BinaryOp.LT, BinaryOp.LE) or free_vars(cond) != {var}:
        return None
    form = Simplifier(dict[Var, Interval]()).linear(cond.a - cond.b)
    if len(form.terms) != 1 or form.terms[0][0] is not var:
        return None
    # k·v + c (<, ≤) 0 holds up to some v, or from some v on.
    k, c = form.terms[0][1], form.const
    limit = c if cond.op is BinaryOp.LT else c - 1
    point = -(limit // k) if k > 0 else limit // -k + 1
    first = point - int(within.lo)
    return first if 0 < first <= within.hi - within.lo else None


def _vectorize(s: Draft, part: _Part, target: Target, *, is_shared: bool) -> None:
    block = find_block(s.func, part.block)
    assert isinstance(block.body, Store)
    order = list(part.order)
    lanes = target.lanes(max(block.body.buffer.dtype.bytes, 4))
    extents = [s.loop(n).extent for n in order]
    fused = _vector_depth(block, part, extents, lanes)
    inner, outer = order[-1], order[:-1]
    if fused > 1:
        inner, outer = s.apply(Fuse(tuple(order[-fused:]))).name, order[:-fused]
    extent = math.prod(extents[-fused:])
    main = extent // lanes * lanes
    if main and main < extent:
        inner, tail = s.apply(LoopPartition(inner, (main,))).names
        s.apply(Vectorize(tail))
    if not main:
        s.apply(Vectorize(inner))
        if is_shared:
            parallel_prefix(s, tuple(outer))
        return
    if outer or not is_shared:
        s.apply(Vectorize(s.apply(Split(inner, (None, lanes))).names[1]))
        if is_shared:
            parallel_prefix(s, tuple(outer))
        return
    chunk = _chunk(main // lanes)
    split = s.apply(Split(inner, (None, chunk, lanes)))
    s.apply(Vectorize(split.names[2]))
    parallel_prefix(s, split.names[:1])


def _chunk(vectors: int) -> int:
    """Vectors per part: an exact divisor that gives 16 to 64 parts, or 32 parts with a condition in the
    last.
    """
    exact = [vectors // n for n in range(16, 65) if vectors % n == 0]
    return exact[0] if exact else -(-vectors // 32)


def memory_order(block: Block) -> list[str]:
    """The loops of the block from the largest stride of its output to the smallest."""
    assert isinstance(block.body, Store)
    steps = _steps(block, block.body.buffer.strides, block.body.indices)
    loops = loops_of(block)
    ranked = sorted(block.iters, key=lambda it: -steps.get(it.var, 0))
    return [loops[it.var] for it in ranked]


def _steps(block: Block, strides: tuple[int, ...], indices: tuple[Expr, ...]) -> dict[Var, int]:
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    steps: dict[Var, int] = {}
    for index, stride in zip(indices, strides, strict=True):
        for atom, k in simplify.linear(index).terms:
            for v in (n for n in ([atom] if isinstance(atom, Var) else _vars(atom))):
                steps[v] = max(steps.get(v, 0), abs(k) * stride)
    return steps


def _vars(e: Expr) -> list[Var]:
    found: list[Var] = []
    for c in e.children():
        found.extend([c] if isinstance(c, Var) else _vars(c))
    return found


def _vector_depth(block: Block, part: _Part, extents: list[int], lanes: int) -> int:
    """How many of the innermost loops to fuse before taking vectors off: the most that makes no access
    worse.
    """
    best, best_score = 1, _score(block, part, extents, 1, lanes)
    for depth in range(2, len(extents) + 1):
        score = _score(block, part, extents, depth, lanes)
        if score <= best_score:
            best, best_score = depth, score
    return best


def _score(block: Block, part: _Part, extents: list[int], depth: int, lanes: int) -> tuple[int, float, int]:
    """(accesses that need a load or store per lane, share of work outside of full vectors, divisions per vector)."""
    assert isinstance(block.body, Store)
    size = math.prod(extents[-depth:])
    lane, vector = Var("lane"), Var("vector")
    iters = {loop: v for v, loop in _loops(block).items()}
    values: dict[Var, Expr] = {}
    rest: Expr = vector * lanes + lane
    for name, extent in reversed(list(zip(part.order[-depth:], extents[-depth:], strict=True))):
        if name in iters:
            values[iters[name]] = rest % extent
            rest = rest // extent
    ranges = {**part.ranges, lane: Interval(0, lanes - 1), vector: Interval(0, max(size // lanes - 1, 0))}
    simplify = Simplifier(ranges)
    value = simplify(block.body.value)  # in a part, only one side of a condition may be left
    accesses = [(ld.buffer, ld.indices) for e in (*block.body.indices, value) for ld in loads(e)]
    accesses.append((block.body.buffer, block.body.indices))
    bad = divisions = 0
    for buffer, indices in accesses:
        flat: Expr = as_index(0)
        for i, stride in zip(indices, buffer.strides, strict=True):
            flat = flat + substitute(i, values) * stride
        bad += not _is_plain(flat, lane, simplify)
        divisions += sum(not isinstance(atom, Var) for atom, _ in simplify.linear(flat).terms)
    tail = (size % lanes) / size if size >= lanes else 1.0
    return bad, tail, divisions


def _is_plain(flat: Expr, lane: Var, simplify: Simplifier) -> bool:
    """Does the address move by one per lane, or not at all?"""
    for atom, k in simplify.linear(flat).terms:
        if atom is lane:
            if k != 1:
                return False
        elif lane in _vars(atom) or isinstance(atom, Load):
            return False
    return True
