"""Which of several programs is the fastest, on a machine that others use too.

They take turns in rounds, and are compared round by round: what disturbs one disturbs its neighbours as well, so the
ratio of two times of one round says more than either of them. Who is clearly slower than the best drops out. It goes on
until the others are known to be alike, or the time is used up.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

Turn: TypeAlias = Callable[[], float]
"""Lets one of them run for a while: the typical time of a run. Infinite if it cannot, which ends its part."""

LEAST_ROUNDS = 3
MOST_ROUNDS = 20
_ALIKE = 0.01  # a difference so small is none
_OBVIOUSLY = 1.25  # times slower in each of the first rounds: no need for statistics
_DOUBT = 0.01  # that an interval does not hold the true ratio; it is looked at after each round

_PAUSE_SECONDS = 0.03  # for the threads of another engine to go to sleep, instead of stealing cores
_TURN_SECONDS = 0.03
_LONG_SECONDS = 0.05  # a run that is so long is not disturbed by what others left in the caches


def typical(run: Callable[[], object], is_alone: bool) -> float:
    """The median time of a run, of as many as fit in a turn."""
    if not is_alone:
        time.sleep(_PAUSE_SECONDS)
    times: list[float] = []
    end = time.perf_counter() + _TURN_SECONDS
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    warm = times[1:] or times
    if len(times) == 1 and times[0] < _LONG_SECONDS:
        start = time.perf_counter()
        run()
        warm = [time.perf_counter() - start]
    return statistics.median(warm)


def compare(turns: Sequence[Turn], is_over: Callable[[], bool]) -> list[float]:
    """The time of each, as it compares with the best: infinite for those that cannot run. `is_over`: is the time used
    up?
    """
    times: list[list[float]] = [[] for _ in turns]
    running = list(range(len(turns)))
    for number in range(1, MOST_ROUNDS + 1):
        for i in running if number % 2 else reversed(running):
            times[i].append(turns[i]())
        running = [i for i in running if math.isfinite(times[i][-1])]
        if not running:
            break
        if number >= LEAST_ROUNDS:
            best = _best(running, times)
            running = [i for i in running if i == best or not _is_slower(_ratios(times, i, best))]
            if is_over() or all(i == best or _is_alike(_ratios(times, i, best)) for i in running):
                break
    if not running:
        return [math.inf] * len(turns)
    best = _best(running, times)
    base = statistics.median(times[best])
    return [
        base * statistics.median(_ratios(times, i, best)) if math.isfinite(times[i][-1]) else math.inf
        for i in range(len(turns))
    ]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median of what these are drawn from lies, with little doubt and whatever their distribution: between
    two of them that have few outside.
    """
    n, outside, chance = len(values), 0, 0.0
    while (chance := chance + math.comb(n, outside) / 2**n) <= _DOUBT / 2:
        outside += 1
    if outside == 0:
        return -math.inf, math.inf
    ordered = sorted(values)
    return ordered[outside - 1], ordered[-outside]


def _ratios(times: Sequence[Sequence[float]], i: int, best: int) -> list[float]:
    """Of the rounds in which both have run."""
    return [a / b for a, b in zip(times[i], times[best], strict=False)]


def _best(running: Sequence[int], times: Sequence[Sequence[float]]) -> int:
    pivot = running[0]
    return min(running, key=lambda i: statistics.median(_ratios(times, i, pivot)))


def _is_slower(ratios: Sequence[float]) -> bool:
    return min(ratios) > _OBVIOUSLY or interval(ratios)[0] > 1.0


def _is_alike(ratios: Sequence[float]) -> bool:
    low, high = interval(ratios)
    return low > 1.0 - _ALIKE and high < 1.0 + _ALIKE
