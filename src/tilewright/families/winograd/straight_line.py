"""Blocks whose value is chosen by small iterators among expressions, as the elements of a transformed tile are.

    for t, c, a: V[a, t, c] = X[t, 0, c] - X[t, 2, c] if a == 0 else X[t, 1, c] + X[t, 2, c] if a == 1 else …

Written out, nothing is left of the choice, and the expressions share their common parts:

    for t, c in vectors:  x0, x1, x2, … = X[t, 0, c], …;   V[0, t, c] = x0 - x2;   V[1, t, c] = x1 + x2;   …

The lanes are neighbours of the result. What consumes it, if one block does, takes it from registers.
"""

from collections.abc import Sequence

from tilewright.families.choosing import choosing
from tilewright.families.gemm.register_tile import loops_of
from tilewright.families.parallel import parallel_prefix
from tilewright.ir.expr import Var
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.schedule.steps.annotate import Annotate
from tilewright.schedule.steps.distribute import Distribute
from tilewright.schedule.steps.loop_kind import Unroll, Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.reverse_compute_at import ReverseComputeAt
from tilewright.schedule.steps.split import Split
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.stmt import PREFETCH, PREFETCH_ROW


def schedule_straight_line(
    s: Draft,
    name: str,
    target: Target,
    *,
    outer: Sequence[str] = (),
    follower: str | None = None,
    is_shared: bool = True,
    ahead: int = 0,
) -> None:
    """Write the block out. `outer` loops stay outside; `follower` takes the result, which is in registers then. What
    the loop around vectors reads `ahead` iterations later is asked for, if that is not 0.
    """
    block = find_block(s.func, name)
    loops = loops_of(block)
    last = block.store.indices[-1]
    if not isinstance(last, Var) or last not in loops:
        raise ScheduleError(f"{name} does not store along an iterator")
    cases = tuple(loops[it.var] for it in choosing(block))
    lane = loops[last]
    around = (*outer, *(n for n in loops.values() if n not in (*outer, *cases, lane)))
    s.apply(Reorder((*around, lane, *cases)))
    if follower is not None:
        s.apply(ReverseComputeAt(follower, (*around, lane, *cases)[-1]))
    lanes, extent = target.lanes(block.store.buffer.dtype.bytes), s.loop(lane).extent
    whole = extent // lanes * lanes
    if 0 < whole < extent:
        s.apply(LoopPartition(lane, (whole,)))
        vectors = [
            _write_out(s, f"{lane}_p{n}", tuple(f"{c}_p{n}" for c in cases), width, follower is not None)
            for n, width in enumerate((lanes, extent - whole))
        ]
    else:
        vectors = [_write_out(s, lane, cases, min(lanes, extent), follower is not None)]
    if ahead and around:
        s.apply(Annotate(around[-1], PREFETCH, ahead))
        for loop in vectors:
            s.apply(Annotate(loop, PREFETCH_ROW, 1))
    if is_shared:
        parallel_prefix(s, around)


def _write_out(s: Draft, lane: str, cases: tuple[str, ...], width: int, is_followed: bool) -> str:
    """Vectors of this width, one after the other; the loop over them."""
    around, lane = s.apply(Split(lane, (None, width))).names
    parts = [(lane, cases)]
    if is_followed:
        after = [s.apply(Distribute(n)).part(1) for n in reversed((lane, *cases))]
        parts.append((after[-1], tuple(reversed(after[:-1]))))
    for vector, chosen in parts:
        s.apply(Reorder((*chosen, vector)))
        for n in chosen:
            s.apply(Unroll(n))
        s.apply(Vectorize(vector))
    return around
