"""How we measure: engines take turns in rounds, and a figure comes with its noise.

A machine drifts by more within seconds than two engines may differ, so a comparison is a ratio of neighbours: in each
round every engine runs for a while, and the ratio is taken round by round. Engines with threads of their own keep
spinning after a run; a pause before each turn lets them fall asleep instead of stealing the next engine's cores.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.cli.engine_process import EngineFailure
from tilewright.cli.guest.turn import take_turn

Turn: TypeAlias = Callable[[float], tuple[float, ...]]  # for about so many seconds: those of each run

PAUSE_SECONDS = 0.1
BOOTSTRAP_SAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Series:
    """Run times of one engine in seconds, by round."""

    rounds: tuple[tuple[float, ...], ...]

    @property
    def runs(self) -> int:
        return sum(map(len, self.rounds))

    @property
    def round_medians(self) -> tuple[float, ...]:
        return tuple(float(np.median(r)) for r in self.rounds)

    @property
    def round_bests(self) -> tuple[float, ...]:
        """What the engine can do when nobody disturbs it."""
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
    """`value` with a 95 % bootstrap interval over rounds."""

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


def interleave(
    engines: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    seconds: float,
    on_round: Callable[[int], None] | None = None,
) -> dict[str, Series]:
    """Let every engine run for `seconds` in each of `rounds`, in turns whose order alternates."""
    turns = {name: partial(take_turn, run) for name, run in engines.items()}
    return take_turns(turns, rounds=rounds, seconds=seconds, on_round=on_round)


def take_turns(
    turns: Mapping[str, Turn],
    *,
    rounds: int,
    seconds: float,
    on_round: Callable[[int], None] | None = None,
    on_failure: Callable[[str, EngineFailure], None] | None = None,
) -> dict[str, Series]:
    """As `interleave`, wherever the runs happen. An engine that fails is told to `on_failure`, and has no more turns
    and no figures.
    """
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in turns}
    for number in range(rounds):
        for name in list(times) if number % 2 == 0 else reversed(list(times)):
            if len(times) > 1:
                time.sleep(PAUSE_SECONDS)
            try:
                times[name].append(turns[name](seconds))
            except EngineFailure as e:
                if on_failure is None:
                    raise
                on_failure(name, e)
                del times[name]
        if on_round is not None:
            on_round(number + 1)
    return {name: Series(tuple(r)) for name, r in times.items()}


def speedup(ours: Series, theirs: Series) -> Ratio:
    """How many times longer `theirs` takes, from the medians of rounds that stood side by side."""
    return median_of_rounds(np.asarray(theirs.round_medians) / np.asarray(ours.round_medians))


def median_of_rounds(values: Sequence[float] | NDArray[np.float64]) -> Ratio:
    """The median of one value a round, with its interval."""
    found = np.asarray(values)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(found), (BOOTSTRAP_SAMPLES, len(found)))
    low, high = np.percentile(np.median(found[picks], axis=1), (2.5, 97.5))
    return Ratio(float(np.median(found)), float(low), float(high))
