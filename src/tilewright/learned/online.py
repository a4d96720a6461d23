"""What a tuning has measured, as a correction of what was predicted: costs that become better while they are used.

Of each family there is a ridge regression over its knobs and the terms of its costs, for all kernels of the tuning
together: what is wrong with the costs on this machine, or in this program, is wrong for many kernels alike. A kernel's
own mean is taken away first, as only the order of its schedules matters. On a processor that no model was trained on,
this is what is learned there.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from tilewright.families.space import Costs, Points, Space
from tilewright.learned.corrected_space import CorrectedSpace
from tilewright.learned.features import ABSENT, FEATURES
from tilewright.support.arrays import FloatArray

_COLUMNS = [n for n, f in enumerate(FEATURES) if f.startswith(("knob_", "term_", "over_"))]
_LEAST_ROWS = 8  # of a family, given: fewer say nothing of seventy features
_RIDGE = (
    10.0  # rows that say nothing is wrong with the costs, for each feature; measured (docs/learned-model.md)
)
_ASKED = 2048  # points of a space that are ranked anew, whose features are kept; bound: two megabytes
_MOST_LEFT = 0.5  # of a logarithm, given: what failed to be quick must not bend what may be


class OnlineModel:
    """Of one tuning. `version` changes whenever something was learned."""

    def __init__(self) -> None:
        self.version = 0
        self._rows: dict[str, dict[str, list[tuple[FloatArray, float]]]] = {}  # by family and kernel
        self._weights: dict[str, FloatArray] = {}
        self._is_stale = False

    def tell(self, family: str, kernel: str, features: FloatArray, left: float) -> None:
        """`left` is the logarithm of what a schedule took over what was predicted, up to a factor of the kernel."""
        row = _taken(features[None])[0]
        self._rows.setdefault(family, {}).setdefault(kernel, []).append((row, left))
        self._is_stale = True

    def learn(self) -> None:
        """From all that was told."""
        if not self._is_stale:
            return
        self._is_stale = False
        self._weights = {f: w for f, kernels in self._rows.items() if (w := _fitted(kernels)) is not None}
        self.version += 1

    def corrections(self, family: str, features: FloatArray) -> FloatArray:
        """Logarithms, as `Corrections` has them."""
        weights = self._weights.get(family)
        return np.zeros(len(features)) if weights is None else _taken(features) @ weights


def _taken(features: FloatArray) -> FloatArray:
    some = features[:, _COLUMNS]
    return np.where(some == ABSENT, 0.0, some)


def _fitted(kernels: Mapping[str, list[tuple[FloatArray, float]]]) -> FloatArray | None:
    """The weights of features; None if too little is known."""
    parts = [(np.stack([x for x, _ in rows]), np.array([y for _, y in rows])) for rows in kernels.values()]
    parts = [(x - x.mean(axis=0), y - y.mean()) for x, y in parts if len(y) > 1]
    if sum(len(y) for _, y in parts) < _LEAST_ROWS:
        return None
    x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    spread = x.std(axis=0)
    spread = np.where(spread > 0.0, spread, 1.0)
    x = x / spread
    inner = x.T @ x + _RIDGE * np.eye(x.shape[1])
    return np.linalg.solve(inner, x.T @ y.clip(-_MOST_LEFT, _MOST_LEFT)) / spread


class OnlineSpace(CorrectedSpace):
    """The points of `inner`, whose costs are corrected by what `model` knows when they are asked for."""

    def __init__(self, inner: Space, name: str, model: OnlineModel) -> None:
        """`name` tells the kernel from others of the tuning; features of it are the same for all points, and not
        looked at.
        """
        super().__init__(inner, {})
        self._name, self._model = name, model

    @cached_property
    def _asked_rows(self) -> FloatArray:
        points, costs = self._stated
        return self._features.rows(points[:_ASKED], costs[:_ASKED])

    def cost(self, points: Points) -> Costs:
        costs = self._inner.cost(points)
        possible = np.isfinite(costs)
        if possible.any():
            rows = self._features.rows(points[possible], costs[possible])
            costs[possible] *= np.exp(self._model.corrections(self.family, rows))
        return costs

    def ranked(self) -> tuple[Points, Costs]:
        """Those that cost least are ranked anew among themselves; the others follow them as they are."""
        points, costs = self._stated
        if not self._model.version or not len(costs):
            return points, costs
        asked = costs[:_ASKED] * np.exp(self._model.corrections(self.family, self._asked_rows))
        order = np.argsort(asked, kind="stable")
        rest = np.maximum(costs[_ASKED:], asked.max())
        return np.concatenate([points[:_ASKED][order], points[_ASKED:]]), np.concatenate([asked[order], rest])

    def tell(self, point: tuple[int, ...], seconds: float) -> None:
        """What a point took, in any unit that is the same for all points of the kernel."""
        row = np.array([point], np.int64)
        costs = self._inner.cost(row)
        if np.isfinite(seconds) and 0.0 < costs[0] < np.inf:  # or nothing was predicted
            features = self._features.rows(row, costs)[0]
            self._model.tell(self.family, self._name, features, float(np.log(seconds / costs[0])))
