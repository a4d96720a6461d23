"""Blocks whose iterations change the same elements one after another: scatters, selections.

The reduce loops keep their order, and with it the result. What the other loops choose is independent: an outermost
one is divided among workers, an innermost one becomes vectors where lanes are neighbours.
"""

import logging
from collections.abc import Sequence

from tilewright.families.gemm.register_tile import loops_of
from tilewright.families.parallel import is_worth_sharing, parallel_prefix
from tilewright.families.stream.elements import schedule_elements
from tilewright.ir.expr import Indices, Var, free_vars, loads
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.schedule.steps.loop_kind import Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.split import Split
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, IterKind

_log = logging.getLogger(__name__)


def is_ordered(block: Block) -> bool:
    """Is it a block that updates what others have made, in an order, or whose body is a program of its own? A reduction
    makes what it updates.
    """
    return block.init is None and (block.is_reduction or block.try_store is None)


def schedule_ordered(s: Draft, name: str, target: Target) -> None:
    """Schedule an ordered block that is alone under its loops."""
    block = find_block(s.func, name)
    loops = [loops_of(block)[it.var] for it in block.iters]
    kinds = [it.kind for it in block.iters]
    first = next((n for n, kind in enumerate(kinds) if kind is IterKind.REDUCE), len(kinds))
    if _has_neighbour_lanes(block):
        _vectorize(s, loops[-1], target.lanes(max(block.store.buffer.dtype.bytes, 4)))
    if first and is_worth_sharing(1, block):
        parallel_prefix(s, tuple(loops[:first]))


def schedule_each(s: Draft, names: Sequence[str], target: Target) -> None:
    """Every one of these blocks stays in its own nest: without a reduction in memory order, an ordered one as above.
    What a step refuses stays as it is.
    """
    for name in names:
        try:
            with s.transaction():
                is_in_order = is_ordered(find_block(s.func, name))
                (schedule_ordered if is_in_order else schedule_elements)(s, name, target)
        except ScheduleError as e:
            _log.debug("%s stays as it is: %s", name, e)


def _has_neighbour_lanes(block: Block) -> bool:
    """Does the innermost loop run along memory, wherever it chooses elements?"""
    store = block.try_store
    if store is None or block.iters[-1].kind is IterKind.REDUCE or block.iters[-1].extent < 4:
        return False
    inner = block.iters[-1]
    simplify = Simplifier(ranges(block))
    places = [store.indices, *(ld.indices for e in (*store.indices, store.value) for ld in loads(e))]
    return all(_is_along(p, inner.var, simplify) for p in places) and inner.var in free_vars(
        store.indices[-1]
    )


def _is_along(indices: Indices, var: Var, simplify: Simplifier) -> bool:
    """Do neighbours in `var` touch neighbours in memory, or the same element?"""
    used = [i for i in indices if var in free_vars(i)]
    if not used:
        return True
    terms = [(atom, k) for atom, k in simplify.linear(used[0]).terms if var in free_vars(atom)]
    return used == [indices[-1]] and terms == [(var, 1)]


def _vectorize(s: Draft, loop: str, lanes: int) -> None:
    extent = s.loop(loop).extent
    if extent < lanes:
        s.attempt(Vectorize(loop))
        return
    if extent % lanes:
        loop, tail = s.apply(LoopPartition(loop, (extent // lanes * lanes,))).names
        s.attempt(Vectorize(tail))
    s.attempt(Vectorize(s.apply(Split(loop, (None, lanes))).names[1]))
