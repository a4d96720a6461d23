"""A learned model over the closed form, as far as it is trusted."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.learned.analytical import log_costs
from tilewright.learned.candidates import KernelCandidates
from tilewright.learned.features import FEATURES
from tilewright.learned.guard import TrustGuard
from tilewright.support.arrays import FloatArray

Scorer: TypeAlias = Callable[[FloatArray], FloatArray]  # features to scores, row by row
_COST = FEATURES.index("cost")


@dataclass(frozen=True, slots=True, eq=False)
class GuardedModel:
    """What a scorer says is a correction of the logarithm of the closed form, or takes its place. It counts as much as
    the guard trusts it, so that a kernel unlike all that were trained on is ranked by the closed form.
    """

    name: str
    scorer: Scorer
    is_residual: bool = True
    guard: TrustGuard | None = None

    def log_seconds(self, candidates: KernelCandidates) -> FloatArray:
        return log_costs(candidates) + self.corrections(candidates.features)

    def corrections(self, features: FloatArray) -> FloatArray:
        """Of schedules of one kernel: the logarithm of what each takes over what its closed form says."""
        scores = self.scorer(features)
        if not self.is_residual:
            scores = scores - math.log(2.0) * features[:, _COST]
        return scores if self.guard is None else self.guard.trust(features) * scores
