"""Blocks without a reduction: elementwise chains, copies, transposes, padding.

Loops run in the order of the output's memory, cut where a condition on them changes, so that vectors need no masks.
The innermost of them, fused while that makes no access worse, become vectors; the rest is divided among workers where
there is enough to do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.cost.parallel import ENOUGH_PARTS
from tilewright.cost.work import instructions
from tilewright.families.elementwise.chosen_rows import chooses_rows, schedule_chosen_rows
from tilewright.families.elementwise.scan import find_scan, schedule_scan
from tilewright.families.elementwise.transpose import find_transposed, schedule_transposed
from tilewright.families.gemm.register_tile import loops_of
from tilewright.families.inline import consumers
from tilewright.families.parallel import is_worth_sharing, parallel_prefix
from tilewright.ir.condition import conjuncts
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Buffer,
    Const,
    Expr,
    Load,
    Select,
    Var,
    as_index,
    free_vars,
    loads,
    walk,
)
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block, loops_above
from tilewright.schedule.steps.compute_at import ComputeAt
from tilewright.schedule.steps.distribute import Distribute
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.split import Split
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, For, LoopKind, walk_stmts

_MIN_CUT = 128  # elements of a part that is worth code of its own; bound
_MAX_CUTS = 8  # of one loop, such as the pieces of a concatenation; bound
# Instructions above which two vectors are computed in turn: those of one wait for each other, and a core does not see
# far enough ahead to find the next. Swept on 13 functions of 16384 elements on a Xeon: with 0 all are as fast, with
# 1000 Erf takes 1.08 and Mish 1.3 times as long.
_LONG = 11
SIDE_BY_SIDE = 2  # vectors; bound: the constants of more would not stay in registers


def schedule_spatial(s: Draft, name: str, target: Target) -> None:
    """Schedule an all-spatial block that is alone under its loops."""
    block = find_block(s.func, name)
    if not block.iters or block.try_store is None:
        return
    scan = find_scan(block)
    if scan is not None:
        schedule_scan(s, name, scan, target)
        return
    is_shared = is_worth_sharing(target.lanes(4), block)
    schedule_own(s, name, list(loops_of(block).values()), target, is_shared=is_shared)


def bring_near(s: Draft, name: str, target: Target) -> bool:
    """Run a producer inside the parts of its consumer, where each part reads a piece of its own of what it makes: so
    the piece is in the nearest cache when it is read, and workers meet once less. False if that is not so.
    """
    loops = move_near(s, name, target)
    if loops is None:
        return False
    schedule_own(s, name, list(loops), target, is_shared=False)
    return True


def move_near(s: Draft, name: str, target: Target) -> tuple[str, ...] | None:
    """Move a producer there: its loops inside a part. None if it stays where it is."""
    block = find_block(s.func, name)
    made = None if block.try_store is None else block.store.buffer
    if made not in s.func.locals:
        return None
    above = [loops_above(s.func, u) for u in consumers(s.func, made)]
    if not above or any(not path or path[0] is not above[0][0] for path in above):
        return None
    part = above[0][0]
    if part.kind is not LoopKind.PARALLEL or not s.attempt(ComputeAt(name, part.var.name)):
        return None
    loops = loops_above(s.func, find_block(s.func, name))[1:]
    piece = math.prod(n.extent for n in loops)
    if piece * part.extent > made.size or piece * made.dtype.bytes > target.machine.l2_bytes // 2:
        s.undo()  # parts overlap and would make the same elements, or a piece is not near
        return None
    return tuple(n.var.name for n in loops)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the block's domain, and the loops that are its own, from the outermost in."""

    block: str
    order: tuple[str, ...]


def schedule_own(s: Draft, name: str, loops: list[str], target: Target, *, is_shared: bool) -> None:
    """Order the loops as the output's memory is, and make vectors of the innermost."""
    for loop, factor in _interleaved(s, name):
        if loop in loops:
            loops[loops.index(loop) : loops.index(loop) + 1] = s.apply(Split(loop, (None, factor))).names
    block = find_block(s.func, name)
    simplify, values = _in_loops(s, block)
    steps = _steps(simplify, block.store.buffer.strides, [substitute(i, values) for i in block.store.indices])
    order = sorted(loops, key=lambda n: (s.loop(n).extent > 1, -steps.get(Var(n), 0)))
    if len(order) > 1:
        s.apply(Reorder(tuple(order)))
    _schedule_nest(s, _Part(name, tuple(order)), target, is_shared=is_shared)


def _interleaved(s: Draft, name: str) -> list[tuple[str, int]]:
    """(loop, n) where the output keeps every n-th iteration of a loop together."""
    block = find_block(s.func, name)
    loops = {it.var: b for it, b in zip(block.iters, block.bindings, strict=True)}
    found: list[tuple[str, int]] = []
    for i in block.store.indices:
        match i:
            case Binary(op=BinaryOp.MOD, a=Var() as v, b=Const(value=n)):
                loop = loops.get(v)
                if isinstance(loop, Var) and isinstance(n, int) and n < s.loop(loop.name).extent:
                    found.append((loop.name, n))
            case _:
                pass
    return found


def _in_loops(s: Draft, block: Block) -> tuple[Simplifier, dict[Var, Expr]]:
    """What the block's iterators are in terms of the loops around it, and a Simplifier that knows these."""
    ranges = {n.var: Interval(0, n.extent - 1) for n in loops_above(s.func, block)}
    return Simplifier(ranges), {it.var: b for it, b in zip(block.iters, block.bindings, strict=True)}


def _schedule_nest(s: Draft, part: _Part, target: Target, *, is_shared: bool) -> None:
    """Cut the part where conditions change (the border of a padding, the pieces of a concatenation), and make vectors
    of what has none; with `is_shared`, workers share the work.
    """
    lanes = target.lanes(max(_output(s, part).dtype.bytes, 4))
    cut = _find_cut(s, part, lanes, is_shared=is_shared)
    if cut is None:
        if not _turn(s, part, lanes, is_shared=is_shared):
            _vectorize(s, part, lanes, is_shared=is_shared)
        return
    at, points, own = cut
    s.apply(LoopPartition(part.order[at], points))
    apart = [s.apply(_distribute(s, loop, len(points))) for loop in reversed(part.order[own:at])]
    if is_shared and own:
        parallel_prefix(s, part.order[:own])
    for n in range(len(points) + 1):
        above = tuple(d.part(n) for d in reversed(apart))
        below = tuple(f"{loop}_p{n}" for loop in part.order[at:])
        _schedule_nest(s, _Part(f"{part.block}_p{n}", above + below), target, is_shared=is_shared and not own)


def _distribute(s: Draft, loop: str, more: int) -> Distribute:
    """The step that parts a loop, which may be what an earlier one left over."""
    taken = {n.var.name for n in walk_stmts(s.func.body) if isinstance(n, For)}
    step = Distribute(loop)
    while any(step.part(n) in taken for n in range(1, more + 1)):
        step = Distribute(loop, step.suffix + "d")
    return step


def _output(s: Draft, part: _Part) -> Buffer:
    block = find_block(s.func, part.block)
    return block.store.buffer


def _turn(s: Draft, part: _Part, lanes: int, *, is_shared: bool) -> bool:
    """Take a transpose through registers; False if it is none, or has a remainder."""
    transposed = find_transposed(s, part.block, part.order, lanes)
    if transposed is None or any(s.loop(n).extent % lanes for n in (transposed.across, transposed.inner)):
        return False
    try:
        with s.transaction():
            outer = schedule_transposed(s, transposed, part.order, lanes)
    except ScheduleError:
        return False
    if is_shared:
        parallel_prefix(s, outer)
    return True


def _find_cut(
    s: Draft, part: _Part, lanes: int, *, is_shared: bool
) -> tuple[int, tuple[int, ...], int] | None:
    """(which loop, the iterations before which a condition changes, the first loop that every part has for itself) of
    the outermost loop to cut.
    """
    block = find_block(s.func, part.block)
    extents = [s.loop(n).extent for n in part.order]
    simplify, values = _in_loops(s, block)
    conditions = set(conjuncts(simplify(block.predicate)))
    if math.prod(n.extent for n in loops_above(s.func, block)) >= _MIN_CUT:
        value = simplify(substitute(block.store.value, values))
        conditions.update(c for e in walk(value) if isinstance(e, Select) for c in conjuncts(e.cond))
    transposed = find_transposed(s, part.block, part.order, lanes)
    tiled = (transposed.across, transposed.inner) if transposed is not None else ()
    for at, (loop, extent) in enumerate(zip(part.order, extents, strict=True)):
        points = sorted({p for c in conditions for p in _turning_points(c, Var(loop), extent)})
        own = at
        if not points and loop in tiled and extent % lanes:
            points = [extent // lanes * lanes]
            own = min(part.order.index(n) for n in tiled)
        if 0 < len(points) <= _MAX_CUTS:
            # Workers share the loops above a cut, if these are enough.
            few = is_shared and math.prod(extents[:own]) < ENOUGH_PARTS
            return at, tuple(points), 0 if few else min(own, at)
    return None


def _turning_points(cond: Expr, var: Var, extent: int) -> range:
    """The iterations of `var` before which a comparison changes. One that depends on other loops as well may do so
    before each; one of elements of a buffer is not known before they are read.
    """
    if (
        not isinstance(cond, Binary)
        or cond.op not in (BinaryOp.LT, BinaryOp.LE)
        or var not in free_vars(cond)
        or loads(cond)
    ):
        return range(0)
    if free_vars(cond) != frozenset({var}):
        return range(1, extent)
    form = Simplifier({var: Interval(0, extent - 1)}).linear(cond.a - cond.b)
    if len(form.terms) != 1 or form.terms[0][0] is not var:
        return range(0)
    # k·v + c (<, ≤) 0 holds up to some v, or from some v on.
    k, c = form.terms[0][1], form.const if cond.op is BinaryOp.LT else form.const - 1
    point = -(c // k) if k > 0 else c // -k + 1
    return range(point, point + 1) if 0 < point < extent else range(0)


def _vectorize(s: Draft, part: _Part, lanes: int, *, is_shared: bool) -> None:
    order = list(part.order)
    extents = [s.loop(n).extent for n in order]
    fused = _vector_depth(s, part, extents, lanes)
    inner, outer = order[-1], order[:-1]
    if fused > 1:
        inner, outer = s.apply(Fuse(tuple(order[-fused:]))).name, order[:-fused]
    extent = math.prod(extents[-fused:])
    has_rows = chooses_rows(s, part.block, outer, inner)
    nbytes = _output(s, part).dtype.bytes
    main = extent // lanes * lanes
    width = vector_width(find_block(s.func, part.block).store.value, main, lanes)
    if main and main < extent:
        inner, tail = s.apply(LoopPartition(inner, (main,))).names
        s.apply(Vectorize(tail))
    if not main:
        s.apply(Vectorize(inner))
        if is_shared:
            parallel_prefix(s, tuple(outer))
        return
    if has_rows:
        schedule_chosen_rows(s, outer, inner, lanes, nbytes, is_shared=is_shared)
        return
    if outer or not is_shared:
        s.apply(Vectorize(s.apply(Split(inner, (None, width))).names[1]))
        if is_shared:
            parallel_prefix(s, tuple(outer))
        return
    chunk = _chunk(main // width)
    split = s.apply(Split(inner, (None, chunk, width)))
    s.apply(Vectorize(split.names[2]))
    parallel_prefix(s, split.names[:1])


def is_long(value: Expr) -> bool:
    return instructions(value) > _LONG


def vector_width(value: Expr, extent: int, lanes: int) -> int:
    """Of how many elements of a loop to compute the value at a time: a vector, or several side by side."""
    several = SIDE_BY_SIDE * lanes
    return several if is_long(value) and extent % several == 0 else lanes


def _chunk(vectors: int) -> int:
    """Vectors per part: an exact divisor that gives 16 to 64 parts, or 32 parts with a condition in the
    last.
    """
    exact = [vectors // n for n in range(16, 65) if vectors % n == 0]
    return exact[0] if exact else -(-vectors // 32)


def memory_order(block: Block) -> list[str]:
    """The loops of the block from the largest stride of its output to the smallest."""
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    steps = _steps(simplify, block.store.buffer.strides, block.store.indices)
    loops = loops_of(block)
    ranked = sorted(block.iters, key=lambda it: -steps.get(it.var, 0))
    return [loops[it.var] for it in ranked]


def _steps(simplify: Simplifier, strides: Sequence[int], indices: Sequence[Expr]) -> dict[Var, int]:
    """How far the address moves at most with each variable."""
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


def _vector_depth(s: Draft, part: _Part, extents: list[int], lanes: int) -> int:
    """How many of the innermost loops to fuse before taking vectors off: the most that makes no access
    worse.
    """
    best, best_score = 1, _score(s, part, extents, 1, lanes)
    for depth in range(2, len(extents) + 1):
        score = _score(s, part, extents, depth, lanes)
        if score <= best_score:
            best, best_score = depth, score
    return best


def _score(s: Draft, part: _Part, extents: list[int], depth: int, lanes: int) -> tuple[int, float, int]:
    """(accesses that need a load or store per lane, share of work outside of full vectors, divisions per vector)."""
    block = find_block(s.func, part.block)
    size = math.prod(extents[-depth:])
    lane, vector = Var("lane"), Var("vector")
    fused: dict[Var, Expr] = {}
    rest: Expr = vector * lanes + lane
    for name, extent in reversed(list(zip(part.order[-depth:], extents[-depth:], strict=True))):
        fused[Var(name)] = rest % extent
        rest = rest // extent
    simplify, values = _in_loops(s, block)
    simplify.learn({lane: Interval(0, lanes - 1), vector: Interval(0, max(size // lanes - 1, 0))})
    values = {v: substitute(e, fused) for v, e in values.items()}
    value = simplify(substitute(block.store.value, values))  # in a part, one side of a condition may be gone
    indices = tuple(substitute(i, values) for i in block.store.indices)
    accesses = [(ld.buffer, ld.indices) for e in (*indices, value) for ld in loads(e)]
    accesses.append((block.store.buffer, indices))
    bad = divisions = 0
    for buffer, at in accesses:
        flat: Expr = as_index(0)
        for i, stride in zip(at, buffer.strides, strict=True):
            flat = flat + i * stride
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
