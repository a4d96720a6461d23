"""A design space: the ways to schedule a Func that one family spans.

A family looks at the structure of a Func and, where it fits, gives a Space: named knobs with their choices. A *point*
is one choice per knob. Ranking never builds anything: `cost` is a closed form over arrays of points. `build` makes the
schedule of one point out of ordinary steps. What a search found is stored as `KnobValues`, the knobs by name, so that
it applies to every Func that is equal up to renaming.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.terms import TERMS as TERMS
from tilewright.cost.terms import Terms as Terms
from tilewright.schedule.schedule import Schedule

KnobValues: TypeAlias = Mapping[str, int]
Points: TypeAlias = NDArray[np.int64]  # one row per point, one column per knob, holding the values chosen
Costs: TypeAlias = NDArray[
    np.float64
]  # predicted seconds of a run on one core; infinite where there is no schedule


@dataclass(frozen=True, slots=True)
class Knob:
    name: str
    choices: tuple[int, ...]


class Space(ABC):
    """What a family offers for one Func, target and set of constant params."""

    family: str  # whose space it is; stored with what a search found
    knobs: tuple[Knob, ...]

    @property
    def packing(self) -> tuple[str, ...]:
        """The knobs that decide how constants are laid out: points that agree in them read the same copies. All, unless
        a family knows better.
        """
        return tuple(k.name for k in self.knobs)

    @abstractmethod
    def points(self) -> Points:
        """All points worth ranking, in a fixed order."""

    @abstractmethod
    def cost(self, points: Points) -> Costs: ...

    def terms(self, points: Points) -> Terms:
        """What the cost of each point is made of, by some of `TERMS`; their sum is the cost, where that is finite.
        Nothing, where a family does not tell.
        """
        return {}

    @abstractmethod
    def build(self, decisions: KnobValues) -> Schedule:
        """The scheduled program of one point. ScheduleError where a step refuses it."""

    def has_point(self, point: NDArray[np.int64]) -> bool:
        """Can it be built? Where `points` are those that cost least, what others are does not depend on figures."""
        return bool((self.points() == point).all(axis=1).any())

    def completed(self, decisions: KnobValues) -> KnobValues:
        """With knobs that did not exist when they were recorded, as they would be by default."""
        return decisions

    def decisions(self, point: NDArray[np.int64]) -> dict[str, int]:
        return {k.name: int(v) for k, v in zip(self.knobs, point, strict=True)}

    def ranked(self) -> tuple[Points, Costs]:
        """All possible points with their costs, the cheapest first."""
        points = self.points()
        costs = self.cost(points)
        order = np.argsort(costs, kind="stable")
        order = order[np.isfinite(costs[order])]
        return points[order], costs[order]


class OnePoint(Space):
    """The space of a family that has one way to schedule a Func."""

    knobs = ()

    @abstractmethod
    def seconds(self) -> float:
        """What it costs."""

    @abstractmethod
    def schedule(self) -> Schedule: ...

    def points(self) -> Points:
        return np.zeros((1, 0), np.int64)

    def cost(self, points: Points) -> Costs:
        return np.full(len(points), self.seconds())

    def build(self, decisions: KnobValues) -> Schedule:
        return self.schedule()
