"""What a cost model is judged by, from times that were measured and its predictions of them.

*Regret* is what choosing by predictions costs: of a program, the sum over its kernels of how much slower the schedule
is that the model likes best than the best that was timed, over the sum of the best; of the first k, the quickest of
them. *τ* is Kendall's rank correlation of the schedules of a kernel. *MAPE* is the mean error of predicted seconds.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tilewright.support.arrays import FloatArray
from tilewright.training.pairs import distinct_pairs
from tilewright.training.samples import KernelSamples
from tilewright.training.table import known_noise

Predictions: TypeAlias = Sequence[
    FloatArray
]  # logarithms of seconds: for each kernel, of each of its schedules
LEAST_SECONDS = 5e-6  # kernels below are not judged by their seconds: much of those is the call; given


def regrets(
    samples: Sequence[KernelSamples], predictions: Predictions, top: int = 1, share: float = 0.0
) -> dict[str, float]:
    """Of each program, in percent: the best of the `top` that are predicted to be the quickest, or of this `share` of
    all schedules of a kernel if that is more.
    """
    lost: dict[str, float] = defaultdict(float)
    best: dict[str, float] = defaultdict(float)
    for s, predicted in zip(samples, predictions, strict=True):
        count = max(top, round(share * len(s)))
        lost[s.program] += expected_best(s.seconds, predicted, count) - float(s.seconds.min())
        best[s.program] += float(s.seconds.min())
    return {program: 100.0 * lost[program] / best[program] for program in best}


def sure_regrets(samples: Sequence[KernelSamples], predictions: Predictions) -> dict[str, float]:
    """The same for the first choice, where it counts only if it is slower than the best by more than their noise: of
    many schedules that are equally good, the best measured one is the luckiest.
    """
    sure = [_within_noise_as_best(s) for s in samples]
    return regrets(sure, predictions)


def _within_noise_as_best(samples: KernelSamples) -> KernelSamples:
    """Times that differ from the best by less than their noise, as if they were the best."""
    best, noise = int(np.argmin(samples.seconds)), known_noise(samples.noise)
    gaps = np.log(samples.seconds / samples.seconds[best])
    same = gaps <= np.hypot(noise, noise[best])
    return replace(samples, seconds=np.where(same, samples.seconds[best], samples.seconds))


def expected_best(seconds: FloatArray, predicted: FloatArray, top: int) -> float:
    """The least of the `top` predicted to be the quickest. Where several are predicted alike, the mean over all ways to
    take as many of them as there is place for: the order in which samples are stored must not matter.
    """
    count = min(top, len(seconds))
    limit = np.partition(predicted, count - 1)[count - 1]
    sure, tied = seconds[predicted < limit], np.sort(seconds[predicted == limit])
    places = count - len(sure)
    # The n-th quickest of the tied is the least of those taken if it is taken and no quicker one is.
    rest, chance, mean = 1.0, 0.0, 0.0
    floor = float(sure.min(initial=np.inf))
    for n, value in enumerate(tied.tolist()):
        chance = rest * min(places / (len(tied) - n), 1.0)
        mean += chance * min(value, floor)
        rest -= chance
    return mean


def kendall_tau(seconds: FloatArray, noise: FloatArray, predicted: FloatArray) -> float:
    """Of pairs that are further apart than their noise; nan if there are none. What is predicted alike counts half."""
    quicker, slower = distinct_pairs(np.log(seconds), known_noise(noise))
    if not len(quicker):
        return float("nan")
    return float(np.sign(predicted[slower] - predicted[quicker]).mean())


def kernel_taus(samples: Sequence[KernelSamples], predictions: Predictions) -> FloatArray:
    """Of each kernel."""
    each = zip(samples, predictions, strict=True)
    return np.array([kendall_tau(s.seconds, s.noise, p) for s, p in each])


def taus_by_kind(samples: Sequence[KernelSamples], taus: FloatArray) -> dict[str, float]:
    """The mean over the kernels of each kind."""
    found: dict[str, list[float]] = defaultdict(list)
    for s, tau in zip(samples, taus.tolist(), strict=True):
        if np.isfinite(tau):
            found[s.kind].append(tau)
    return {kind: float(np.mean(some)) for kind, some in sorted(found.items())}


def chosen_errors(
    samples: Sequence[KernelSamples], choices: Predictions, predictions: Predictions
) -> dict[str, list[float]]:
    """By program, of each kernel of at least `LEAST_SECONDS`: how far the predicted time of the schedule that is chosen
    by `choices` is from its measured one, in percent.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for s, by, predicted in zip(samples, choices, predictions, strict=True):
        at = int(np.argmin(by))
        if s.seconds[at] >= LEAST_SECONDS:
            found[s.program].append(100.0 * abs(float(np.exp(predicted[at])) / float(s.seconds[at]) - 1.0))
    return found


def all_errors(samples: Sequence[KernelSamples], predictions: Predictions) -> list[float]:
    """Of each kernel whose best schedule takes at least `LEAST_SECONDS`: the mean error of all of its schedules."""
    each = zip(samples, predictions, strict=True)
    return [
        100.0 * float(np.abs(np.exp(p) / s.seconds - 1.0).mean())
        for s, p in each
        if s.seconds.min() >= LEAST_SECONDS
    ]


def program_taus(
    samples: Sequence[KernelSamples], choices: Predictions, predictions: Predictions
) -> dict[str, float]:
    """τ over the kernels of each program with one number of threads, of the schedules that are chosen by `choices`."""
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = defaultdict(list)
    for s, by, predicted in zip(samples, choices, predictions, strict=True):
        at = int(np.argmin(by))
        found[s.program, s.threads].append((float(s.seconds[at]), float(s.noise[at]), float(predicted[at])))
    taus: dict[str, list[float]] = defaultdict(list)
    for (program, _), rows in found.items():
        seconds, noise, predicted = np.array(rows).T
        tau = kendall_tau(seconds, noise, predicted)
        if np.isfinite(tau):
            taus[program].append(tau)
    return {program: float(np.mean(some)) for program, some in taus.items()}
