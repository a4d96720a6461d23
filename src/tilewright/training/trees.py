"""Training ensembles of trees on timed schedules.

Two losses: pairs of schedules of a kernel that are ranked the wrong way (`training/pairs.py`), and squared errors of
logarithms of seconds, of all schedules or less their mean within the kernel. Either learns times, or what is left when
the closed form has said what it knows, its *residual*. Few rows and a closed form that is mostly right speak for the
latter. Several members are trained, and their disagreement counts as time (`learned/ensemble.py`).
`training/ablations.py` has what says how much each of it is worth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from tilewright.learned.ensemble import CostTrees
from tilewright.learned.features import FEATURES
from tilewright.learned.guard import FAMILY_COLUMNS, KERNEL_COLUMNS, TrustGuard
from tilewright.learned.guarded import GuardedModel
from tilewright.support.arrays import FloatArray
from tilewright.support.errors import UserError
from tilewright.training.boosting import Derivatives, TreeShape, boost
from tilewright.training.pairs import PairLoss, certainty, ranked_pairs
from tilewright.training.samples import KernelSamples
from tilewright.training.table import SampleTable, emphasised, stacked, sums, usable

# "rank": pairs; "centred": squared errors within kernels; "absolute": squared errors of seconds.
Loss: TypeAlias = Literal["rank", "centred", "absolute"]


_SHAPE = TreeShape()
_LEAST_LEAVES = 10  # that the rows suffice for, given: from fewer there is nothing to learn


@dataclass(frozen=True, slots=True)
class TreeSettings:
    loss: Loss = "centred"
    is_residual: bool = True
    is_soft: bool = True  # pairs say by how much one is quicker
    emphasis: float = 3.0  # of the best schedules of a kernel, and of pairs with one of them: `emphasised`
    members: int = 3
    caution: float = 2.0  # times the standard deviation of what members say
    anchor: float = 0.05  # of squared errors beside pairs: keeps scores of a kernel near its seconds
    without: tuple[str, ...] = ()  # features that are not looked at, by the beginnings of their names
    is_guarded: bool = True
    shape: TreeShape = _SHAPE


SCHEDULES = TreeSettings()
SECONDS = TreeSettings(loss="absolute", caution=0.0, shape=TreeShape(trees=400, rate=0.05))


@dataclass(frozen=True, slots=True, eq=False)
class TrainedTrees:
    """A cost model, and what it is made of."""

    settings: TreeSettings
    ensemble: CostTrees
    guard: TrustGuard | None
    rows: int
    kernels: int
    programs: int

    @property
    def name(self) -> str:
        return "trees"

    @property
    def model(self) -> GuardedModel:
        return GuardedModel(self.name, self.ensemble.scores, self.settings.is_residual, self.guard)


def train_trees(samples: Sequence[KernelSamples], settings: TreeSettings, seed: int) -> TrainedTrees:
    table = stacked(samples)
    least = _LEAST_LEAVES * settings.shape.least_rows
    if len(table.log_seconds) < least:
        raise UserError(
            f"{len(table.log_seconds)} timed schedules are too few to train on: {least} are the least",
            hint="go on with `tilewright corpus build`",
        )
    features = table.features.copy()
    for n, name in enumerate(FEATURES):
        if settings.without and name.startswith(settings.without):
            features[:, n] = 0.0  # what never differs is never looked at
    start = table.log_costs if settings.is_residual else np.zeros(len(table.log_costs))
    derivatives = _derivatives(table, start, settings, seed)
    count = settings.members
    members = [
        boost(features, start, derivatives, settings.shape, count * seed + n, FEATURES) for n in range(count)
    ]
    ensemble = CostTrees.joined(members, settings.caution)
    some = [s for s in map(usable, samples) if len(s)]
    guard = guard_of(some) if settings.is_guarded else None
    programs = len({s.program for s in some})
    return TrainedTrees(settings, ensemble, guard, len(features), len(some), programs)


def _derivatives(table: SampleTable, start: FloatArray, settings: TreeSettings, seed: int) -> Derivatives:
    times, sure = table.log_seconds, certainty(table.noise)
    match settings.loss:
        case "rank":
            pairs = ranked_pairs(table, seed, settings.emphasis)
            loss, anchor = PairLoss(pairs, len(times), settings.is_soft), settings.anchor

            def ranking(scores: FloatArray) -> tuple[FloatArray, FloatArray]:
                first, second = loss.derivatives(scores)
                return first + anchor * sure * (scores - times), second + anchor * sure

            return ranking
        case "centred":
            weights = _weights(table, settings.emphasis)
            left = table.centred(times - start, weights).clip(-_MOST_LEFT, _MOST_LEFT)
            return lambda scores: (weights * (scores - start - left), weights)
        case "absolute":
            return lambda scores: (sure * (scores - times), sure)


_MOST_LEFT = 1.0  # of a logarithm, given: what is farther off is never chosen, and must not bend what may be
_LEAST_WEIGHT = 0.02  # of the slowest schedules of a kernel, given: that they are slow is worth knowing


def _weights(table: SampleTable, emphasis: float) -> FloatArray:
    """Of rows: quick schedules count most, those of a kernel together as the root of their number."""
    certain = certainty(table.noise) * emphasised(table, emphasis) + _LEAST_WEIGHT
    sums_of_kernels = sums(table.kernels, certain, len(table.counts))
    return certain * (np.sqrt(table.counts) / sums_of_kernels)[table.kernels]


def guard_of(samples: Sequence[KernelSamples]) -> TrustGuard:
    """What kernels like these look like."""
    names = {program: n for n, program in enumerate(sorted({s.program for s in samples}))}
    features = [s.candidates.features for s in samples]
    return TrustGuard.of(
        np.stack([f[0, KERNEL_COLUMNS] for f in features]),
        np.array([names[s.program] for s in samples], np.int64),
        np.stack([(f[:, FAMILY_COLUMNS] > 0).any(axis=0) for f in features]).astype(np.float64),
    )
