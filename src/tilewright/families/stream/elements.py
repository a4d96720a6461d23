"""Blocks without a reduction: which plan each has, by what it moves and computes.

Where a block is scheduled beside others (padding before a convolution, copies, what follows a sum), nothing is a knob,
and the figures of the machine that is shipped decide. A Func of elements alone has a space (`map_space.py`).
"""

import math
from collections.abc import Sequence
from itertools import product

from tilewright.cost.caches import LINE_BYTES
from tilewright.cost.parallel import ENOUGH_PARTS
from tilewright.families.inline import consumers
from tilewright.families.parallel import is_worth_sharing
from tilewright.families.stream.element_cost import ElementCost
from tilewright.families.stream.row_space import schedule_fold
from tilewright.gir.from_nest import ElementNest, element_nest
from tilewright.gir.from_scan import reads_own
from tilewright.gir.tiles import TileShape
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block, loops_above, path_to
from tilewright.schedule.steps.compute_at import ComputeAt
from tilewright.schedule.steps.stream_elements import StreamElements
from tilewright.target.machine import SHIPPED, Machine
from tilewright.target.target import Target
from tilewright.tir.stmt import LoopKind

VECTORS = (1, 2)  # vectors computed in turn; bound: what is tried
# Bound: what is tried, in elements. Whole lines on both sides; longer runs of results, for which the source is read in
# order; and runs of the source of a page, of which the results are a line or two of each of their rows.
TILES = (TileShape(16, 16), TileShape(16, 64, sources_first=True), TileShape(1024, 32))
_MOST_SQUARES = 2  # stored together; bound: more do not fit the registers


def find_elements(s: Draft, name: str, target: Target) -> ElementNest:
    """ScheduleError if the block is more than elements."""
    block = find_block(s.func, name)
    return element_nest(path_to(s.func.body, block), lanes_of(s, name, target))


def lanes_of(s: Draft, name: str, target: Target) -> int:
    return target.lanes(max(find_block(s.func, name).store.buffer.dtype.bytes, 4))


def element_step(
    name: str, lanes: int, vectors: int, tile: int, *, streams: bool, parts: int
) -> StreamElements:
    """With as many squares as make whole lines of results, counted in elements of 4 bytes."""
    t, squares = TILES[tile], max(1, min(LINE_BYTES // (4 * lanes), _MOST_SQUARES))
    return StreamElements(
        name, lanes, vectors, t.across, t.along, t.sources_first, squares, streams=streams, parts=parts
    )


def ranked_steps(
    name: str, nest: ElementNest, lanes: int, parts: int, machine: Machine
) -> Sequence[StreamElements]:
    """All plans, the quickest first."""
    cost = ElementCost(nest, lanes, machine)
    tiles = range(len(TILES)) if cost.is_transposed else (0,)
    every = [
        element_step(name, lanes, v, t, streams=st, parts=parts)
        for v, t, st in product((1,) if cost.is_transposed else VECTORS, tiles, (False, True))
    ]
    return sorted(every, key=lambda step: cost.seconds(step.plan))


def schedule_elements(s: Draft, name: str, target: Target, *, is_shared: bool | None = None) -> None:
    """Schedule a block without a reduction that is alone under its loops; shared if that is worth it, or as is said."""
    block = find_block(s.func, name)
    if not block.iters or block.try_store is None:
        return
    if reads_own(block.store):
        schedule_fold(s, name, target)
        return
    if is_shared is None:
        is_shared = is_worth_sharing(target.lanes(4), block)
    lanes = lanes_of(s, name, target)
    nest = find_elements(s, name, target)
    s.apply(ranked_steps(name, nest, lanes, ENOUGH_PARTS if is_shared else 1, SHIPPED)[0])


def bring_near(s: Draft, name: str, target: Target) -> bool:
    """Run a producer inside the parts of its consumer, where each part reads a piece of its own of what it makes: so
    the piece is in the nearest cache when it is read, and workers meet once less. False if that is not so.
    """
    if not move_near(s, name, target):
        return False
    schedule_elements(s, name, target, is_shared=False)
    return True


def move_near(s: Draft, name: str, target: Target) -> bool:
    """Move a producer there; False if it stays where it is."""
    block = find_block(s.func, name)
    made = None if block.try_store is None else block.store.buffer
    if made not in s.func.locals:
        return False
    above = [loops_above(s.func, u) for u in consumers(s.func, made)]
    if not above or any(not path or path[0] is not above[0][0] for path in above):
        return False
    part = above[0][0]
    if part.kind is not LoopKind.PARALLEL or not s.attempt(ComputeAt(name, part.var.name)):
        return False
    piece = math.prod(n.extent for n in loops_above(s.func, find_block(s.func, name))[1:])
    if piece * part.extent > made.size or piece * made.dtype.bytes > target.machine.l2_bytes // 2:
        s.undo()  # parts overlap and would make the same elements, or a piece is not near
        return False
    return True
