"""stream_elements: a block without a reduction becomes vectors along the memory, in parts.

    for i in range(128):                                   for part in parallel(16):
        for j in range(100):                                   for i in range(8):
            Y[i, j] = X[i, j] + B[j]        ──>                    for step: for lane in vectorized(16): …
                                                                   for lane in vectorized(4): …
        StreamElements("Y", 8, 2, parts=16)

It goes through `gir` (`gir/elements.py`): its loops are ordered as the output lies in memory, and cut where conditions
change. `lanes` elements are a vector, and `vectors` of them are computed in turn. Where an operand is transposed,
squares of it go through registers, in blocks of `across` by `along` elements, of which the next is that of the
neighbouring source if `sources_first`; `squares` of them are stored together. With `streams`, results go to memory past
the caches. At least as many `parts` are shared by workers, if there is that much; with 1 nothing is shared.

Preconditions: the block is one store, alone under plain loops, which may be inside of others; nothing that it reads is
what it stores. A block inside of other loops is not shared.
"""

from dataclasses import dataclass, replace

from tilewright.gir.elements import ElementPlan, lower_elements
from tilewright.gir.from_nest import element_nest
from tilewright.gir.movement import added_accesses
from tilewright.gir.names import Names
from tilewright.gir.tiles import TileShape
from tilewright.schedule.edit import replace_stmt
from tilewright.schedule.find import find_block, path_to, top_level
from tilewright.schedule.step import BlockStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func


@dataclass(frozen=True, slots=True)
class StreamElements(BlockStep):
    lanes: int
    vectors: int = 1
    across: int = 16
    along: int = 16
    sources_first: bool = False
    squares: int = 1
    streams: bool = False
    parts: int = 1

    @property
    def plan(self) -> ElementPlan:
        tile = TileShape(self.across, self.along, self.sources_first, self.squares)
        return ElementPlan(self.lanes, self.vectors, tile, self.streams, self.parts)

    def rewrite(self, func: Func) -> Func:
        if min(self.lanes, self.vectors, self.across, self.along, self.squares, self.parts) < 1:
            raise ScheduleError("all numbers are at least one")
        found = element_nest(path_to(func.body, find_block(func, self.block)), self.lanes)
        if self.parts > 1 and all(found.nest is not s for s in top_level(func)):
            raise ScheduleError("a block inside of other loops is not shared")
        names = Names(self.block, found.extents)
        made = lower_elements(found.piece, found.around, self.plan, names)
        return replace(replace_stmt(func, found.nest, made), locals=(*func.locals, *names.locals))

    def broken_promise(self, before: Func, after: Func) -> str | None:
        return added_accesses(before, after)
