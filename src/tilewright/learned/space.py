"""A design space whose points are ranked by a learned model.

The closed form of the family ranks all points, and the model those that may be the best of them: it corrects an order,
and never has to tell a good schedule from one that no estimate would take. Points that it was not asked about come
after those that it was.
"""

from collections.abc import Mapping
from functools import cached_property
from statistics import median
from typing import Protocol

import numpy as np

from tilewright.families.space import Costs, Points, Space
from tilewright.learned.corrected_space import CorrectedSpace
from tilewright.support.arrays import FloatArray

ASKED = 512  # points of a space that the model ranks, the cheapest by the closed form; bound
_WORTH_ASKING = (
    2.0  # times the cheapest point, given: the closed form is not that wrong of what is much slower
)


class Corrections(Protocol):
    """What a model says of candidates of one kernel."""

    def __call__(self, features: FloatArray) -> FloatArray:
        """The natural logarithm of what each takes over what its closed form says; near 0 where the model does not know
        such kernels.
        """
        ...


class LearnedSpace(CorrectedSpace):
    """The points of `inner`; their costs are corrected."""

    def __init__(self, inner: Space, kernel: Mapping[str, float], corrections: Corrections) -> None:
        super().__init__(inner, kernel)
        self._corrections = corrections

    def cost(self, points: Points) -> Costs:
        return self._corrected(points, self._inner.cost(points))

    def _corrected(self, points: Points, costs: Costs) -> Costs:
        possible = np.isfinite(costs)
        out = costs.copy()
        if possible.any():
            rows = self._features.rows(points[possible], costs[possible])
            out[possible] = costs[possible] * np.exp(self._corrections(rows))
        return out

    @cached_property
    def _ranked(self) -> tuple[Points, Costs]:
        points, costs = self._stated
        if not len(costs):
            return points, costs
        worth = int(np.count_nonzero(costs <= _WORTH_ASKING * costs[0]))
        count = min(ASKED, worth)
        asked = self._corrected(points[:count], costs[:count])
        order = np.argsort(asked, kind="stable")
        # What was not asked about is as much too cheap or too dear as what was, on the whole.
        shift = median((asked / costs[:count]).tolist())
        rest = np.maximum(costs[count:] * shift, asked.max())
        return np.concatenate([points[:count][order], points[count:]]), np.concatenate([asked[order], rest])

    def ranked(self) -> tuple[Points, Costs]:
        return self._ranked
