"""Pairs of schedules of one kernel of which it is known which is quicker, and the loss of ranking them.

A pair counts if the two times are further apart than their noise. The loss is logistic in the difference of two scores,
over a temperature; where it is soft, the target is not that one is quicker but by how much, which is least when scores
differ as the logarithms of times do. So a score stays a number of seconds, up to a factor for each kernel, and may be
added to what the closed form says.
"""

from dataclasses import dataclass

import numpy as np

from tilewright.support.arrays import FloatArray, IntArray
from tilewright.training.table import SampleTable, emphasised, sums

TEMPERATURE = 0.1  # differences of logarithms of times that matter: 10 %; given
_MOST = 4000  # pairs of a kernel: more say little that is new, and take time; bound


@dataclass(frozen=True, slots=True, eq=False)
class RankedPairs:
    quicker: IntArray  # rows
    slower: IntArray
    gaps: FloatArray  # of the logarithms of times, positive
    weights: FloatArray  # those of a kernel sum to the number of its schedules, less where times are noisy

    def __len__(self) -> int:
        return len(self.gaps)


def certainty(noise: FloatArray) -> FloatArray:
    """How much a time with this noise counts: what is noisier than the differences that matter says little of them."""
    return 1.0 / (1.0 + (noise / TEMPERATURE) ** 2)


def distinct_pairs(log_seconds: FloatArray, noise: FloatArray) -> tuple[IntArray, IntArray]:
    """The pairs of schedules of a kernel that are further apart than their noise: the quicker, the slower."""
    gaps = log_seconds[None, :] - log_seconds[:, None]
    quicker, slower = np.nonzero(gaps > np.hypot(noise[None, :], noise[:, None]))
    return quicker, slower


def ranked_pairs(table: SampleTable, seed: int, emphasis: float = 0.0) -> RankedPairs:
    """Of all kernels. A pair counts less, the noisier its times are (`certainty`). `emphasis` gives more weight to
    pairs that have one of the best schedules of the kernel, as `emphasised` has it of the quicker one.
    """
    rng = np.random.default_rng(seed)
    firsts, seconds, shares = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    start, emphasis_of = 0, emphasised(table, emphasis)
    for count in table.counts.tolist():
        rows = slice(start, start + count)
        times = table.log_seconds[rows]
        quicker, slower = distinct_pairs(times, table.noise[rows])
        if len(quicker) > _MOST:
            kept = rng.choice(len(quicker), _MOST, replace=False)
            quicker, slower = quicker[kept], slower[kept]
        if len(quicker):
            noise = table.noise[rows]
            sure = certainty(np.hypot(noise[quicker], noise[slower]))
            weights = emphasis_of[quicker + start]
            firsts.append(quicker + start)
            seconds.append(slower + start)
            shares.append(sure * weights * count / weights.sum())
        start += count
    quicker, slower = np.concatenate(firsts), np.concatenate(seconds)
    gaps = table.log_seconds[slower] - table.log_seconds[quicker]
    return RankedPairs(quicker, slower, gaps, np.concatenate(shares))


@dataclass(frozen=True, slots=True, eq=False)
class PairLoss:
    """With its derivatives by each score, as boosting wants them."""

    pairs: RankedPairs
    rows: int
    is_soft: bool = True
    temperature: float = TEMPERATURE

    def __call__(self, scores: FloatArray) -> float:
        p, t, z = self.pairs, self._targets(), self._margins(scores)
        return float(p.weights @ (np.logaddexp(0.0, -z) + (1.0 - t) * z) / max(p.weights.sum(), 1e-12))

    def derivatives(self, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The first and second, in units in which a second one is at most about 1."""
        p = self.pairs
        said = _logistic(self._margins(scores))
        slope = p.weights * (said - self._targets()) * self.temperature
        curve = p.weights * said * (1.0 - said)
        first = sums(p.slower, slope, self.rows) - sums(p.quicker, slope, self.rows)
        return first, sums(p.slower, curve, self.rows) + sums(p.quicker, curve, self.rows)

    def _margins(self, scores: FloatArray) -> FloatArray:
        return (scores[self.pairs.slower] - scores[self.pairs.quicker]) / self.temperature

    def _targets(self) -> FloatArray:
        gaps = self.pairs.gaps / self.temperature
        return _logistic(gaps) if self.is_soft else np.ones_like(gaps)


def _logistic(x: FloatArray) -> FloatArray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))
