"""Loops whose iterations depend on each other, around several blocks: the steps of a recurrent network.

    for t in range(T):                                        for t in range(T):
        for i, k: before[t, i, k] = h[t - 1, i, k]                in vectors
        for i, j, k: sum[t, i, j] += before[…] * w[k, j]   ──>    in register tiles, each with its part of
        for i, j: gates[t, i, j] = sum[t, i, j] + x[t, i, j]      what consumes it
        for i, j: h[t, i, j] = f(gates[t, i, j])                  in vectors

The order of the blocks stays as it is, and each is scheduled where it stands. What every iteration reads again, made
before the loop, is laid out for that. Loops without a dependence are divided among workers: those around the one that
has it, and parts of the rows, which are moved there. If there is none of these, workers share the columns of each
iteration, and meet after it: each has its part of all blocks, and so its part of the weights stays in its cache.
"""

from contextlib import suppress
from typing import NamedTuple

from tilewright.families.gemm.panels import lay_out_panels
from tilewright.families.gemm.recipe import (
    Contraction,
    reduction_order,
    register_tiles,
    try_contraction,
)
from tilewright.families.gemm.register_tile import ReductionNest, tile_nest
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.inline import single_consumer
from tilewright.families.recurrent.match import RecurrentNest
from tilewright.families.stream.elements import lanes_of, schedule_elements
from tilewright.ir.expr import Scope, Var, free_vars
from tilewright.ir.rewrite import substitute
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import contains_block, find_block, find_loop, loops_above
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Parallel, Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.merge import Merge
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.stmt import For


class RecurrentPlan(NamedTuple):
    """How the nests of a Func are scheduled."""

    row_part: int  # rows of a part that does all iterations; 0: rows are not divided
    column_part: int  # columns of a part of each iteration; 0: columns are not divided
    tile: RegisterTile
    unroll: int  # multiply-adds written out in a step
    prefetch: int  # steps of the sum ahead of which weights are asked for; 0: they are not


def schedule_recurrent(s: Draft, nest: RecurrentNest, plan: RecurrentPlan, target: Target) -> None:
    """Schedule the blocks of such a nest, divided as planned where that is possible. One that a step refuses stays as
    it is written.
    """
    shared = [n.var.name for n in nest.shared]
    if plan.row_part in nest.row_sizes:
        shared = divide_rows(s, nest, plan.row_part)
    columns = divide_columns(s, nest, plan.column_part) if plan.column_part in nest.column_sizes else ""
    if columns:
        shared = [*shared, columns]
    followers: set[str] = set()
    for block in nest.every:
        if block.is_reduction:
            with suppress(ScheduleError), s.transaction():
                followers.add(_tile(s, block.name, shared, plan, target))
    for block in nest.every:
        if not block.is_reduction and block.name not in followers:
            with suppress(ScheduleError), s.transaction():
                _schedule_elements(s, block.name, shared, target)
    if columns:
        s.attempt(Parallel(columns))
    elif nest.is_long:
        _share(s, shared)


def divide_rows(s: Draft, nest: RecurrentNest, size: int) -> list[str]:
    """Put a loop over parts of the rows around the dependence; the loops that blocks share then. ScheduleError if
    something is carried along it.
    """
    *outer, carried = (n.var.name for n in nest.shared)
    with s.transaction():
        parts = tuple(s.apply(Split(n.var.name, (None, size))).names[0] for n in nest.rows)
        s.apply(Merge(parts))
        s.apply(Reorder((parts[0], carried)))
    return [*outer, parts[0], carried]


def divide_columns(s: Draft, nest: RecurrentNest, size: int) -> str:
    """Put a loop over parts of the columns around all blocks of an iteration, and return it. ScheduleError if a part
    needs what another makes in the same iteration.
    """
    columns, shared = nest.columns[-1].extent, [n.var.name for n in nest.shared]
    parts: list[str] = []
    with s.transaction():
        for block, loop in zip(nest.every, nest.columns, strict=True):
            own, name = _own(s, block.name, shared), loop.var.name
            times = (loop.extent // columns,) if loop.extent > columns else ()
            names = s.apply(Split(name, (*times, columns // size, size))).names
            parts.append(names[-2])
            rest = [m for n in own for m in (names if n == name else (n,)) if m != names[-2]]
            s.apply(Reorder((names[-2], *rest)))
        s.apply(Merge(tuple(parts)))
    return parts[0]


def _share(s: Draft, shared: list[str]) -> None:
    """Divide what is outside of the dependence among workers."""
    outer = [n for n in shared[:-1] if s.loop(n).extent > 1]
    if not outer:
        return
    with suppress(ScheduleError), s.transaction():
        s.apply(Parallel(s.apply(Fuse(tuple(outer))).name if len(outer) > 1 else outer[0]))


def _own(s: Draft, name: str, shared: list[str]) -> list[str]:
    """The loops of a block that it does not share."""
    return [n.var.name for n in loops_above(s.func, find_block(s.func, name)) if n.var.name not in shared]


def _schedule_elements(s: Draft, name: str, shared: list[str], target: Target) -> None:
    """In vectors. A block that reads what it has stored in an earlier iteration (the cell of an LSTM, the state of a
    GRU) is no flow graph of elements; along its own loops it depends on nothing all the same.
    """
    try:
        with s.transaction():
            schedule_elements(s, name, target, is_shared=False)
    except ScheduleError:
        _vectorize_columns(s, name, shared, lanes_of(s, name, target))


def _vectorize_columns(s: Draft, name: str, shared: list[str], lanes: int) -> None:
    """Make lanes of the innermost loop, along which the block must store elements next to each other."""
    block, own = find_block(s.func, name), _own(s, name, shared)
    bound = {it.var: b for it, b in zip(block.iters, block.bindings, strict=True)}
    if not own or Var(own[-1]) not in free_vars(substitute(block.store.indices[-1], bound)):
        raise ScheduleError(f"{name} does not store along its innermost loop")
    extent, loop = s.loop(own[-1]).extent, own[-1]
    whole = extent // lanes * lanes
    parts = [loop]
    if 0 < whole < extent:
        s.apply(LoopPartition(loop, (whole,)))
        parts = [f"{loop}_p0", f"{loop}_p1"]
    if whole:
        s.apply(Vectorize(s.apply(Split(parts[0], (None, lanes))).names[1] if whole > lanes else parts[0]))
    if whole < extent:
        s.apply(Vectorize(parts[-1]))


def _tile(s: Draft, name: str, shared: list[str], plan: RecurrentPlan, target: Target) -> str:
    """Make register tiles of a contraction; returns the block that takes them up."""
    c = try_contraction(find_block(s.func, name))
    if c is None:
        raise ScheduleError(f"{name} is no contraction")
    follower, own = _follower(s, c, find_loop(s.func, shared[-1])), _own(s, name, shared)
    loops = {
        it.var: [n for n in own if Var(n) in free_vars(e)]
        for it, e in zip(c.block.iters, c.block.bindings, strict=True)
    }
    rows, cols, reduce, outer = (
        [n for it in group for n in loops[it.var]] for group in (c.rows, c.cols, reduction_order(c), c.batch)
    )
    # A loop of one iteration that nothing mentions any more is as good as a row.
    rows += [n for n in own if n not in (*rows, *cols, *reduce, *outer) and s.loop(n).extent == 1]
    if not rows or not cols or not reduce or len(rows + cols + reduce + outer) < len(own):
        raise ScheduleError(f"{name} has no rows, columns or steps of its own")
    tile = RegisterTile(min(plan.tile.rows, s.loop(rows[-1]).extent), plan.tile.columns)
    s.apply(SetScope(c.store.buffer.name, Scope.REGISTER))
    _lay_out(s, c, find_loop(s.func, shared[0]), min(tile.columns, s.loop(cols[-1]).extent))
    # A panel of columns stays near while all rows pass it.
    outside = (*outer, *cols[:-1], *rows[:-1], cols[-1], rows[-1])
    nest = ReductionNest(name, follower, outside, rows[-1], cols[-1], tuple(reduce))
    lanes = target.lanes(c.b.dtype.bytes)
    intrinsics = register_tiles(target, c.b.dtype)
    tile_nest(s, nest, tile, lanes, plan.unroll, intrinsics, is_shared=False, prefetch=plan.prefetch)
    return follower


def _follower(s: Draft, c: Contraction, loop: For) -> str:
    """The only consumer of the result, in the same iteration."""
    found = single_consumer(s.func, c.store.buffer)
    if (
        c.store.buffer not in s.func.locals
        or found is None
        or found.is_reduction
        or not contains_block(loop, found)
    ):
        raise ScheduleError(f"{c.block.name} has no follower in {loop.var.name}")
    return found.name


def _lay_out(s: Draft, c: Contraction, nest: For, width: int) -> None:
    """Store B in panels, if it was made for this before the nest."""
    if all(not contains_block(nest, w) for w in Dataflow(s.func).writers(c.b.buffer)):
        lay_out_panels(s, c, width)
