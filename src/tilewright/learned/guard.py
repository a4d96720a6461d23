"""How far a kernel is from those that a model was trained on, and how much the model is trusted there.

Far is what lies far from its nearest neighbours among the trained kernels, in features that every kernel has, each over
its spread. What is usual is measured while training: the distance of each kernel from those of other programs. Up to
what three of four have, a model counts fully; from there on its word gets less, down to none at what one in twenty has.
Kernels of a kind that was never trained on are mostly farther away. A family of schedules that hardly any trained
kernel had is not trusted at all.
"""

from dataclasses import dataclass

import numpy as np

from tilewright.learned.features import ABSENT, FAMILY_NAMES, FEATURES
from tilewright.support.arrays import FloatArray, IntArray

_FIRST_FAMILY = FEATURES.index(f"is_{FAMILY_NAMES[0]}")
FAMILY_COLUMNS = slice(_FIRST_FAMILY, _FIRST_FAMILY + len(FAMILY_NAMES))
KERNEL_COLUMNS = slice(0, _FIRST_FAMILY)  # what is the same for all schedules of a kernel
_LEAST_SPREAD = 0.25  # of a feature: corpora of one machine have some that never differ; given
_BEYOND = 1.0  # what is not there is this many spreads below what is least; given
_NEIGHBOURS = 3  # given


@dataclass(frozen=True, slots=True, eq=False)
class TrustGuard:
    """Made by `TrustGuard.of`; arrays are small enough to be stored beside a model."""

    centre: FloatArray  # of kernel features
    spread: FloatArray
    least: FloatArray
    most: FloatArray
    known: FloatArray  # trained kernels: features less their centre, over their spread
    near: float  # distance up to which a model counts fully
    far: float  # from where on it does not count
    families: FloatArray  # 1 where enough trained kernels had schedules of the family, less where fewer did

    @classmethod
    def of(
        cls, kernels: FloatArray, programs: IntArray, families: FloatArray, limit: int = 512
    ) -> "TrustGuard":
        """`kernels` has the kernel features of trained kernels, `programs` a number of the program of each, `families`
        whether each had schedules of each family. Up to `limit` of them are kept.
        """
        least = _least(kernels)
        filled = np.where(kernels == ABSENT, least - _BEYOND, kernels)
        centre, spread = filled.mean(axis=0), np.maximum(filled.std(axis=0), _LEAST_SPREAD)
        scaled = (filled - centre) / spread
        kept = _spaced(scaled, limit)
        usual = np.array(
            [_distance(scaled[n], scaled[kept][programs[kept] != programs[n]]) for n in range(len(scaled))]
        )
        finite = usual[np.isfinite(usual)]
        near, far = np.quantile(finite, (_NEAR, _FAR)).tolist() if len(finite) else (0.0, 0.0)
        counts = families.sum(axis=0)
        known_families = np.minimum(counts / _ENOUGH, 1.0)
        return cls(
            centre,
            spread,
            least,
            filled.max(axis=0),
            scaled[kept],
            near,
            max(far, near + _LEAST_FADE),
            known_families,
        )

    def distance(self, kernel: FloatArray) -> float:
        """From the nearest trained kernels, in spreads. What is out of the range of a feature counts by itself too."""
        filled = np.where(kernel == ABSENT, self.least - _BEYOND, kernel)
        outside = np.maximum(self.least - _BEYOND - filled, filled - self.most).clip(min=0.0) / self.spread
        return _distance((filled - self.centre) / self.spread, self.known) + float(outside.max(initial=0.0))

    def trust(self, features: FloatArray) -> FloatArray:
        """Of each schedule of a kernel: 1 where a model counts fully, 0 where it does not."""
        if not len(features):
            return np.zeros(0)
        distance = self.distance(features[0, KERNEL_COLUMNS])
        whole = float(np.clip((self.far - distance) / max(self.far - self.near, 1e-9), 0.0, 1.0))
        # A family of another package has none of the columns: it was never trained.
        return whole * np.clip(features[:, FAMILY_COLUMNS], 0.0, 1.0) @ self.families


_ENOUGH = 8  # kernels with schedules of a family, so that it counts as trained; given
# Of the distances of trained kernels from those of other programs; measured (docs/learned-model.md).
_NEAR, _FAR = 0.75, 0.95
_LEAST_FADE = 0.05  # spreads from near to far, given: a small corpus has no telling quantiles


def _least(kernels: FloatArray) -> FloatArray:
    """Of each feature, where it is there; zero if it never is."""
    least = np.where(kernels == ABSENT, np.inf, kernels).min(axis=0)
    return np.where(np.isfinite(least), least, 0.0)


def _distance(one: FloatArray, others: FloatArray) -> float:
    """The mean of those to the nearest, over the root of the number of features; infinite if there are no others."""
    if not len(others):
        return float("inf")
    squares = ((others - one) ** 2).mean(axis=1)
    count = min(_NEIGHBOURS, len(squares))
    return float(np.sqrt(np.partition(squares, count - 1)[:count]).mean())


def _spaced(scaled: FloatArray, limit: int) -> IntArray:
    """Up to `limit` of them, each as far as possible from those taken before: what is rare is kept."""
    if len(scaled) <= limit:
        return np.arange(len(scaled))
    taken = [int(np.argmin((scaled**2).sum(axis=1)))]
    nearest = np.full(len(scaled), np.inf)
    while len(taken) < limit:
        nearest = np.minimum(nearest, ((scaled - scaled[taken[-1]]) ** 2).sum(axis=1))
        taken.append(int(np.argmax(nearest)))
    return np.array(taken, np.int64)
