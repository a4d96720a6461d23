"""Funcs without a reduction: how the block that takes longest goes over its elements. Others, which it reads or which
read it, are scheduled around it.
"""

from itertools import product

import numpy as np

from tilewright.cost.parallel import ENOUGH_PARTS, even_terms, evenly
from tilewright.cost.terms import Ledger, Terms, added, spread_terms, stacked_terms
from tilewright.families.elementwise.cost import alone_seconds
from tilewright.families.family import ScheduleRequest
from tilewright.families.parallel import is_worth_sharing
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.stream.element_cost import ElementCost
from tilewright.families.stream.elements import TILES, VECTORS, element_step, find_elements, lanes_of
from tilewright.schedule.draft import Draft
from tilewright.schedule.steps.stream_elements import StreamElements
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.stmt import blocks


class MapSpace(Space):
    family = "stream"

    def __init__(self, start: Draft, target: Target) -> None:
        self._start, self._target = start, target
        every = list(blocks(start.func.body))
        main = max(every, key=lambda b: alone_seconds([b], target))
        self._main, self._rest = main.name, alone_seconds([b for b in every if b is not main], target)
        self._lanes = lanes_of(start, main.name, target)
        self._cost = ElementCost(find_elements(start, main.name, target), self._lanes, target.machine)
        self._is_shared = is_worth_sharing(target.lanes(4), main)
        is_transposed = self._cost.is_transposed
        self.knobs = (
            Knob("vectors", (1,) if is_transposed else VECTORS),
            Knob("tile", tuple(range(len(TILES))) if is_transposed else (0,)),
            Knob("streams", (0, 1)),
        )

    def points(self) -> Points:
        return np.array(list(product(*(k.choices for k in self.knobs))), np.int64)

    def cost(self, points: Points) -> Costs:
        alone = [self._cost.seconds(self._step(*map(int, p)).plan) for p in points]
        return np.array([self._rest + evenly(t, self._target.machine) for t in alone])

    def terms(self, points: Points) -> Terms:
        found = [Ledger() for _ in points]
        for p, told in zip(points, found, strict=True):
            self._cost.seconds(self._step(*map(int, p)).plan, told)
        alone = stacked_terms([even_terms(told.terms, self._target.machine) for told in found])
        return spread_terms(added(alone, {"beside": self._rest}), len(points))

    def _step(self, vectors: int, tile: int, streams: int) -> StreamElements:
        parts = ENOUGH_PARTS if self._is_shared else 1
        return element_step(self._main, self._lanes, vectors, tile, streams=bool(streams), parts=parts)

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        s.apply(self._step(decisions["vectors"], decisions["tile"], decisions["streams"]))
        schedule_rest(s, {b.name for b in blocks(self._start.func.body)} - {self._main}, self._target)
        return s


def map_space(request: ScheduleRequest) -> Space | None:
    start = request.plain
    if start is None or any(b.is_reduction for b in blocks(start.func.body)):
        return None
    try:
        return MapSpace(start, request.target)
    except ScheduleError:
        return None
