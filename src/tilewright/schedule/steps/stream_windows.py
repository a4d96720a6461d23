"""stream_windows: a fold over windows becomes one kernel, in stages that stay near.

    for c, p, q: pad[c, p, q] = select(…, x[…], -inf)            for part in parallel(16):
    for c, h, w, k, l:                                   ──>         for row in range(8):
        y[c, h, w] = max(y[…], pad[c, h + k, w + l])                     for h: for lane: lines[…] = max(x[…], …)
                                                                         for h: for lane: y[…] = max(lines[…], …)
        StreamWindows(("pad", "y"), 16, 2, 20, 8, separate=True)

They go through `gir`: what a padding adds becomes a predicate of the fold. With `separate` windows along several axes
become windows along one each, of which the first are taken for all places (`gir/windows.py`). With `halve` those of a
maximum become pairs of smaller ones: 1 for windows over what others have made, 2 for all. `lanes` elements are a
vector, of which `vectors` are computed together; a stage takes `rows` rows before the next begins, and `grain` times as
many are a part (`gir/stages.py`). Separated sums round differently.

Preconditions: the nests of the blocks follow each other; each block is one store, alone under plain loops; one of them
reduces, and those that it reads only move elements.
"""

from dataclasses import dataclass

from tilewright.gir.from_windows import window_graph_of
from tilewright.gir.movement import movement_of
from tilewright.gir.stages import WindowPlan, lower_stages
from tilewright.gir.windows import rewritten
from tilewright.schedule.nests import replace_nests
from tilewright.schedule.step import FuncStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func


@dataclass(frozen=True, slots=True)
class StreamWindows(FuncStep):
    blocks: tuple[str, ...]
    lanes: int
    vectors: int
    rows: int
    grain: int
    separate: bool = False
    halve: int = 0

    def anchor(self) -> str:
        return self.blocks[0] if self.blocks else "no block"

    def rewrite(self, func: Func) -> Func:
        if min(self.lanes, self.vectors, self.rows, self.grain) < 1 or self.halve not in (0, 1, 2):
            raise ScheduleError("lanes, vectors, rows and grain are at least one, and halve at most two")
        return replace_nests(func, self.blocks, self._streamed)

    def _streamed(self, apart: Func) -> Func:
        graph = rewritten(window_graph_of(apart), separate=self.separate, halve=self.halve)
        return lower_stages(graph, WindowPlan(self.lanes, self.vectors, self.rows, self.grain))

    def broken_promise(self, before: Func, after: Func) -> str | None:
        """Of the promise of `gir/movement.py` that of memory: stages have scratch so that there is less to compute."""
        old, now = movement_of(before), movement_of(after, is_one_pass=True)
        return None if now.memory <= old.memory else f"moves more than the blocks did: {now}; not {old}"
