"""Funcs that stream rows: how wide vectors are, and what stays near from one sweep over a row to the next."""

from dataclasses import replace
from itertools import product

import numpy as np

from tilewright.cost.parallel import ENOUGH_PARTS, ranked_seconds, ranked_terms
from tilewright.cost.terms import Ledger, Terms, spread_terms, stacked_terms
from tilewright.families.extract import extract_nests
from tilewright.families.parallel import is_worth_sharing, part_size
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.stream.cost import KeptPlace, RowPlan, StreamCost
from tilewright.families.stream.match import try_any_fold
from tilewright.gir.flow_graph import FlowGraph
from tilewright.gir.plan import find_lanes, result_place
from tilewright.schedule.draft import Draft
from tilewright.schedule.steps.stream_rows import StreamRows
from tilewright.support.errors import ScheduleError
from tilewright.target.machine import SHIPPED
from tilewright.target.target import Target
from tilewright.tir.passes.split_phases import MAX_LOCAL_BYTES, MAX_SHARED_SCRATCH
from tilewright.tir.stmt import blocks

# Vectors of a step that are tried; bound. Of those that memory makes equal, the first is taken: on an Ice Lake, a norm
# of 512 x 4096 takes 0.71 of the time with 4 that it takes with 2.
_VECTORS = (4, 8, 2, 1)
# Of scans across rows that lie side by side. Measured on cumulative sums over the first axis of 1024 x 1024: two
# threads wait for each other if it is 8.
_DEPTH = 32  # elements of rows between meetings
_STRIP = 512  # elements that lie side by side in a part, at least; bound: fewer do not come in time


class StreamSpace(Space):
    family = "stream"

    def __init__(self, start: Draft, graph: FlowGraph, target: Target) -> None:
        self._start, self._graph, self._machine = start, graph, target.machine
        self._later = tuple(n.name for n in graph.read_later)
        self._lanes = lanes = target.lanes(4)
        self._cost = StreamCost(graph, lanes, target.machine)
        self._is_across = find_lanes(graph)[0] in graph.rows
        has_scans = any(n.is_scan for n in graph.nodes)
        is_long = graph.size(graph.inner) > _DEPTH
        can_meet = has_scans and is_long and not any(n.is_fold for n in graph.nodes)
        is_one_sweep = all(n == 0 for f, n in graph.sweeps.items() if not graph.is_scalar(f))
        is_split = is_one_sweep and (self._is_across or graph.size(graph.rows) < ENOUGH_PARTS)
        self.knobs = (
            Knob("width", tuple(lanes * n for n in _VECTORS)),
            Knob("keep", _kept_where(graph)),
            Knob("split", (1, *_parts(graph)) if is_split and not has_scans else (1,)),
            Knob("panel", (0, 1) if self._is_across and is_one_sweep else (0,)),
            Knob("ahead", (0, *self._cost.later_sweeps)),
            Knob("streams", (0,) if self._is_across or is_one_sweep or has_scans else (0, 1)),
            Knob("depth", (0, _DEPTH) if self._is_across and can_meet else (0,)),
        )

    def points(self) -> Points:
        return np.array(list(product(*(k.choices for k in self.knobs))), np.int64)

    def cost(self, points: Points) -> Costs:
        plans = self._plans(points)
        parts = self._all_parts(plans)
        seconds = np.array([self._cost.seconds(p) for p in plans])
        costs = ranked_seconds(seconds, np.array(parts, np.float64), self._machine)
        return np.where([self._is_impossible(p, n) for p, n in zip(plans, parts, strict=True)], np.inf, costs)

    def terms(self, points: Points) -> Terms:
        plans, found = self._plans(points), [Ledger() for _ in points]
        for p, told in zip(plans, found, strict=True):
            self._cost.seconds(p, told)
        alone, parts = (
            stacked_terms([told.terms for told in found]),
            np.array(self._all_parts(plans), np.float64),
        )
        return spread_terms(ranked_terms(alone, parts, self._machine), len(points))

    def _plans(self, points: Points) -> list[RowPlan]:
        found = [(*map(int, p),) for p in points]
        return [RowPlan(w, KeptPlace(k), s, bool(p), a, bool(st), d) for w, k, s, p, a, st, d in found]

    def _all_parts(self, plans: list[RowPlan]) -> list[int]:
        return [self._rows(p.width, panel=p.panel, depth=p.depth) * p.split for p in plans]

    def _is_impossible(self, p: RowPlan, parts: int) -> bool:
        """Of what waits in the place of the result, its lines are in the caches. Workers meet in panels."""
        if p.depth and not p.panel:
            return True
        if p.keep is KeptPlace.IN_PLACE:
            return p.streams
        return p.keep is KeptPlace.IN_SCRATCH and self._is_too_much(p.width, parts)

    def _is_too_much(self, width: int, rows: int) -> bool:
        """Is there no room to keep the values of a row for each part?"""
        g = self._graph
        values = sum(n.out.dtype.bytes for n in g.nodes if n.name in self._later)
        row = values * g.size(g.inner) * (width if self._is_across else 1)
        return row > MAX_LOCAL_BYTES and rows // part_size(rows) * row > MAX_SHARED_SCRATCH

    def _panel(self, width: int, *, panel: bool, depth: int) -> int:
        """Vectors of rows taken together: all; or, where workers meet, as many as are worth a part."""
        vectors = max(self._graph.size(find_lanes(self._graph)) // width, 1) if panel else 1
        least = max(_STRIP // width, 1) if depth else vectors
        return min((n for n in range(1, vectors + 1) if vectors % n == 0 and n >= least), default=vectors)

    def _rows(self, width: int, *, panel: bool, depth: int) -> int:
        """Of them, or of what is taken of them at a time."""
        span, g = find_lanes(self._graph), self._graph
        rows = g.size(a for a in g.rows if a not in span)
        if not self._is_across:
            return rows
        vectors = g.extents[span[0]] // min(width, g.extents[span[0]])
        return rows * (vectors // self._panel(width, panel=panel, depth=depth))

    def step(self, decisions: KnobValues) -> StreamRows:
        width, panel, split = decisions["width"], bool(decisions["panel"]), decisions["split"]
        keep, depth = KeptPlace(decisions["keep"]), decisions["depth"]
        kept = tuple(n.name for n in self._cost.kept(keep))
        rows = self._rows(width, panel=panel, depth=depth)
        is_shared = is_worth_sharing(self._lanes, *blocks(self._start.func.body))
        grain = part_size(rows * split) if is_shared else rows * split
        names = tuple(n.name for n in self._graph.nodes)
        return StreamRows(
            names,
            width,
            grain,
            kept,
            split=split,
            panel=self._panel(width, panel=panel, depth=depth),
            in_place=keep is KeptPlace.IN_PLACE,
            ahead=decisions["ahead"],
            streams=bool(decisions["streams"]),
            depth=depth,
        )

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        s.apply(self.step(decisions))
        return s


def _kept_where(graph: FlowGraph) -> tuple[int, ...]:
    if not graph.read_later:
        return (KeptPlace.NOWHERE,)
    if result_place(graph) is None:
        return KeptPlace.NOWHERE, KeptPlace.IN_SCRATCH
    return tuple(KeptPlace)


def _parts(graph: FlowGraph) -> tuple[int, ...]:
    """Into how many parts rows may be divided: enough for any small team."""
    extent = graph.extents[graph.inner[0]]
    return tuple(
        [n for n in range(2 * ENOUGH_PARTS, ENOUGH_PARTS // 2, -1) if extent % n == 0 and extent > 4 * n][:1]
    )


def schedule_fold(s: Draft, name: str, target: Target) -> None:
    """Schedule a reduction or a scan by itself, with nothing around it; ScheduleError if it is none of a flow graph."""
    alone = Draft(extract_nests(s.func, {name}))
    graph = try_any_fold(alone.func)
    if graph is None:
        raise ScheduleError(f"{name} is no fold or scan of a flow graph")
    space = StreamSpace(alone, graph, replace(target, machine=SHIPPED))
    points, _ = space.ranked()
    s.apply(space.step(space.decisions(points[0])))
