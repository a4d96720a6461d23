"""Funcs that move windows over an image: whether they are taken apart, and how many vectors run together."""

from itertools import product
from math import prod

import numpy as np

from tilewright.cost.parallel import ENOUGH_PARTS, ranked_seconds, ranked_terms
from tilewright.cost.terms import Ledger, Terms, added, spread_terms, stacked_terms
from tilewright.families.elementwise.cost import alone_seconds
from tilewright.families.extract import extract_nests
from tilewright.families.parallel import is_worth_sharing, part_size
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.stream.window_cost import WindowCost
from tilewright.gir.flow_graph import FlowGraph
from tilewright.gir.from_windows import window_graph_of
from tilewright.gir.stages import shared_axes
from tilewright.gir.windows import find_window, rewritten
from tilewright.ir.expr import TRUE
from tilewright.schedule.draft import Draft
from tilewright.schedule.steps.stream_windows import StreamWindows
from tilewright.support.errors import ScheduleError
from tilewright.target.machine import SHIPPED
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import blocks

_VECTORS = (2, 4)  # vectors computed together; bound: what is tried
# Of the first-level cache, what scratch may take: the rest is for what is read and written. Measured on a maximum of
# 3 x 3 with a stride of 2 of 64 x 112 x 112: 0.24 ms with a quarter to a half of it, 0.27 ms with three quarters.
_SCRATCH = 0.25


class WindowStageSpace(Space):
    family = "stream"

    def __init__(self, start: Draft, names: tuple[str, ...], graph: FlowGraph, target: Target) -> None:
        """`names` are the blocks that the graph is made of."""
        self._start, self._names, self._target, self._machine = start, names, target, target.machine
        self._beside = alone_seconds([b for b in blocks(start.func.body) if b.name not in names], target)
        self._lanes = target.lanes(graph.outputs[-1].out.dtype.bytes)
        self._graphs = _rewrites(graph)
        apart, pairs = ({k[n] for k in self._graphs} for n in (0, 1))
        self.knobs = (
            Knob("separate", tuple(sorted(map(int, apart)))),
            Knob("halve", tuple(sorted(map(int, pairs)))),
            Knob("vectors", _VECTORS),
        )

    def points(self) -> Points:
        every = product(*(k.choices for k in self.knobs))
        return np.array([p for p in every if (bool(p[0]), p[1]) in self._graphs], np.int64)

    def cost(self, points: Points) -> Costs:
        chosen, parts = self._chosen(points), self._parts()
        seconds = {
            k: WindowCost(g, self._lanes, self._machine).seconds(parts[k]) for k, g in self._graphs.items()
        }
        # Searches mix the knobs of points: not all mixtures are points.
        return self._beside + ranked_seconds(
            np.array([seconds.get(k, np.inf) for k in chosen]),
            np.array([parts.get(k, 1) for k in chosen], np.float64),
            self._machine,
        )

    def terms(self, points: Points) -> Terms:
        chosen, parts = self._chosen(points), self._parts()
        found = {k: Ledger() for k in self._graphs}
        for k, g in self._graphs.items():
            WindowCost(g, self._lanes, self._machine).seconds(parts[k], found[k])
        alone = stacked_terms([found[k].terms for k in chosen])
        ranked = ranked_terms(alone, np.array([parts[k] for k in chosen], np.float64), self._machine)
        return spread_terms(added(ranked, {"beside": self._beside}), len(points))

    def _chosen(self, points: Points) -> list[tuple[bool, int]]:
        return [(bool(s), int(h)) for s, h, _ in points]

    def _parts(self) -> dict[tuple[bool, int], int]:
        return {k: self._rows(g)[1] for k, g in self._graphs.items()}

    def _rows(self, graph: FlowGraph) -> tuple[int, int]:
        """Rows that a stage takes before the next, and how often that is done."""
        shared = shared_axes(graph)
        if not shared:
            return 1, 1
        extent, points = graph.extents[shared[-1]], graph.size(shared)
        made = [n.out for n in graph.nodes if n.out not in graph.params]
        one = sum(b.bytes for b in made) / points
        room = _SCRATCH * SHIPPED.l1_bytes
        fits = [
            n
            for n in range(2, extent + 1)
            if extent % n == 0 and n * one <= room and points // n >= ENOUGH_PARTS
        ]
        rows = max(fits, default=1)
        return rows, points // rows

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        every = {b.name for b in blocks(s.func.body)}
        own = [b for b in blocks(s.func.body) if b.name in self._names]
        separate, halve = bool(decisions["separate"]), decisions["halve"]
        rows, points = self._rows(self._graphs[separate, halve])
        grain = part_size(points) if is_worth_sharing(self._lanes, *own) else points
        s.apply(StreamWindows(self._names, self._lanes, decisions["vectors"], rows, grain, separate, halve))
        schedule_rest(s, every - set(self._names), self._target)
        return s


def _rewrites(graph: FlowGraph) -> dict[tuple[bool, int], FlowGraph]:
    """By whether windows are separated, and which are halved, if that changes anything. Windows that leave the image
    are always separated, so that their predicate is one on places.
    """
    whole = all(n.where is TRUE for n in graph.nodes)
    found: dict[tuple[bool, int], FlowGraph] = {}
    for separate, halve in product((True, False) if whole else (True,), (0, 1, 2)):
        made = rewritten(graph, separate=separate, halve=halve)
        if all(len(g.nodes) != len(made.nodes) for g in found.values()):
            found[separate, halve] = made
    return found


def windows_space(start: Draft, target: Target) -> WindowStageSpace | None:
    """Of all blocks; or of the fold and what follows it, where others before it are no part of the graph, such as a
    fill of the frame around an image.
    """
    every = list(blocks(start.func.body))
    folds = [n for n, b in enumerate(every) if b.is_reduction]
    for first in dict.fromkeys((0, folds[0])) if len(folds) == 1 else ():
        names = tuple(b.name for b in every[first:])
        graph = try_windows(extract_nests(start.func, set(names)) if first else start.func)
        if graph is not None:
            return WindowStageSpace(start, names, graph, target)
    return None


def try_windows(func: Func) -> FlowGraph | None:
    """The graph of a Func whose one fold moves windows over what it reads, along all axes that it folds."""
    try:
        graph = window_graph_of(func)
    except ScheduleError:
        return None
    (fold,) = (n for n in graph.nodes if n.is_fold)
    windows = [find_window(graph, fold, a) for a in fold.over]
    is_plain = fold.axes and prod(graph.extents[a] for a in fold.over) > 1
    return graph if is_plain and all(windows) else None
