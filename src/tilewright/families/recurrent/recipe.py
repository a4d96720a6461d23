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

import math
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from tilewright.cost.work import domain
from tilewright.families.elementwise.recipe import schedule_own
from tilewright.families.gemm.panels import lay_out_panels
from tilewright.families.gemm.recipe import (
    Contraction,
    reduction_order,
    register_tiles,
    try_contraction,
)
from tilewright.families.gemm.register_tile import Nest, tile_nest
from tilewright.families.gemm.tiles import Tile
from tilewright.families.inline import single_consumer
from tilewright.families.parallel import is_worth_sharing
from tilewright.ir.expr import Scope, Var, free_vars
from tilewright.schedule.draft import Draft
from tilewright.schedule.moves import holds, top_level
from tilewright.schedule.nest import chain, find_block, find_loop, loops_above
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Parallel
from tilewright.schedule.steps.merge import Merge
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.independence import dependence
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, IterKind, Seq, blocks

# The register tile of so many rows and columns of a contraction in such a loop: its size, and the multiply-adds written
# out in a step.
ChooseTile: TypeAlias = Callable[[Contraction, int, int], tuple[Tile, int]]

# Rows of a part, at least: while they are computed, what all parts read comes from a near cache, or from a far one.
_ROWS_NEAR, _ROWS_FAR = 6, 16
# Reduction steps of a part of an iteration, at least: several times what claiming it and meeting afterwards cost.
_COLUMN_STEPS = 16384
_COLUMN_VECTORS = 4  # of a part, at least: fewer sums than that wait for each other


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
    is_long = is_worth_sharing(target.lanes(4), *every)
    columns = ""
    if is_long:
        shared = _divide_rows(s, every, shared, target)
        if all(s.loop(n).extent == 1 for n in shared[:-1]):
            columns = _divide_columns(s, every, shared, target)
    if columns:
        shared = [*shared, columns]
    followers: set[str] = set()
    for block in every:
        if block.is_reduction:
            with suppress(ScheduleError), s.transaction():
                followers.add(_tile(s, block.name, shared, choose, target))
    for block in every:
        if not block.is_reduction and block.name not in followers:
            with suppress(ScheduleError), s.transaction():
                schedule_own(s, block.name, _own(s, block.name, shared), target, is_shared=False)
    if columns:
        s.attempt(Parallel(columns))
    elif is_long:
        _share(s, shared)


def _divide_rows(s: Draft, every: list[Block], shared: list[str], target: Target) -> list[str]:
    """Put a loop over parts of the first loop that all blocks have around the dependence, if nothing is carried along
    it; the loops that blocks share then.
    """
    rows = [next(iter(_own(s, b.name, shared)), "") for b in every]
    extents = {s.loop(n).extent if n else 1 for n in rows}
    again = sum(domain(b) * _bytes(b) for b in every if b.is_reduction)
    for extent in (*extents, *(s.loop(n).extent for n in shared)):
        again //= extent
    least = _ROWS_NEAR if again <= target.l2_bytes // 2 else _ROWS_FAR
    sizes = [n for n in range(least, min(extents) // 2 + 1) if min(extents) % n == 0]
    if len(extents) > 1 or not sizes:
        return shared
    try:
        with s.transaction():
            parts = tuple(s.apply(Split(n, (None, sizes[0]))).names[0] for n in rows)
            s.apply(Merge(parts))
            s.apply(Reorder((parts[0], shared[-1])))
    except ScheduleError:
        return shared
    return [*shared[:-1], parts[0], shared[-1]]


def _divide_columns(s: Draft, every: list[Block], shared: list[str], target: Target) -> str:
    """Put a loop over parts of the columns around all blocks of an iteration, and return it; "" if they are no parts
    of all. Columns are those of the last block; others may have several times as many (the gates of a cell).
    """
    loops = [_column_loop(s, b, shared) for b in every]
    if "" in loops or len(every) < 2:
        return ""
    extents = [s.loop(n).extent for n in loops]
    columns, lanes = extents[-1], target.lanes(4)
    work = sum(domain(b) for b in every if b.is_reduction) // math.prod(s.loop(n).extent for n in shared)
    sizes = [
        n
        for n in range(_COLUMN_VECTORS * lanes, columns // 2 + 1, lanes)
        if columns % n == 0 and work * n // columns >= _COLUMN_STEPS
    ]
    if not sizes or any(e % columns for e in extents):
        return ""
    parts: list[str] = []
    try:
        with s.transaction():
            for block, loop, extent in zip(every, loops, extents, strict=True):
                own = _own(s, block.name, shared)
                times = (extent // columns,) if extent > columns else ()
                names = s.apply(Split(loop, (*times, columns // sizes[0], sizes[0]))).names
                parts.append(names[-2])
                rest = [m for n in own for m in (names if n == loop else (n,)) if m != names[-2]]
                s.apply(Reorder((names[-2], *rest)))
            s.apply(Merge(tuple(parts)))
    except ScheduleError:
        return ""
    return parts[0]


def _column_loop(s: Draft, block: Block, shared: list[str]) -> str:
    """The loop of the block's last iterator that is no reduction; "" if that is not one loop of its own."""
    last = [b for it, b in zip(block.iters, block.bindings, strict=True) if it.kind is IterKind.SPATIAL][-1]
    return last.name if isinstance(last, Var) and last.name in _own(s, block.name, shared) else ""


def _bytes(block: Block) -> int:
    return block.store.buffer.dtype.bytes if block.try_store is not None else 0


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


def _tile(s: Draft, name: str, shared: list[str], choose: ChooseTile, target: Target) -> str:
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
    tile, unroll = choose(c, s.loop(rows[-1]).extent, s.loop(cols[-1]).extent)
    s.apply(SetScope(c.store.buffer.name, Scope.REGISTER))
    _lay_out(s, c, find_loop(s.func, shared[0]), min(tile.columns, s.loop(cols[-1]).extent))
    # A panel of columns stays near while all rows pass it.
    outside = (*outer, *cols[:-1], *rows[:-1], cols[-1], rows[-1])
    nest = Nest(name, follower, outside, rows[-1], cols[-1], tuple(reduce))
    lanes = target.lanes(c.b.dtype.bytes)
    tile_nest(s, nest, tile, lanes, unroll, register_tiles(target, c.b.dtype), is_shared=False)
    return follower


def _follower(s: Draft, c: Contraction, loop: For) -> str:
    """The only consumer of the result, in the same iteration."""
    found = single_consumer(s.func, c.store.buffer)
    if c.store.buffer not in s.func.locals or found is None or found.is_reduction or not holds(loop, found):
        raise ScheduleError(f"{c.block.name} has no follower in {loop.var.name}")
    return found.name


def _lay_out(s: Draft, c: Contraction, nest: For, width: int) -> None:
    """Store B in panels, if it was made for this before the nest."""
    if all(not holds(nest, w) for w in Dataflow(s.func).writers(c.b.buffer)):
        lay_out_panels(s, c, width)
