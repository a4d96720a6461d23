"""Samples of many kernels as one table, which is what trainers work on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.learned.analytical import log_costs
from tilewright.learned.candidates import KernelCandidates
from tilewright.learned.ensemble import SingleArray
from tilewright.support.arrays import FloatArray, IntArray
from tilewright.support.errors import UserError
from tilewright.training.samples import KernelSamples

UNKNOWN_NOISE = 0.02  # of a time that was measured once, relative; given


@dataclass(frozen=True, slots=True, eq=False)
class SampleTable:
    """A row for each timed schedule, those of a kernel together."""

    features: SingleArray
    log_seconds: FloatArray
    log_costs: FloatArray
    noise: FloatArray
    kernels: IntArray  # number of the kernel, ascending

    @property
    def residuals(self) -> FloatArray:
        """The logarithm of what a schedule takes over what its closed form says."""
        return self.log_seconds - self.log_costs

    @property
    def counts(self) -> IntArray:
        """Rows of each kernel."""
        return np.bincount(self.kernels).astype(np.int64)

    def centred(self, values: FloatArray, weights: FloatArray) -> FloatArray:
        """Less their weighted mean within the kernel."""
        count = len(self.counts)
        means = sums(self.kernels, weights * values, count) / sums(self.kernels, weights, count)
        return values - means[self.kernels]

    @property
    def best_log_seconds(self) -> FloatArray:
        """Of each row: those of the quickest schedule of its kernel."""
        best = np.full(len(self.counts), np.inf)
        np.minimum.at(best, self.kernels, self.log_seconds)
        return best[self.kernels]


def usable(samples: KernelSamples) -> KernelSamples:
    """Without the schedules that have no time, or no finite cost."""
    kept = np.isfinite(samples.seconds) & (samples.seconds > 0) & np.isfinite(samples.candidates.costs)
    return samples if kept.all() else part_of(samples, np.flatnonzero(kept))


def part_of(samples: KernelSamples, rows: IntArray) -> KernelSamples:
    """Some of the schedules of a kernel."""
    c = samples.candidates
    some = KernelCandidates(c.features[rows], c.costs[rows], c.graph)
    return replace(samples, candidates=some, seconds=samples.seconds[rows], noise=samples.noise[rows])


def stacked(samples: Sequence[KernelSamples]) -> SampleTable:
    """Schedules without a time are left out, and so are kernels with nothing else."""
    some = [s for s in map(usable, samples) if len(s)]
    if not some:
        raise UserError("there is nothing to train on", hint="build a corpus with `tilewright corpus build`")
    counts = [len(s) for s in some]
    return SampleTable(
        np.concatenate([s.candidates.features for s in some]).astype(np.float32),
        np.log(np.concatenate([s.seconds for s in some])),
        np.concatenate([log_costs(s.candidates) for s in some]),
        known_noise(np.concatenate([s.noise for s in some])),
        np.repeat(np.arange(len(some)), counts),
    )


def known_noise(noise: FloatArray) -> FloatArray:
    return np.nan_to_num(noise, nan=UNKNOWN_NOISE, posinf=UNKNOWN_NOISE)


def sums(numbers: IntArray, values: FloatArray, count: int) -> FloatArray:
    """Of the values of each number below `count`."""
    return np.bincount(numbers, values, count).astype(np.float64)


def emphasised(table: SampleTable, emphasis: float) -> FloatArray:
    """1 for the quickest schedule of a kernel, exp(-emphasis) for one that takes e times as long."""
    return np.exp(-emphasis * (table.log_seconds - table.best_log_seconds))
