"""Funcs with blocks that change elements one after another: every block stays in its own nest."""

from functools import cached_property

from tilewright.cost.terms import Terms, spread_terms
from tilewright.cost.work import block_seconds
from tilewright.families.elementwise.cost import alone_seconds
from tilewright.families.family import ScheduleRequest
from tilewright.families.ordered.recipe import is_ordered, schedule_each
from tilewright.families.space import OnePoint, Points
from tilewright.schedule.draft import Draft
from tilewright.target.target import Target
from tilewright.tir.stmt import blocks


class OrderedSpace(OnePoint):
    family = "ordered"

    def __init__(self, start: Draft, target: Target) -> None:
        self._start, self._target = start, target

    def seconds(self) -> float:
        return sum(self._parts)

    def terms(self, points: Points) -> Terms:
        ordered, alone = self._parts
        return spread_terms({"arithmetic": ordered, "beside": alone}, len(points))

    @cached_property
    def _parts(self) -> tuple[float, float]:
        """Of blocks that have an order, or that sum up; and of others."""
        every = list(blocks(self._start.func.body))
        alone = [b for b in every if not b.is_reduction and not is_ordered(b)]
        ordered = sum(block_seconds(b, 1, self._target.machine) for b in every if b not in alone)
        return ordered, alone_seconds(alone, self._target)

    def schedule(self) -> Draft:
        s = self._start.branch()
        schedule_each(
            s, [b.name for b in blocks(s.func.body) if not b.is_reduction or is_ordered(b)], self._target
        )
        return s


def ordered_space(request: ScheduleRequest) -> OrderedSpace | None:
    start = request.start
    if start is None or not any(is_ordered(b) for b in blocks(start.func.body)):
        return None
    return OrderedSpace(start, request.target)
