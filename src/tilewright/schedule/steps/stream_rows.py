"""stream_rows: blocks become one kernel that goes over rows, from memory to memory.

    for r, j: M[r] = max(M[r], X[r, j])                   for part in parallel(4):
    for r, j: P[r, j] = exp(X[r, j] - M[r])                   for row in range(16):
    for r, j: S[r] += P[r, j]                    ──>              for step: for lane: m_acc[lane] = max(…)
    for r, j: Y[r, j] = P[r, j] / S[r]                            …
                                                                  for step: for lane: P[…] = exp(…); s_acc[lane] += …
        StreamRows(("M", "P", "S", "Y"), 32, 16)                                   …
                                                                  for step: for lane: Y[…] = P[…] / S

They go through `gir`: what blocks do to the same elements is brought together; `width` elements are a vector loop,
`grain` rows a part. `kept` names blocks whose values stay near from one sweep over a row to the next; those of others
are computed again. What else there is are the words of a `gir.plan.Plan`. Sums round differently: lanes have partial
ones.

Preconditions: the nests of the blocks follow each other; each block is one store, alone under plain loops; what one
reads of another it reads at its own iterators. They may stand inside of loops (rows between two contractions, a block
of them at a time), which then divide the work: rows are one part there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.gir.flow_graph import FlowGraph
from tilewright.gir.from_func import flow_graph_of
from tilewright.gir.from_nests import nested_graph_of
from tilewright.gir.lower import NO_LOOPS, lower_flow_graph
from tilewright.gir.movement import added_movement
from tilewright.gir.plan import Plan, find_lanes
from tilewright.ir.expr import Var
from tilewright.schedule.names import bound_names, check_fresh
from tilewright.schedule.nests import find_run, replace_nests, replace_run, shared_buffers
from tilewright.schedule.step import FuncStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func


@dataclass(frozen=True, slots=True)
class StreamRows(FuncStep):
    blocks: tuple[str, ...]
    width: int
    grain: int
    kept: tuple[str, ...] = ()
    chunk: int = 0
    split: int = 1
    panel: int = 1
    in_place: bool = False
    ahead: int = 0
    streams: bool = False
    depth: int = 0

    def anchor(self) -> str:
        return self.blocks[0] if self.blocks else "no block"

    def rewrite(self, func: Func) -> Func:
        if min(self.width, self.grain, self.split, self.panel) < 1:
            raise ScheduleError("width, grain, split and panel are at least 1")
        if min(self.chunk, self.ahead, self.depth) < 0:
            raise ScheduleError("chunk, ahead and depth are at least 0")
        if not self.blocks:
            raise ScheduleError("no block is named")
        run = find_run(func, self.blocks)
        if not run.around:
            return replace_nests(func, self.blocks, lambda apart: self._streamed(flow_graph_of(apart)))
        if self.split > 1 or self.depth:
            raise ScheduleError("workers do not meet inside of loops: split and depth are for whole kernels")
        nested = nested_graph_of(run.nests, shared_buffers(func, run), run.around)
        made = self._streamed(nested.graph, nested.loops)
        check_fresh(func, (bound_names(made.body) | {b.name for b in made.locals}))
        return replace_run(func, run, made.body, made.locals)

    def _streamed(self, graph: FlowGraph, loops: Mapping[Var, Var] = NO_LOOPS) -> Func:
        lanes = find_lanes(graph)
        if not lanes:
            raise ScheduleError("nothing in memory lies side by side along an axis")
        kept = frozenset(self.kept)
        plan = Plan(
            lanes,
            self.width,
            self.grain,
            kept,
            self.chunk,
            self.split,
            self.panel,
            self.in_place,
            self.ahead,
            self.streams,
            self.depth,
        )
        return lower_flow_graph(graph, plan, loops)

    def broken_promise(self, before: Func, after: Func) -> str | None:
        return added_movement(before, after, is_divided=self.split > 1)
