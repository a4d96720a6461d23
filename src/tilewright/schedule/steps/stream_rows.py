"""stream_rows: all blocks of a Func become one kernel that goes over rows, from memory to memory.

    for r, j: M[r] = max(M[r], X[r, j])                   for part in parallel(4):
    for r, j: P[r, j] = exp(X[r, j] - M[r])                   for row in range(16):
    for r, j: S[r] += P[r, j]                    ──>              for step: for lane: m_acc[lane] = max(…)
    for r, j: Y[r, j] = P[r, j] / S[r]                            …
                                                                  for step: for lane: P[…] = exp(…); s_acc[lane] += …
        StreamRows("Y", 32, 16)                                   …
                                                                  for step: for lane: Y[…] = P[…] / S

The Func goes through `gir`: what its blocks do to the same elements is brought together; `width` elements are a vector
loop, `grain` rows a part. `kept` names blocks whose values stay near from one sweep over a row to the next; those of
others are computed again. Sums round differently: lanes have partial ones.

Preconditions: each block is one store, alone under plain loops; what one reads of another it reads at its own
iterators.
"""

from dataclasses import dataclass

from tilewright.gir.from_func import flow_graph_of
from tilewright.gir.lower import lower_flow_graph
from tilewright.gir.plan import Plan, find_lanes
from tilewright.schedule.step import FuncStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func


@dataclass(frozen=True, slots=True)
class StreamRows(FuncStep):
    block: str
    width: int
    grain: int
    kept: tuple[str, ...] = ()
    chunk: int = 0

    def anchor(self) -> str:
        return self.block

    def rewrite(self, func: Func) -> Func:
        graph = flow_graph_of(func)
        lanes = find_lanes(graph)
        if not lanes:
            raise ScheduleError("nothing in memory lies side by side along an axis")
        return lower_flow_graph(graph, Plan(lanes, self.width, self.grain, frozenset(self.kept), self.chunk))
