"""What a tuning has found, and how far it is."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.schedule.schedule import Schedule
from tilewright.schedule.trace import parse_trace
from tilewright.support.turns import Ratio
from tilewright.tir.func import Func
from tilewright.tuning.failures import Failure, by_reason, by_status


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """How far a tuning is."""

    task: str
    tasks: int
    trials: int
    failures: dict[str, int]
    default_seconds: float  # of a run: all tasks that were measured, times their calls
    best_seconds: float
    elapsed: float
    budget: float


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What was found for one Func. `chosen` is a rule with its decisions, or None: the default stays."""

    name: str
    key: str
    calls: int
    default_seconds: float
    best_seconds: float
    chosen: tuple[str, dict[str, int]] | None
    trace: str
    trials: int
    points: int  # in its design spaces
    failed: tuple[Failure, ...]  # trials that did, by reason
    history: tuple[tuple[float, float], ...]  # (seconds since the start, best so far)
    func: Func
    problem: str = ""

    def schedule(self) -> Schedule:
        """The program that was found to be the best."""
        s = Schedule(self.func)
        for step in parse_trace(self.trace):
            s.apply(step)
        return s

    @property
    def failures(self) -> dict[str, int]:
        """How many trials failed, by kind."""
        return by_status(self.failed)

    @property
    def speedup(self) -> float:
        return self.default_seconds / self.best_seconds if self.best_seconds else 1.0


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What was found for a whole program. Times are of a run, in turns; the `speedup` comes with its interval, and is
    None if there was nothing to compare. `trace` is empty if the program stays as it is compiled without tuning.
    """

    untuned_seconds: float
    seconds: float
    speedup: Ratio | None
    trace: str
    structures: tuple[
        tuple[str, float], ...
    ]  # that were tried, each with the seconds of a run as measured in passing
    history: tuple[tuple[float, float], ...]  # (seconds since the start, estimated seconds of a run)
    trials: int
    failed: tuple[Failure, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TuneResult:
    """Times are of a run: of the whole program, if that was tuned, or else the sum over tasks, each as often as it is
    called.
    """

    tasks: tuple[TaskResult, ...]
    elapsed: float
    is_interrupted: bool = False
    program: ProgramResult | None = None

    @property
    def default_seconds(self) -> float:
        if self.program is not None:
            return self.program.untuned_seconds
        return sum(t.calls * t.default_seconds for t in self._measured)

    @property
    def best_seconds(self) -> float:
        if self.program is not None:
            return self.program.seconds
        return sum(t.calls * t.best_seconds for t in self._measured)

    @property
    def _measured(self) -> list[TaskResult]:
        return [t for t in self.tasks if math.isfinite(t.default_seconds)]

    @property
    def trials(self) -> int:
        return sum(t.trials for t in self.tasks) if self.program is None else self.program.trials

    @property
    def failures(self) -> dict[str, int]:
        """How many trials failed, by kind."""
        return by_status(self.failed)

    @property
    def failed(self) -> tuple[Failure, ...]:
        """Trials that did, by reason, the most frequent first."""
        if self.program is not None:
            return self.program.failed
        return by_reason(f for t in self.tasks for f in t.failed)

    @property
    def history(self) -> tuple[tuple[float, float], ...]:
        """(seconds since the start, time of a run), from when all tasks have been measured once."""
        if self.program is not None:
            return self.program.history
        now: dict[str, float] = {}
        events = sorted((at, t.key, t.calls * s) for t in self._measured for at, s in t.history)
        out: list[tuple[float, float]] = []
        for at, key, seconds in events:
            now[key] = seconds
            if len(now) == len(self._measured):
                out.append((at, sum(now.values())))
        return tuple(out)


OnTuningProgress: TypeAlias = Callable[[TuningProgress], None]
