"""Loops whose iterations depend on each other, around several blocks: the steps of a recurrent network.

    for t in range(T):                                        for t in range(T):
        for i, k: before[t, i, k] = h[t - 1, i, k]                in vectors
        for i, j, k: sum[t, i, j] += before[…] * w[k, j]   ──>    in register tiles, each with its part of
        for i, j: gates[t, i, j] = sum[t, i, j] + x[t, i, j]      what consumes it
        for i, j: h[t, i, j] = f(gates[t, i, j])                  in vectors

The loops stay as they are, and so does the order of the blocks; each block is scheduled where it stands. What every
iteration reads again, made before the loop, is laid out for that. Loops outside of the dependence are divided among
workers.
"""

from collections.abc import Callable
from typing import TypeAlias

from tilewright.ir.expr import Scope, Var
from tilewright.ir.layout import Layout, Reorder, Split
from tilewright.schedule.moves import holds, top_level
from tilewright.schedule.nest import chain, find_block, find_loop, loops_above
from tilewright.schedule.recipes.contraction import (
    Contraction,
    reduction_order,
    register_tiles,
    try_contraction,
)
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.inline import consumers, domain, single_consumer
from tilewright.schedule.recipes.parallel import PARALLEL_STEPS
from tilewright.schedule.recipes.register_tile import Nest, loops_of, tile_nest
from tilewright.schedule.recipes.spatial import schedule_own
from tilewright.schedule.recipes.tiles import Tile
from tilewright.schedule.steps.loop_kind import Parallel
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.independence import dependence
from tilewright.tir.func import Func
from tilewright.tir.stmt import For, Seq, blocks

# The register tile of a contraction in such a loop: its size, and the multiply-adds that are written out in a step.
ChooseTile: TypeAlias = Callable[[Contraction], tuple[Tile, int]]


def carried_nests(func: Func) -> list[For]:
    """The nests around several blocks in which a loop depends on its own earlier iterations, or has a single one: so
    much does a recurrent network in which every step is a call of its own have of its loop.
    """
    found = [n for n in top_level(func) if isinstance(n, For) and isinstance(chain(n)[-1].body, Seq)]
    return [n for n in found if any(_is_carried(func, loop) for loop in chain(n))]


def _is_carried(func: Func, loop: For) -> bool:
    return loop.extent == 1 or dependence(func, loop) is not None


def schedule_carried(s: Draft, nest: For, choose: ChooseTile, target: Target) -> None:
    """Schedule the blocks of such a nest. One that a step refuses stays as it is written."""
    shared = [n.var.name for n in chain(nest)]
    every = list(blocks(nest))
    followers: set[str] = set()
    for block in every:
        kept = s.module, s.trace
        try:
            if block.is_reduction:
                followers.add(_tile(s, block.name, shared, choose, target))
        except ScheduleError:
            s.module, s.trace = kept
    for block in every:
        if not block.is_reduction and block.name not in followers:
            kept = s.module, s.trace
            try:
                schedule_own(s, block.name, _own(s, block.name, shared), target, is_shared=False)
            except ScheduleError:
                s.module, s.trace = kept
    work = sum(domain(b) for b in every)
    if nest.extent > 1 and work >= PARALLEL_STEPS:
        s.attempt(Parallel(nest.var.name))


def _own(s: Draft, name: str, shared: list[str]) -> list[str]:
    """The loops of a block that it does not share."""
    return [n.var.name for n in loops_above(s.func, find_block(s.func, name)) if n.var.name not in shared]


def _tile(s: Draft, name: str, shared: list[str], choose: ChooseTile, target: Target) -> str:
    """Make register tiles of a contraction; returns the block that takes them up."""
    c = try_contraction(find_block(s.func, name))
    if c is None:
        raise ScheduleError(f"{name} is no contraction")
    follower = _follower(s, c, find_loop(s.func, shared[-1]))
    tile, unroll = choose(c)
    s.apply(SetScope(c.store.buffer.name, Scope.REGISTER))
    loops, own = loops_of(c.block), _own(s, name, shared)
    rows = [loops[it.var] for it in c.rows if loops[it.var] in own]
    *outer, col = [loops[it.var] for it in (*c.batch, *c.cols) if loops[it.var] in own]
    reduce = reduction_order(c)
    if not rows or any(loops[it.var] not in own for it in reduce):
        raise ScheduleError(f"{name} has no rows of its own")
    _lay_out(s, c, nest_of_loop=find_loop(s.func, shared[0]), width=min(tile.columns, c.cols[-1].extent))
    # A panel of columns stays near while all rows pass it.
    nest = Nest(
        name,
        follower,
        (*outer, *rows[:-1], col, rows[-1]),
        rows[-1],
        col,
        tuple(loops[it.var] for it in reduce),
    )
    lanes = target.lanes(c.b.dtype.bytes)
    tile_nest(s, nest, tile, lanes, unroll, register_tiles(target, c.b.dtype), is_shared=False)
    return follower


def _follower(s: Draft, c: Contraction, loop: For) -> str:
    """The only consumer of the result, which reads it element by element in the same iteration."""
    found = single_consumer(s.func, c.store.buffer)
    if c.store.buffer not in s.func.locals or found is None or found.is_reduction or not holds(loop, found):
        raise ScheduleError(f"{c.block.name} has no follower in {loop.var.name}")
    return found.name


def _lay_out(s: Draft, c: Contraction, *, nest_of_loop: For, width: int) -> None:
    """Store B, if it was made for this before the loop, in panels [batch, column panel, k…, width]."""
    b = c.b.buffer
    made_before = all(not holds(nest_of_loop, w) for w in Dataflow(s.func).writers(b))
    if b not in s.func.locals or not made_before or len(consumers(s.func, b)) > 1:
        return
    column = c.cols[-1].var
    reduce = {it.var for it in c.reduce}
    if c.b.indices[-1] is not column or not all(isinstance(i, Var) for i in c.b.indices):
        return
    at = len(c.b.indices) - 1
    walked = [d for d, i in enumerate(c.b.indices) if i in reduce]
    outer = [d for d in range(at) if d not in walked]
    s.apply(TransformLayout(b.name, Layout((Split(at, width), Reorder((*outer, at, *walked, at + 1))))))
