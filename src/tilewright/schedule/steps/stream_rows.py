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
are computed again. `chunk`, `split` and `panel` are those of a `gir.plan.Plan`. Sums round differently: lanes have
partial ones.

Preconditions: the nests of the blocks follow each other; each block is one store, alone under plain loops; what one
reads of another it reads at its own iterators.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.gir.from_func import flow_graph_of
from tilewright.gir.lower import lower_flow_graph
from tilewright.gir.movement import added_movement
from tilewright.gir.plan import Plan, find_lanes
from tilewright.schedule.step import FuncStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.stmt import Seq, Stmt, blocks, seq
from tilewright.tir.touched import touched


@dataclass(frozen=True, slots=True)
class StreamRows(FuncStep):
    blocks: tuple[str, ...]
    width: int
    grain: int
    kept: tuple[str, ...] = ()
    chunk: int = 0
    split: int = 1
    panel: int = 1

    def anchor(self) -> str:
        return self.blocks[0] if self.blocks else "no block"

    def rewrite(self, func: Func) -> Func:
        if min(self.width, self.grain, self.split, self.panel) < 1 or self.chunk < 0:
            raise ScheduleError("width, grain, split and panel are at least one, and chunk is none or more")
        unknown = next((b for b in self.blocks if func.block(b) is None), None)
        if unknown is not None:
            raise ScheduleError(f"{func.name} has no block {unknown!r}")
        nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
        chosen = [n for n, nest in enumerate(nests) if any(b.name in self.blocks for b in blocks(nest))]
        first, last = chosen[0], chosen[-1] + 1
        if chosen != list(range(first, last)):
            raise ScheduleError("other nests stand between those of the blocks")
        graph = flow_graph_of(_apart(func, nests[first:last], (*nests[:first], *nests[last:])))
        lanes = find_lanes(graph)
        if not lanes:
            raise ScheduleError("nothing in memory lies side by side along an axis")
        kept = frozenset(self.kept)
        made = lower_flow_graph(
            graph, Plan(lanes, self.width, self.grain, kept, self.chunk, self.split, self.panel)
        )
        body = seq(*nests[:first], made.body, *nests[last:])
        used = touched(body)
        kept = [b for b in func.locals if used.any_of((b,))]
        return replace(func, body=body, locals=tuple(dict.fromkeys((*kept, *made.locals))))

    def broken_promise(self, before: Func, after: Func) -> str | None:
        return added_movement(before, after, is_divided=self.split > 1)


def _apart(func: Func, nests: Sequence[Stmt], others: Sequence[Stmt]) -> Func:
    """Some nests as a Func of their own: what others touch is a param of it."""
    mine, elsewhere = touched(seq(*nests)), [touched(s) for s in others]
    every = [b for b in (*func.params, *func.locals) if mine.any_of((b,))]
    params = tuple(b for b in every if b in func.params or any(t.any_of((b,)) for t in elsewhere))
    local = tuple(b for b in every if b not in params)
    return Func(func.name, params, local, seq(*nests), tuple(b for b in params if b in mine.writes))
