"""The closed form of families as a cost model: what learned models correct, and what they fall back to."""

import numpy as np

from tilewright.learned.candidates import KernelCandidates
from tilewright.support.arrays import FloatArray


class AnalyticalModel:
    """The costs as they are."""

    name = "analytical"

    def log_seconds(self, candidates: KernelCandidates) -> FloatArray:
        return log_costs(candidates)


def log_costs(candidates: KernelCandidates) -> FloatArray:
    """Infinite where a family has no schedule."""
    return np.log(np.maximum(candidates.costs, np.finfo(np.float64).tiny))
