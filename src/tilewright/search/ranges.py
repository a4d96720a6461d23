"""Schedules for a part of the sizes that Funcs may have, where the ones for all of them cost more there.

A Func with open dimensions is scheduled for their capacity. What is best for a hundred rows may be far from the best
for one: blocks of rows are the parts that a team shares, and a single block is a single part. So costs are compared at
a few sizes of each dimension, from the largest down: where another schedule is cheaper by enough, it becomes the one
for all sizes up to there (`tir/narrow.py`), and the next smaller size is compared with that.

Costs are those of any family, at shapes as small as the sizes. How large other dimensions are is not known: costs are
geometric means of those at both ends of their ranges. A schedule that was made for more costs what its point does with
knobs cut to what there is.

Weights are packed for a schedule. One that packs them in another way needs a copy of its own, so it has to gain more
(`Space.packing`). And what gains next to nothing of a run is not worth its code.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.work import block_seconds
from tilewright.families.families import all_families
from tilewright.families.space import Costs, KnobValues, Points, Space
from tilewright.schedule.draft import Draft
from tilewright.search.default import make_request
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.narrow import narrowed, open_ranges
from tilewright.tir.stmt import blocks

_log = logging.getLogger(__name__)

# Bound: what is tried.
_SIZES = (8, 1)  # of a dimension, up to which there may be a schedule of its own: a few rows, and one
_FRACTION = 2  # of its range at most, so that the one for all of it is left with as much
_TRIED = 4  # points that may be built
# Times that the schedule for more takes. Judged: the ranking of schedules is not more exact.
_LEAST_GAIN = 1.05
_PACKED_GAIN = (
    1.25  # likewise, if weights are there twice then; judged: a quarter of the time for so much memory
)
_SMALL_WEIGHTS = 1 << 18  # bytes that may be there twice; judged: what a program's code takes
_LEAST_SHARE = 0.005  # of a run at that size; judged: what nobody could measure
_USUAL_BYTES = 4  # of an element


class SchedulePoint(NamedTuple):
    """What a schedule is made from."""

    family: str
    decisions: KnobValues


class RangeSchedule(NamedTuple):
    """The schedule for all sizes of a dimension up to one, in multiples: `func` is as it was, but for no more."""

    dim: str
    most: int
    func: Func
    point: SchedulePoint
    draft: Draft


@dataclass(slots=True)
class RangeTask:
    """A Func of some calls, with its schedule for all sizes. `found` are its others, those of a dimension for the
    smallest sizes first: of several that fit, the first is taken.
    """

    func: Func
    calls: tuple[str, ...]
    whole: SchedulePoint
    found: list[RangeSchedule] = field(default_factory=list[RangeSchedule])

    def point_for(self, dim: str) -> SchedulePoint:
        """The schedule of the smallest sizes so far."""
        return next((s.point for s in self.found if s.dim == dim), self.whole)


class _Offer(NamedTuple):
    """The best points for a range, with what they cost, and what the schedule for more costs there."""

    task: RangeTask
    before: float
    best: list[tuple[float, Space, KnobValues]]

    @property
    def gain(self) -> float:
        """Seconds of a run."""
        return len(self.task.calls) * (self.before - self.best[0][0]) if self.best else 0.0


def find_range_schedules(
    tasks: Sequence[RangeTask], target: Target, constants: frozenset[str], multiples: Mapping[str, int]
) -> None:
    """Give the tasks schedules for smaller sizes, where they gain by them. `multiples` has the steps of dimensions."""
    dims = {name: ends for t in tasks for name, ends in open_ranges(t.func).items()}
    for dim, (least, most) in sorted(dims.items()):
        for size in dict.fromkeys(n // multiples[dim] for n in _SIZES):
            if not max(least, 1) <= size <= most // _FRACTION:
                continue
            here = [t for t in tasks if dim in open_ranges(t.func)]
            offers = [
                o
                for t in _worth_asking(here, dim, size, target)
                if (o := _offer(t, dim, size, target, constants)) is not None
            ]
            whole = sum(len(o.task.calls) * o.before for o in offers)
            for o in offers:
                if o.gain > _LEAST_SHARE * whole:
                    made = _built(o, dim, size, target, constants)
                    if made is not None:
                        o.task.found.insert(0, made)


def _worth_asking(tasks: Sequence[RangeTask], dim: str, size: int, target: Target) -> list[RangeTask]:
    """Those that take so much of a run that they might gain the least share of it. That is asked of what blocks cost
    roughly: families take their time, and most kernels of a network are small.
    """
    lanes = target.lanes(_USUAL_BYTES)
    seconds = [
        len(t.calls)
        * sum(
            block_seconds(b, lanes, target.machine)
            for b in blocks(narrowed(t.func, {dim: size}, is_compact=True).body)
        )
        for t in tasks
    ]
    least = _LEAST_SHARE * sum(seconds)
    return [t for t, s in zip(tasks, seconds, strict=True) if s >= least]


def _offer(task: RangeTask, dim: str, size: int, target: Target, constants: frozenset[str]) -> _Offer | None:
    samples = _samples(task.func, dim, size, target, constants)
    if not samples:
        return None
    before = _seconds_of(task.point_for(dim), samples)
    nbytes = sum(b.bytes for b in task.func.params if b.name in constants)
    best = _cheapest(samples, task.whole if nbytes > _SMALL_WEIGHTS else None)
    if nbytes > _SMALL_WEIGHTS:
        other = _cheapest(samples, None)
        least = best[0][0] if best else before
        if other and other[0][0] * _PACKED_GAIN < least:
            best = other
    return _Offer(task, before, [b for b in best if b[0] * _LEAST_GAIN < before])


def _built(
    offer: _Offer, dim: str, size: int, target: Target, constants: frozenset[str]
) -> RangeSchedule | None:
    func = narrowed(offer.task.func, {dim: size})
    offered = _sample(func, target, constants)
    for _, space, decisions in offer.best:
        own = offered.get(space.family)
        if own is None or not own.space.has_point(np.array(list(decisions.values()), np.int64)):
            continue
        try:
            draft = own.space.build(decisions)
        except ScheduleError as e:
            _log.debug("%s: %s cannot be %s: %s", func.name, space.family, decisions, e)
            continue
        assert isinstance(draft, Draft)
        return RangeSchedule(dim, size, func, SchedulePoint(space.family, decisions), draft)
    return None


class _Ranked(NamedTuple):
    """The points of a space, the cheapest first."""

    space: Space
    points: Points
    costs: Costs


_Sample = Mapping[str, _Ranked]  # by family


def _samples(
    func: Func, dim: str, size: int, target: Target, constants: frozenset[str]
) -> tuple[_Sample, ...]:
    """What families offer where the dimension has this size, and the others are at either end of their ranges."""
    ends = open_ranges(func)
    corners = [{n: end[side] for n, end in ends.items()} | {dim: size} for side in (1, 0)]
    if corners[0] == corners[1]:
        del corners[1]
    found = (_sample(narrowed(func, c, is_compact=True), target, constants) for c in corners)
    return tuple(sample for sample in found if sample)


def _sample(func: Func, target: Target, constants: frozenset[str]) -> _Sample:
    request = make_request(func, target, constants)
    found: dict[str, _Ranked] = {}
    for family in all_families():
        space = family(request)
        if space is None:
            continue
        points, costs = space.ranked()
        if len(points):
            found[space.family] = _Ranked(space, points, costs)
            request.limit = min(request.limit, float(costs[0]))
    return found


def _seconds_of(chosen: SchedulePoint, samples: Sequence[_Sample]) -> float:
    """What a schedule that was made for more takes. If its family is not for so little, what the best takes: nothing is
    gained then that anybody knows of.
    """
    total = 0.0
    for sample in samples:
        own = sample.get(chosen.family)
        cost = inf if own is None else _cost_of(own.space, chosen.decisions)
        total += log(cost if np.isfinite(cost) else min(float(r.costs[0]) for r in sample.values()))
    return exp(total / len(samples))


def _cost_of(space: Space, decisions: KnobValues) -> float:
    if {k.name for k in space.knobs} != set(decisions):
        return float("inf")
    point = np.array([[decisions[k.name] for k in space.knobs]], np.int64)
    return float(space.cost(_cut(point, space))[0])


def _cut(points: Points, space: Space) -> Points:
    """Each knob as large as the space has it, but no larger than it is."""
    out = points.copy()
    for n, knob in enumerate(space.knobs):
        choices = np.array(sorted(knob.choices), np.int64)
        at = np.searchsorted(choices, points[:, n], side="right") - 1
        out[:, n] = choices[np.maximum(at, 0)]
    return out


def _cheapest(
    samples: Sequence[_Sample], whole: SchedulePoint | None
) -> list[tuple[float, Space, KnobValues]]:
    """The best points of all families that are there in all samples, the cheapest first; only those that read weights
    as `whole` does, if it is given.
    """
    first, *others = samples
    found: list[tuple[float, Space, KnobValues]] = []
    for family, (space, points, costs) in first.items():
        there = [o[family].space for o in others if family in o]
        if len(there) < len(others) or any(len(o.knobs) != len(space.knobs) for o in there):
            continue
        if whole is not None:
            alike = _packed_alike(space, points, whole)
            points, costs = points[alike], costs[alike]
        total: Costs = np.log(costs)
        for other in there:
            total = total + np.log(other.cost(_cut(points, other)))
        order = np.argsort(total, kind="stable")[:_TRIED]
        mean = np.exp(total[order] / len(samples))
        found += [
            (float(t), space, space.decisions(points[i]))
            for t, i in zip(mean, order, strict=True)
            if np.isfinite(t)
        ]
    return sorted(found, key=lambda f: f[0])[:_TRIED]


def _packed_alike(space: Space, points: Points, whole: SchedulePoint) -> NDArray[np.bool_]:
    """Which points read weights as the schedule for all sizes does."""
    if space.family != whole.family or {k.name for k in space.knobs} != set(whole.decisions):
        return np.zeros(len(points), np.bool_)
    at = [n for n, k in enumerate(space.knobs) if k.name in space.packing]
    return (points[:, at] == [whole.decisions[space.knobs[n].name] for n in at]).all(axis=1)
