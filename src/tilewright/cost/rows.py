"""The time of reductions along rows whose partial results are vectors in registers, in closed form.

A step combines `accumulators` vectors and takes as long as they need, but no less than the latency of one combination;
at the end the partial results are combined in halves. More accumulators hide latency, and cost more at the end.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.support.arrays import FloatArray
from tilewright.target.machine import Machine


@dataclass(frozen=True, slots=True)
class RowReduction:
    rows: int
    k: int
    operations: int  # instructions for an element, the combination included
    loads: int


def row_seconds(
    reductions: tuple[RowReduction, ...], accumulators: NDArray[np.int64], lanes: int, m: Machine
) -> FloatArray:
    cycles = np.zeros(len(accumulators))
    for r in reductions:
        # As the recipe has it: no more than leave two steps.
        used = np.maximum(np.minimum(accumulators, r.k // (2 * lanes)), 1)
        work = used * np.maximum(r.operations / m.fma_per_cycle, r.loads / m.loads_per_cycle)
        steps = -(-r.k // (used * lanes))
        merge = np.log2(used * lanes) * (m.fma_latency + 1)
        cycles += r.rows * (steps * np.maximum(work, m.fma_latency) + merge)
    return cycles / m.hertz
