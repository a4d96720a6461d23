"""Funcs without a reduction: all blocks in memory order."""

from tilewright.families.elementwise.cost import alone_seconds
from tilewright.families.family import ScheduleRequest
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import OnePoint
from tilewright.schedule.draft import Draft
from tilewright.target.target import Target
from tilewright.tir.stmt import blocks


class ElementwiseSpace(OnePoint):
    family = "elementwise"

    def __init__(self, start: Draft, target: Target) -> None:
        self._start, self._target = start, target

    def seconds(self) -> float:
        return alone_seconds(blocks(self._start.func.body), self._target)

    def schedule(self) -> Draft:
        s = self._start.branch()
        schedule_rest(s, {b.name for b in blocks(s.func.body)}, self._target)
        return s


def elementwise_space(request: ScheduleRequest) -> ElementwiseSpace | None:
    start = request.plain
    if start is None or any(b.is_reduction for b in blocks(start.func.body)):
        return None
    return ElementwiseSpace(start, request.target)
