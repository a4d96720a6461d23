"""How programs are compared on a machine that others use too: they take turns in rounds, and a figure has its noise.

A machine drifts by more within seconds than two programs may differ, so a comparison is a ratio of neighbours: in each
round each of them runs for a while, in an order that alternates, and the ratio is taken round by round. What disturbs
one disturbs its neighbours as well. Threads of one program keep spinning after a run; a pause before each turn lets
them fall asleep instead of stealing the next one's cores.

`take_turns` is all of that: the choice of plugins (`quickest`), that of tuned schedules, `tilewright bench` and the
benchmarks differ in what a turn is and in how many rounds there are.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

K = TypeVar("K")
Timings: TypeAlias = Sequence[float] | NDArray[np.float64]

Turn: TypeAlias = Callable[[], Sequence[float]]
"""Lets one of them run for a while: the seconds of each run. None at all if it cannot run, which ends its part."""

PAUSE_SECONDS = 0.1
_BOOTSTRAP_SAMPLES = 2000
_DOUBT = 0.05  # that an interval does not hold the true value

LEAST_ROUNDS = 3  # of `quickest`
MOST_ROUNDS = 20
_DECIDING_ROUNDS = 8  # fewer are all on one side by luck more often than that
_LITTLE_DOUBT = 0.01  # because it is looked at after each round
_ALIKE = 0.01  # a difference so small is none
_OBVIOUSLY = 1.25  # times slower in each of the first rounds: no need for statistics

_SHORT_PAUSE_SECONDS = 0.03
_TURN_SECONDS = 0.03
_LONG_SECONDS = 0.05  # a run that is so long is not disturbed by what others left in the caches


@dataclass(frozen=True, slots=True)
class Series:
    """Run times of one program in seconds, by round."""

    rounds: tuple[tuple[float, ...], ...]

    @property
    def runs(self) -> int:
        return sum(map(len, self.rounds))

    @property
    def round_medians(self) -> tuple[float, ...]:
        return tuple(float(np.median(r)) for r in self.rounds)

    @property
    def round_bests(self) -> tuple[float, ...]:
        """What the program can do when nobody disturbs it."""
        return tuple(map(min, self.rounds))

    @property
    def median(self) -> float:
        return self.percentile(50)

    @property
    def spread(self) -> float:
        """Noise: how much slower the slowest round was than the quickest, as a fraction."""
        medians = self.round_medians
        return max(medians) / min(medians) - 1

    @property
    def interval(self) -> "Ratio":
        """The median of the rounds' medians in seconds, with its interval."""
        return median_of_rounds(self.round_medians)

    def percentile(self, percent: float) -> float:
        return float(np.percentile(np.concatenate([np.asarray(r) for r in self.rounds]), percent))

    def as_json(self) -> dict[str, Any]:
        return {
            "median_seconds": self.median,
            "low_seconds": self.interval.low,
            "high_seconds": self.interval.high,
            "p90_seconds": self.percentile(90),
            "p99_seconds": self.percentile(99),
            "runs": self.runs,
            "spread": self.spread,
            "round_medians_seconds": self.round_medians,
        }


@dataclass(frozen=True, slots=True)
class Ratio:
    """`value` with a bootstrap interval over rounds, of 95 % if nothing else is said."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "no difference"

    def as_json(self) -> dict[str, Any]:
        return {"value": self.value, "low": self.low, "high": self.high, "verdict": self.verdict}

    def __str__(self) -> str:
        return f"{self.value:.2f}× [{self.low:.2f}, {self.high:.2f}] {self.verdict}"


def speedup(ours: Series, theirs: Series, doubt: float = _DOUBT) -> Ratio:
    """How many times longer `theirs` takes, from the medians of rounds that stood side by side."""
    pairs = zip(theirs.round_medians, ours.round_medians, strict=False)  # one may have dropped out early
    return median_of_rounds([a / b for a, b in pairs], doubt)


def median_of_rounds(values: Timings, doubt: float = _DOUBT) -> Ratio:
    """The median of one value a round, with its interval."""
    medians = bootstrap_medians(values, np.random.default_rng(0))
    low, high = np.percentile(medians, (50 * doubt, 100 - 50 * doubt))
    return Ratio(float(np.median(values)), float(low), float(high))


def bootstrap_medians(values: Timings, rng: np.random.Generator) -> NDArray[np.float64]:
    """Medians of samples of the same size, drawn from these values with replacement."""
    picks = rng.integers(0, len(values), (_BOOTSTRAP_SAMPLES, len(values)))
    return np.median(np.asarray(values)[picks], axis=1)


def take_turns(
    turns: Mapping[K, Turn],
    rounds: int,
    *,
    pause: float = PAUSE_SECONDS,
    go_on: Callable[[int, dict[K, Series]], Collection[K]] | None = None,
) -> dict[K, Series]:
    """The times of all that can run. After each round `go_on` gets its number and the times so far, and says who has
    another turn; the times of the others are kept.
    """
    times: dict[K, list[tuple[float, ...]]] = {name: [] for name in turns}
    running = list(turns)
    for number in range(1, rounds + 1):
        for name in running if number % 2 else reversed(running):
            if len(running) > 1 and pause:
                time.sleep(pause)
            times[name].append(tuple(turns[name]()))
        times = {name: found for name, found in times.items() if found[-1]}
        wanted = times if go_on is None else go_on(number, _series(times))
        running = [name for name in running if name in times and name in wanted]
        if not running:
            break
    return _series(times)


def until_clear(first: K, second: K, every: int) -> Callable[[int, dict[K, Series]], Collection[K]]:
    """For `take_turns`: it ends where it is clear which of the two is quicker, by more than no difference. That is
    looked at after `every` rounds, with little doubt allowed.
    """

    def go_on(number: int, found: dict[K, Series]) -> Collection[K]:
        if number % every or first not in found or second not in found:
            return found
        ratio = speedup(found[second], found[first], _LITTLE_DOUBT)
        return () if ratio.low > 1 + _ALIKE or ratio.high < 1 - _ALIKE else found

    return go_on


def _series(times: Mapping[K, Sequence[tuple[float, ...]]]) -> dict[K, Series]:
    return {name: Series(tuple(found)) for name, found in times.items()}


# ---------------------------------------------------------------------------------------------------- the quickest


def quickest(turns: Mapping[K, Turn], is_over: Callable[[], bool]) -> dict[K, float]:
    """The time of each, as it compares with the best: infinite for those that cannot run. Who is clearly slower than
    the best drops out. It goes on until the others are known to be alike, or `is_over`: the time is used up.
    """

    def go_on(number: int, found: dict[K, Series]) -> Collection[K]:
        running = {name: s for name, s in found.items() if len(s.rounds) == number}
        if number < LEAST_ROUNDS or not running:
            return running
        best = _best(running)
        rest = {n: s for n, s in running.items() if n != best and not _is_slower(s, found[best])}
        is_settled = all(_is_alike(s, found[best]) for s in rest.values())
        return () if is_settled or is_over() else (best, *rest)

    found = take_turns(turns, MOST_ROUNDS, pause=_SHORT_PAUSE_SECONDS, go_on=go_on)
    longest = max((len(s.rounds) for s in found.values()), default=0)
    last = {name: s for name, s in found.items() if len(s.rounds) == longest}
    if not last:
        return dict.fromkeys(turns, math.inf)
    best = found[_best(last)]
    base = float(np.median(best.round_medians))
    return {name: base * speedup(best, found[name]).value if name in found else math.inf for name in turns}


def brief_turn(run: Callable[[], object]) -> list[float]:
    """As many runs as fit in a short turn, without the first, which others have disturbed."""
    times = [_seconds(run)]
    end = time.perf_counter() + _TURN_SECONDS - times[0]
    while time.perf_counter() < end:
        times.append(_seconds(run))
    if len(times) == 1 and times[0] < _LONG_SECONDS:
        times.append(_seconds(run))
    return times[1:] or times


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _best(running: Mapping[K, Series]) -> K:
    pivot = next(iter(running.values()))
    return min(running, key=lambda name: speedup(pivot, running[name]).value)


def _is_slower(one: Series, best: Series) -> bool:
    ratios = [a / b for a, b in zip(one.round_medians, best.round_medians, strict=True)]
    if min(ratios) > _OBVIOUSLY:
        return True
    return len(ratios) >= _DECIDING_ROUNDS and median_of_rounds(ratios, _LITTLE_DOUBT).low > 1.0


def _is_alike(one: Series, best: Series) -> bool:
    found = speedup(best, one, _LITTLE_DOUBT)
    return len(one.rounds) >= _DECIDING_ROUNDS and found.low > 1.0 - _ALIKE and found.high < 1.0 + _ALIKE
