"""A design space whose points are those of another, with better costs: what all such have in common."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilewright.families.space import Costs, KnobValues, Points, Space, Terms
from tilewright.learned.features import SpaceFeatures
from tilewright.schedule.schedule import Schedule


class CorrectedSpace(Space):
    """`kernel` has the features of the kernel. Costs are for those that inherit from it."""

    def __init__(self, inner: Space, kernel: Mapping[str, float]) -> None:
        self.family, self.knobs, self._inner, self._kernel = inner.family, inner.knobs, inner, kernel

    @property
    def packing(self) -> tuple[str, ...]:
        return self._inner.packing

    def points(self) -> Points:
        return self._inner.points()

    def terms(self, points: Points) -> Terms:
        return self._inner.terms(points)

    def has_point(self, point: NDArray[np.int64]) -> bool:
        return self._inner.has_point(point)

    def completed(self, decisions: KnobValues) -> KnobValues:
        return self._inner.completed(decisions)

    def build(self, decisions: KnobValues) -> Schedule:
        return self._inner.build(decisions)

    @cached_property
    def _stated(self) -> tuple[Points, Costs]:
        return self._inner.ranked()

    @cached_property
    def _features(self) -> SpaceFeatures:
        return SpaceFeatures(self._kernel, self._inner, float(np.min(self._stated[1], initial=np.inf)))
