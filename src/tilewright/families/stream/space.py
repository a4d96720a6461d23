"""Funcs that stream rows: how wide vectors are, and what stays near from one sweep over a row to the next."""

import numpy as np

from tilewright.cost.parallel import ranked_seconds
from tilewright.families.family import ScheduleRequest
from tilewright.families.parallel import is_worth_sharing, part_size
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.stream.cost import StreamCost
from tilewright.families.stream.match import try_flow_graph
from tilewright.gir.flow_graph import FlowGraph
from tilewright.gir.plan import find_lanes, later_read, stages
from tilewright.schedule.draft import Draft
from tilewright.schedule.steps.stream_rows import StreamRows
from tilewright.target.target import Target
from tilewright.tir.stmt import blocks

_VECTORS = (1, 2, 4, 8)


class StreamSpace(Space):
    family = "stream"

    def __init__(self, start: Draft, graph: FlowGraph, target: Target) -> None:
        self._start, self._graph, self._machine = start, graph, target.machine
        self._later = tuple(n.name for n in later_read(graph, stages(graph)))
        self._lanes = lanes = target.lanes(4)
        self.knobs = (
            Knob("width", tuple(lanes * n for n in _VECTORS)),
            Knob("keep", (0, 1) if self._later else (0,)),
        )
        self._cost = StreamCost(graph, lanes, target.machine)

    def points(self) -> Points:
        widths, keep = (k.choices for k in self.knobs)
        return np.array([(w, k) for w in widths for k in keep], np.int64)

    def cost(self, points: Points) -> Costs:
        seconds = [self._cost.seconds(int(w), keep=bool(k)) for w, k in points]
        parts = [self._rows(int(w)) for w, _ in points]
        return ranked_seconds(np.array(seconds), np.array(parts, np.float64), self._machine)

    def _rows(self, width: int) -> int:
        """Of them, or of vectors of them."""
        span, r = find_lanes(self._graph), self._graph
        rows = r.size(a for a in r.rows if a not in span)
        return rows * (r.extents[span[0]] // min(width, r.extents[span[0]]) if span[0] in r.rows else 1)

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        width = decisions["width"]
        kept = self._later if decisions["keep"] else ()
        rows = self._rows(width)
        grain = part_size(rows) if is_worth_sharing(self._lanes, *blocks(s.func.body)) else rows
        s.apply(StreamRows(self._graph.nodes[-1].name, width, grain, kept))
        return s


def stream_space(request: ScheduleRequest) -> Space | None:
    start = request.plain
    graph = None if start is None else try_flow_graph(start.func)
    return None if start is None or graph is None else StreamSpace(start, graph, request.target)
