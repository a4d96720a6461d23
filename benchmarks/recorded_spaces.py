"""Design spaces of which points were measured once: strategies search them again and again without a measurement."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.network_kernels import NetworkKernel
from tilewright.codegen.driver import driver_ir
from tilewright.codegen.objects import compile_object
from tilewright.driver.tuned import tuning_scope
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.runtime.machine import default_threads
from tilewright.schedule.schedule import Schedule
from tilewright.search.database import Database
from tilewright.search.evolve import Evolution, PointRow, Proposal
from tilewright.support.errors import ScheduleError
from tilewright.tuning.candidates import Candidates
from tilewright.tuning.trials import Trials
from tilewright.tuning.tuner import BATCH, TaskTuner, Tools


class RecordedSpace(Space):
    """The points of one family that were measured, with the costs that they had; others have no schedule."""

    def __init__(self, family: str, knobs: Sequence[str], costs: Mapping[PointRow, float]) -> None:
        self.family = family
        self._costs = dict(costs)
        self._rows = np.array(list(self._costs), np.int64).reshape(len(self._costs), len(knobs))
        self.knobs = tuple(
            Knob(name, tuple(sorted({int(v) for v in self._rows[:, n]}))) for n, name in enumerate(knobs)
        )

    def points(self) -> Points:
        return self._rows

    def cost(self, points: Points) -> Costs:
        return np.array([self._costs.get(tuple(int(v) for v in p), np.inf) for p in points], np.float64)

    def build(self, decisions: KnobValues) -> Schedule:
        raise ScheduleError("only times are known of it")


class RecordedTask:
    """The spaces of a kernel as they were recorded, and the times of their points."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.name: str = record["name"]
        self.default_seconds: float = record["default_seconds"]
        self.spaces: list[Space] = []
        self._seconds: list[dict[PointRow, float]] = []
        for space in record["spaces"]:
            rows = [(tuple(row), cost, seconds) for row, cost, seconds in space["points"]]
            self.spaces.append(
                RecordedSpace(space["family"], space["knobs"], {r: cost for r, cost, _ in rows})
            )
            self._seconds.append({r: np.inf if s is None else s for r, _, s in rows})

    def seconds(self, p: Proposal) -> float:
        return self._seconds[p.space][p.row]

    @property
    def size(self) -> int:
        return sum(map(len, self._seconds))

    @property
    def best_seconds(self) -> float:
        return min(s for times in self._seconds for s in times.values())


class Sampling(Evolution):
    """Half of the points are the cheapest by cost, and half are taken evenly from the rest."""

    def __init__(self, spaces: Sequence[Space], count: int, seed: int = 0) -> None:
        super().__init__(spaces, seed)
        cheap = min(count // 2, self.size)
        rest = np.random.default_rng(seed).permutation(np.arange(cheap, self.size))[: count - cheap]
        self._left = [self._ranked_at(int(n)) for n in (*range(cheap), *rest)]

    def propose(self, count: int) -> list[Proposal]:
        chosen, self._left = self._left[:count], self._left[count:]
        return chosen


class _Noting(Sampling):
    """Keeps the times that it is told."""

    def __init__(self, spaces: Sequence[Space], count: int) -> None:
        super().__init__(spaces, count)
        self.times: dict[Proposal, float] = {}

    def tell(self, p: Proposal, seconds: float) -> None:
        super().tell(p, seconds)
        self.times[p] = seconds


class _RecordingTuner(TaskTuner):
    """Tries the points that it is given."""

    sampling: Sampling

    @property
    def evolution(self) -> Evolution:
        return self.sampling


def record(kernel: NetworkKernel, count: int, seconds: float) -> dict[str, Any] | None:
    """Measure so many points of a kernel, or as many as can be measured in so many seconds; None if it cannot run."""
    target = kernel.task.target
    sampling = _Noting(kernel.task.design_spaces(), count)
    with Candidates(default_threads()) as candidates, Trials() as trials:
        start = time.monotonic()
        tools = Tools(
            *(candidates, trials, Database(None), tuning_scope(target)),
            compile_object(driver_ir(target), target),
            lambda: time.monotonic() - start,
        )
        tuner = _RecordingTuner(kernel.task, kernel.name, kernel.calls, tools, kernel.task.threads)
        tuner.sampling = sampling
        tuner.prepare(1.0)
        while not (tuner.is_done or tuner.problem) and tools.clock() < seconds:
            tuner.run_batch(BATCH, True, seconds)
    if tuner.problem or not sampling.times:
        return None
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "default_seconds": tuner.default_seconds,
        "points_in_all": sampling.size,
        "spaces": [_space_record(s, n, sampling.times) for n, s in enumerate(sampling.spaces)],
    }


def _space_record(space: Space, number: int, times: Mapping[Proposal, float]) -> dict[str, Any]:
    mine = [(p.row, s) for p, s in times.items() if p.space == number]
    costs = space.cost(np.array([row for row, _ in mine], np.int64).reshape(len(mine), len(space.knobs)))
    points = [
        [list(row), float(c), s if np.isfinite(s) else None] for (row, s), c in zip(mine, costs, strict=True)
    ]
    return {"family": space.family, "knobs": [k.name for k in space.knobs], "points": points}
