"""Blocks without a reduction: elementwise chains, copies, transposes, padding.

Loops run in the order of the output's memory. The innermost of them, fused while that makes no access
worse, become vectors; the rest is divided among workers where there is enough to do.
"""

import math

from tilewright.ir.expr import Expr, Load, Var, as_index, loads
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.nest import find_block
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.parallel import PARALLEL_WORK, parallel_prefix
from tilewright.schedule.recipes.register_tile import loops_of
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.split import Split
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, Store


def schedule_spatial(s: Draft, name: str, target: Target) -> None:
    """Schedule an all-spatial block that is alone under its loops."""
    block = find_block(s.func, name)
    if not block.iters or not isinstance(block.body, Store):
        return
    order = memory_order(block)
    if len(order) > 1:
        s.apply(Reorder(tuple(order)))
    lanes = target.lanes(max(block.body.buffer.dtype.bytes, 4))
    extents = [s.loop(n).extent for n in order]
    fused = vector_depth(block, order, extents, lanes)
    inner, outer = order[-1], order[:-1]
    if fused > 1:
        inner, outer = s.apply(Fuse(tuple(order[-fused:]))).name, order[:-fused]
    extent = math.prod(extents[-fused:])
    work = math.prod(extents)
    main = extent // lanes * lanes
    if main and main < extent:
        inner, tail = s.apply(LoopPartition(inner, (main,))).names
        s.apply(Vectorize(tail))
    if not main:
        s.apply(Vectorize(inner))
        if work >= PARALLEL_WORK:
            parallel_prefix(s, tuple(outer))
        return
    if outer or work < PARALLEL_WORK:
        s.apply(Vectorize(s.apply(Split(inner, (None, lanes))).names[1]))
        if work >= PARALLEL_WORK:
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


def vector_depth(block: Block, order: list[str], extents: list[int], lanes: int) -> int:
    """How many of the innermost loops to fuse before taking vectors off: the most that makes no access
    worse.
    """
    best, best_score = 1, _score(block, order, extents, 1, lanes)
    for depth in range(2, len(order) + 1):
        score = _score(block, order, extents, depth, lanes)
        if score <= best_score:
            best, best_score = depth, score
    return best


def _score(
    block: Block, order: list[str], extents: list[int], depth: int, lanes: int
) -> tuple[int, float, int]:
    """(accesses that need a load or store per lane, share of work outside of full vectors, divisions per vector)."""
    assert isinstance(block.body, Store)
    size = math.prod(extents[-depth:])
    lane, vector = Var("lane"), Var("vector")
    loops = loops_of(block)
    by_loop = {name: v for v, name in loops.items()}
    values: dict[Var, Expr] = {}
    rest: Expr = vector * lanes + lane
    for name, extent in reversed(list(zip(order[-depth:], extents[-depth:], strict=True))):
        values[by_loop[name]] = rest % extent
        rest = rest // extent
    ranges = {it.var: Interval(0, it.extent - 1) for it in block.iters}
    ranges |= {lane: Interval(0, lanes - 1), vector: Interval(0, max(size // lanes - 1, 0))}
    simplify = Simplifier(ranges)
    accesses = [(ld.buffer, ld.indices) for e in (*block.body.indices, block.body.value) for ld in loads(e)]
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
