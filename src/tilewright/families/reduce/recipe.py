"""Reductions along the innermost dimension, one after another over the same rows: softmax, normalisation,
sums.

    max[r] = …; e[r, j] = exp(x[r, j] - max[r]); sum[r] = …; y[r, j] = e[r, j] / sum[r]

All blocks move under one loop over rows, so that a row stays in the nearest cache from its first use to its
last. Sums run in vector lanes (a reassociation, and so a step of its own) whose partial results are
registers. What takes long to compute is summed where it is computed: then it is not read once more for that.
"""

from itertools import zip_longest
from math import prod

from tilewright.cost.work import domain
from tilewright.families.elementwise.recipe import SIDE_BY_SIDE, is_long, memory_order, vector_width
from tilewright.families.gemm.register_tile import loops_of
from tilewright.families.parallel import is_worth_sharing, part_size
from tilewright.ir.expr import Scope, Var, free_vars, loads
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block, loops_above
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.cache_write import CacheWrite
from tilewright.schedule.steps.compute_at import ComputeAt
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Parallel, Unroll, Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.merge import Merge
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.rfactor import Rfactor
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, For, IterKind, LoopKind, blocks, store_blocks

_MOST_AGAIN = 8  # times the work, for a row to stay in the nearest cache; bound


def schedule_rows(s: Draft, accumulators: int, target: Target) -> None:
    """Schedule all blocks of the Func, the last of which stores the result; a long reduction has `accumulators` vectors
    of partial results.
    """
    last = list(blocks(s.func.body))[-1]
    if last.is_reduction:  # its partial results must have a place to stay between it and the end of a row
        s.apply(CacheWrite(last.name, last.store.buffer.name, Scope.LOCAL))
    names = [b.name for b in blocks(s.func.body)]
    last = find_block(s.func, names[-1])
    rows = _row_loops(s, last)
    order = [n for n in memory_order(last) if n in rows] + [n for n in memory_order(last) if n not in rows]
    if len(order) > 1:
        s.apply(Reorder(tuple(order)))
    if rows:
        parts = row = s.apply(Fuse(tuple(order[: len(rows)]))).name if len(rows) > 1 else order[0]
        size = part_size(s.loop(row).extent)
        if size > 1:
            parts, row = s.apply(Split(row, (None, size))).names
    else:
        parts = row = s.apply(AddUnitLoop(last.name)).loop
    # Producers move from the last to the first: then all consumers of a block are in place before it.
    once = sum(domain(b) for b in blocks(s.func.body))
    is_shared = s.loop(parts).extent > 1 and is_worth_sharing(target.lanes(4), *blocks(s.func.body))
    for name in reversed(names[:-1]):
        s.attempt(ComputeAt(name, row))
    again = sum(prod(n.extent for n in loops_above(s.func, b)) for b in blocks(s.func.body))
    if again > _MOST_AGAIN * once:
        raise ScheduleError(
            f"computing all that a row of {last.name} needs in it is {again // once} times the work"
        )
    for name in names[:-1]:
        _give_place(s, name)
    if is_shared:
        s.apply(Parallel(parts))
    taken: set[str] = set()
    for name, behind in zip_longest(names, names[1:]):
        if behind is not None and _reduce_on_the_way(s, name, behind, target):
            taken |= {name, behind}
        elif name not in taken:
            vectorize_row(s, name, accumulators, target)


def _give_place(s: Draft, name: str) -> None:
    """A reduction to a single value that stays by itself moves into a loop, where its partial results can stay."""
    block = find_block(s.func, name)
    if not block.is_reduction or any(it.kind is IterKind.SPATIAL for it in block.iters):
        return
    over = {v for b in block.bindings for v in free_vars(b)}
    if all(n.var in over for n in loops_above(s.func, block)):
        end = s.apply(CacheWrite(name, block.store.buffer.name, Scope.LOCAL))
        s.apply(ComputeAt(name, s.apply(AddUnitLoop(end.copy)).loop))


def _row_loops(s: Draft, last: Block) -> set[str]:
    """The loops of the last block along which reductions, and what is derived from them, have a value each."""
    loops = loops_of(last)
    whole = {store.buffer for b, store in store_blocks(s.func.body) if b.is_reduction}
    used: set[Var] = set()
    for ld in loads(last.store.value):
        if ld.buffer in s.func.locals and (ld.buffer.size < last.store.buffer.size or ld.buffer in whole):
            used |= {v for i in ld.indices for v in free_vars(i)}
    return {loops[v] for v in used if v in loops}


def vectorize_row(s: Draft, name: str, accumulators: int, target: Target) -> None:
    """Put the innermost loops of a block into lanes: of a reduction through partial results."""
    block = find_block(s.func, name)
    above = loops_above(s.func, block)
    kind = IterKind.REDUCE if block.is_reduction else IterKind.SPATIAL
    wanted = {
        v for it, b in zip(block.iters, block.bindings, strict=True) if it.kind is kind for v in free_vars(b)
    }
    own = [
        n
        for n in above
        if n.kind is LoopKind.SERIAL and n.var in wanted and n.extent > 1 and _alone(n, block)
    ]
    if not own:
        return
    if block.is_reduction and any(
        n.extent > 1 and n.var not in wanted and n.kind is LoopKind.SERIAL and _alone(n, block) for n in above
    ):
        return  # partial results of several elements at a time are no registers
    chained = [own[-1]]
    for n in reversed(own[:-1]):
        if n.body is not chained[0]:
            break
        chained.insert(0, n)
    inner = chained[-1].var.name
    if len(chained) > 1 and block.is_reduction:
        inner = s.apply(Fuse(tuple(n.var.name for n in chained))).name
    lanes = target.lanes(max(block.store.buffer.dtype.bytes, 4))
    extent = s.loop(inner).extent
    if block.is_reduction:
        vectors = min(accumulators, extent // (2 * lanes))
        if vectors:
            _reduce_in_lanes(s, name, inner, lanes * (1 << (vectors.bit_length() - 1)))
    elif extent < lanes:
        s.attempt(Vectorize(inner))
    else:
        main = extent // lanes * lanes
        if main < extent:
            inner, tail = s.apply(LoopPartition(inner, (main,))).names
            s.attempt(Vectorize(tail))
        width = vector_width(block.store.value, main, lanes)
        s.attempt(Vectorize(s.apply(Split(inner, (None, width))).names[1]))


def _reduce_on_the_way(s: Draft, name: str, behind: str, target: Target) -> bool:
    """If the reduction `behind` takes up what `name` computes, and that takes long: one loop over whole vectors for
    both. Their number is that of the values which are computed side by side, enough for a sum too.
    """
    made, reduction = find_block(s.func, name), find_block(s.func, behind)
    if made.is_reduction or not reduction.is_reduction or not is_long(made.store.value):
        return False
    loops = [
        n
        for n in (loops_above(s.func, made)[-1], loops_above(s.func, reduction)[-1])
        if n.kind is LoopKind.SERIAL
    ]
    width = SIDE_BY_SIDE * target.lanes(max(made.store.buffer.dtype.bytes, 4))
    if len(loops) < 2 or any(n.extent % width for n in loops):
        return False
    try:
        with s.transaction():
            step, lane = s.apply(Split(loops[0].var.name, (None, width))).names
            s.apply(Vectorize(lane))
            if not _reduce_in_lanes(s, behind, loops[1].var.name, width, step):
                raise ScheduleError(f"{behind} has no partial results")
    except ScheduleError:
        return False
    return True


def _alone(loop: For, block: Block) -> bool:
    return all(b is block for b in blocks(loop))


def _reduce_in_lanes(s: Draft, name: str, loop: str, width: int, join: str | None = None) -> bool:
    """Accumulate in `width` lanes, in the loop `join` if it is given, then combine their halves until one value is
    left. False if that is not how the block reduces.
    """
    extent = s.loop(loop).extent
    steps = s.apply(Split(loop, (None, width)))
    rf = Rfactor(name, steps.names[1])
    if not s.attempt(rf):
        return False
    if join is not None:
        s.apply(Merge((join, steps.names[0])))
    _finish_partial(s, rf, join or steps.names[0])
    if extent % width:
        s.apply(LoopPartition(steps.names[0], (extent // width,)))
    merge = rf.merge_loop
    while width > 2:
        width //= 2
        halves = s.apply(Split(merge, (2, width)))
        s.apply(Unroll(halves.names[0]))
        rf = s.apply(Rfactor(name, halves.names[1], f"rf{width}"))
        _finish_partial(s, rf, halves.names[0])
        merge = rf.merge_loop
    s.apply(Unroll(merge))
    return True


def _finish_partial(s: Draft, rf: Rfactor, reduce: str) -> None:
    """The partial results of a factored reduction: a vector in registers, cleared before the loop `reduce`."""
    s.apply(SetScope(rf.name, Scope.REGISTER))
    s.apply(Vectorize(rf.loop))
    s.apply(DecomposeReduction(rf.name, reduce))
