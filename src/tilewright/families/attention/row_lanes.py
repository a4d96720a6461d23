"""Rows of what is between two contractions: vectors along them, of a reduction through partial results in registers."""

from tilewright.cost.work import instructions
from tilewright.ir.expr import Expr, Scope, free_vars
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block, loops_above
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Unroll, Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.rfactor import Rfactor
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, For, IterKind, LoopKind, blocks

# Instructions above which two vectors are computed in turn: those of one wait for each other, and a core does not see
# far enough ahead to find the next. Swept on 13 functions of 16384 elements on a Xeon: with 0 all are as fast, with
# 1000 Erf takes 1.08 and Mish 1.3 times as long.
_LONG = 11
_SIDE_BY_SIDE = 2  # vectors; bound: the constants of more would not stay in registers


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
        width = _vector_width(block.store.value, main, lanes)
        s.attempt(Vectorize(s.apply(Split(inner, (None, width))).names[1]))


def _alone(loop: For, block: Block) -> bool:
    return all(b is block for b in blocks(loop))


def _reduce_in_lanes(s: Draft, name: str, loop: str, width: int) -> None:
    """Accumulate in `width` lanes, then combine their halves until one value is left, if that is how it reduces."""
    extent = s.loop(loop).extent
    steps = s.apply(Split(loop, (None, width)))
    rf = Rfactor(name, steps.names[1])
    if not s.attempt(rf):
        return
    _finish_partial(s, rf, steps.names[0])
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


def _finish_partial(s: Draft, rf: Rfactor, reduce: str) -> None:
    """The partial results of a factored reduction: a vector in registers, cleared before the loop `reduce`."""
    s.apply(SetScope(rf.name, Scope.REGISTER))
    s.apply(Vectorize(rf.loop))
    s.apply(DecomposeReduction(rf.name, reduce))


def _vector_width(value: Expr, extent: int, lanes: int) -> int:
    """Of how many elements of a loop to compute the value at a time: a vector, or several side by side."""
    several = _SIDE_BY_SIDE * lanes
    return several if instructions(value) > _LONG and extent % several == 0 else lanes
