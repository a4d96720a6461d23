"""Winograd convolution: GEMMs of transformed operands, whose tiles and filters are transformed before and after.

    filter  = f(W)                              once, of constants
    input   = g(X)      ┐
    gemm    = Σ input · filter                  for each block of tiles: all three, so that what they hand on
    tile    = h(gemm), and what consumes it     stays in a near cache
                        ┘
The transforms are straight-line blocks; the GEMM is one for every element of a transformed tile. The loop
that goes over blocks of tiles, if there are several, is the first of the three: they are merged in it, and it is
divided among workers. Otherwise each stage is.
"""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tilewright.families.choosing import choosing
from tilewright.families.gemm.panels import lay_out_panels
from tilewright.families.gemm.recipe import Contraction, register_tiles, try_contraction
from tilewright.families.gemm.register_tile import ReductionNest, loops_of, tile_nest
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.inline import single_consumer
from tilewright.families.winograd.straight_line import schedule_straight_line
from tilewright.ir.expr import Buffer, Scope, Var, loads
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.schedule.steps.cache_write import CacheWrite
from tilewright.schedule.steps.iterate_over import IterateOver
from tilewright.schedule.steps.loop_kind import Parallel
from tilewright.schedule.steps.merge import Merge
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Store, blocks


class WinogradBlocks(NamedTuple):
    """The blocks by name."""

    filters: tuple[str, ...]  # straight-line blocks that feed B
    inputs: tuple[str, ...]  # … and those that feed A
    gemm: str
    results: tuple[str, ...]  # … and those that read the GEMM


@dataclass(frozen=True, slots=True)
class WinogradPlan:
    """How the stages run."""

    tile: RegisterTile
    unroll: int  # multiply-adds written out in a step, at most
    columns_outside: bool  # does a panel of columns stay while rows pass by?
    prefetch: int  # steps ahead of which columns are asked for
    next_panel: (
        bool  # is the next panel of columns prefetched, or those of the next product, if rows are outside?
    )
    inside: bool  # block of tiles by block of tiles, if there are several
    ahead: int  # tiles ahead of which the image is asked for


def find_stages(func: Func) -> WinogradBlocks | None:
    """The stages of such a Func, if it is one: a single contraction, with straight-line blocks around it."""
    reductions = [b for b in blocks(func.body) if b.is_reduction]
    straight = [b for b in blocks(func.body) if choosing(b)]
    if len(reductions) != 1 or not straight:
        return None
    c = try_contraction(reductions[0])
    if c is None or not c.rows:
        return None

    def of(buffer: object) -> tuple[str, ...]:
        return tuple(b.name for b in straight if b.try_store is not None and b.store.buffer is buffer)

    reads = tuple(b.name for b in straight if c.store.buffer in _read(b))
    found = WinogradBlocks(of(c.b.buffer), of(c.a.buffer), c.block.name, reads)
    every = {*found.filters, *found.inputs, *found.results}
    return found if every == {b.name for b in straight} and found.inputs and found.results else None


def _read(block: Block) -> set[object]:
    return set() if block.try_store is None else {ld.buffer for ld in loads(block.store.value)}


def schedule_transformed(s: Draft, stages: WinogradBlocks, plan: WinogradPlan, target: Target) -> None:
    """Schedule the stages; blocks that are no stage stay as they are."""
    shared = _shared(s, stages) if plan.inside else {}
    for name in stages.filters:
        schedule_straight_line(s, name, target, is_shared=False)
    for name in stages.inputs:
        schedule_straight_line(
            s, name, target, outer=_own(shared, name), is_shared=not shared, ahead=plan.ahead
        )
    _tile(s, stages.gemm, _own(shared, stages.gemm), plan, target)
    for name in stages.results:
        store = find_block(s.func, name).store
        follower = _take_follower(s, store)
        schedule_straight_line(
            s, name, target, outer=_own(shared, name), follower=follower, is_shared=not shared
        )
    if shared:
        s.apply(Merge(tuple(shared.values())))
        s.apply(Parallel(next(iter(shared.values()))))


def _own(shared: dict[str, str], name: str) -> tuple[str, ...]:
    return (shared[name],) if name in shared else ()


def _shared(s: Draft, stages: WinogradBlocks) -> dict[str, str]:
    """The loop over blocks of tiles, of each stage that goes over them: over rows of tiles, where one block has all of
    them and their columns are an axis of their own. Empty if there is one block only.
    """
    c = _contraction(s, stages.gemm)
    if len(c.rows) < 2:
        return {}
    lead = c.rows[0].var
    if lead not in c.a.indices or lead not in c.store.indices:
        raise ScheduleError(f"{stages.gemm} does not go over blocks of tiles")
    found = {name: _loop_along(s, name, c.a.indices.index(lead)) for name in stages.inputs}
    found[stages.gemm] = loops_of(c.block)[lead]
    at = c.store.indices.index(lead)
    found |= {name: _loop_along(s, name, at, c.store.buffer) for name in stages.results}
    return found


def _loop_along(s: Draft, name: str, place: int, read: Buffer | None = None) -> str:
    """The loop of a block whose variable is the index at this place of what it stores, or of what it reads of a
    buffer.
    """
    block = find_block(s.func, name)
    accesses = [ld.indices for ld in loads(block.store.value) if ld.buffer is read]
    if read is None:
        accesses = [block.store.indices]
    found = {indices[place] for indices in accesses}
    if len(found) != 1 or not isinstance(var := found.pop(), Var):
        raise ScheduleError(f"{name} does not go over blocks of tiles")
    return loops_of(block)[var]


def _contraction(s: Draft, name: str) -> Contraction:
    found = try_contraction(find_block(s.func, name))
    assert found is not None, name
    return found


def _take_follower(s: Draft, store: Store) -> str | None:
    """The only block that reads the results, made to run over them; None if it has to read them from memory."""
    follower = single_consumer(s.func, store.buffer) if store.buffer in s.func.locals else None
    if follower is None or follower.is_reduction:
        return None
    if not s.attempt(IterateOver(follower.name, store.buffer.name, partial=True)):
        return None
    s.apply(SetScope(store.buffer.name, Scope.REGISTER))
    return follower.name


def _tile(s: Draft, name: str, outer: tuple[str, ...], plan: WinogradPlan, target: Target) -> None:
    """Register tiles of the GEMM, for each element of a transformed tile."""
    c = _contraction(s, name)
    loops = loops_of(c.block)
    copy = s.apply(CacheWrite(name, c.store.buffer.name, Scope.REGISTER)).copy
    row, col = loops[c.rows[-1].var], loops[c.cols[-1].var]
    lay_out_panels(s, c, min(plan.tile.columns, c.cols[-1].extent))
    batch = tuple(loops[it.var] for it in c.batch)
    reduce = tuple(loops[it.var] for it in c.reduce)
    order = (col, row) if plan.columns_outside else (row, col)
    nest = ReductionNest(name, copy, (*outer, *batch, *order), row, col, reduce)
    lanes = target.lanes(c.b.dtype.bytes)
    width = min(plan.tile.columns, c.cols[-1].extent)
    panel = width * prod(it.extent for it in c.reduce)
    if not plan.columns_outside:
        panel *= -(-c.cols[-1].extent // width)
    tile_nest(
        s,
        nest,
        plan.tile,
        lanes,
        plan.unroll,
        register_tiles(target, c.b.dtype),
        is_shared=not outer,
        prefetch=plan.prefetch,
        next_panel=panel if plan.next_panel else 0,
    )
