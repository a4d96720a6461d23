"""The tuning of a model as a whole (`tuning/program_tuner.py`), with its processes, its budget and its database."""

import math
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from tilewright.compiler import Model, learned_refiner
from tilewright.driver.keys import model_digest
from tilewright.driver.shipped_model import SCHEDULES_MODEL, SECONDS_MODEL
from tilewright.driver.tuned import tuned_model_key, tuning_scope
from tilewright.frontend.onnx.load import load_graph
from tilewright.ops.accuracy import Accuracy, AccuracyLike
from tilewright.runtime.cache import default_cache
from tilewright.runtime.machine import check_threads, runs_here
from tilewright.search.database import Database
from tilewright.search.default import Spaces
from tilewright.search.program_records import DONE, INTERRUPTED
from tilewright.support.arrays import Shapes
from tilewright.support.budget import parse_budget
from tilewright.support.closing import Closing
from tilewright.support.errors import MultipleProgramsError, UserError
from tilewright.support.turns import speedup
from tilewright.target.names import resolve_target
from tilewright.target.target import Target
from tilewright.tuning.account import TuningAccount, open_tuning_database
from tilewright.tuning.failures import by_reason, by_status
from tilewright.tuning.program_source import ProgramSource
from tilewright.tuning.program_tuner import ProgramOutcome, ProgramTuner
from tilewright.tuning.task_search import TaskSearch
from tilewright.tuning.tune_result import (
    OnTuningProgress,
    ProgramResult,
    TaskResult,
    TuneResult,
    TuningProgress,
)
from tilewright.tuning.workplace import Workplace, workplace


class ModelTuning(Closing):
    """It can be looked at after it was interrupted. Its processes end with it: use it as a context manager."""

    def __init__(
        self,
        source: ProgramSource,
        key: str,
        budget: float | None,
        trials: int | None,
        threads: int,
        seed: int,
        spaces: Spaces,
        progress: OnTuningProgress | None,
        database: Database,
        resume: bool,
        open_place: Callable[[], Workplace],
    ) -> None:
        self._start = time.monotonic()
        self._source, self._progress, self._database = source, progress, database
        scope = tuning_scope(source.target)
        self.account = TuningAccount(database, scope, {key: 1}, threads)
        if resume:
            self.account.resume(budget, trials)
        else:
            self.account.begin(budget)
        self.budget = self.account.left
        place = self._place = open_place()
        self.tuner = ProgramTuner(
            *(source, key, threads, place.builder, place.runner, database, scope, spaces),
            clock=lambda: self.elapsed,
            budget=self.budget,
            on_step=self._tell,
            seed=seed,
            limit=math.inf if trials is None else trials - self.account.trials,
            refine=learned_refiner(SCHEDULES_MODEL, default_cache()),
            refine_fusion=learned_refiner(SECONDS_MODEL, default_cache()),
        )
        self._outcome: ProgramOutcome | None = None
        self._is_interrupted = False
        self._step = ""

    @staticmethod
    def try_open(
        model: Model,
        budget: str | float | None,
        trials: int | None,
        threads: int,
        seed: int,
        shapes: Shapes | None,
        target: str | Target,
        accuracy: AccuracyLike | None,
        *,
        spaces: Spaces,
        progress: OnTuningProgress | None,
        database: Database | str | Path | None,
        resume: bool,
        on: str | None = None,
        address: str | None = None,
    ) -> "ModelTuning | None":
        """None if the model does not become one program, or the program cannot run here."""
        wanted = None if budget is None else parse_budget(budget)
        if trials is not None and trials < 1:
            raise UserError(f"trials = {trials}: there is nothing to do")
        check_threads(threads)
        machine, bound = resolve_target(target), Accuracy.of(accuracy)
        if not runs_here(machine.triple, machine.features):
            return None
        try:
            source = ProgramSource(load_graph(model, shapes), machine, bound)
        except MultipleProgramsError:
            return None
        digest = model_digest(model, default_cache()) or sha256(str(source.graph).encode()).hexdigest()
        key = tuned_model_key(digest, shapes, bound)
        try:
            if source.is_one_segment():
                return ModelTuning(
                    *(source, key, wanted, trials, threads, seed, spaces, progress),
                    *(open_tuning_database(database, must_exist=resume), resume),
                    lambda: workplace(on, address, threads, seed),
                )
        except BaseException:
            source.close()
            raise
        source.close()
        return None

    def close(self) -> None:
        self._source.close()
        self._place.close()
        self._database.close()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def trials(self) -> int:
        return self.tuner.trials

    def run(self) -> None:
        """Until the budget is spent, or nothing is left to try."""
        try:
            if self._place.cluster is not None:  # it may take a while
                self._place.builder.start()
            self._start = time.monotonic()
            if self._place.cluster is None:  # while the first program is compiled
                self._place.builder.start()
            self.account.note(self.elapsed, self.trials)
            self._outcome = self.tuner.run()
            self.account.note(self.elapsed, self.trials, DONE)
        except KeyboardInterrupt:
            self._is_interrupted = True
            self.account.note(self.elapsed, self.trials, INTERRUPTED)
            self._outcome = self.tuner.settle()
            raise

    def result(self) -> TuneResult:
        tasks = sorted(self.tuner.searches.values(), key=lambda s: -s.seconds)
        found = tuple(_task_result(s, self.elapsed) for s in tasks)
        return TuneResult(found, self.elapsed, self._is_interrupted, self._program_result())

    def _program_result(self) -> ProgramResult:
        outcome, tuner = self._outcome, self.tuner
        compared = None if outcome is None else outcome.series
        return ProgramResult(
            tuner.untuned_seconds if compared is None or outcome is None else outcome.untuned_seconds,
            tuner.untuned_seconds if compared is None or outcome is None else outcome.seconds,
            None if compared is None else speedup(compared[1], compared[0]),
            "" if outcome is None or outcome.tuned is None else str(outcome.tuned.trace),
            tuple(tuner.structures),
            tuple(tuner.history),
            tuner.trials,
            by_reason(tuner.failed),
            "" if outcome is None else outcome.problem,
        )

    def _tell(self, step: str) -> None:
        self._step = step or self._step
        if not step:
            self.account.note(self.elapsed, self.trials)
        if self._progress is None:
            return
        tuner = self.tuner
        self._progress(
            TuningProgress(
                self._step,
                len(tuner.searches),
                self.trials,
                by_status(tuner.failed),
                tuner.untuned_seconds,
                tuner.estimate,
                self.elapsed,
                self.budget,
            )
        )


def _task_result(s: TaskSearch, elapsed: float) -> TaskResult:
    """Of a call in a run, on the average over its sites."""
    each = s.seconds / len(s.sites)
    chosen = None if s.chosen is None else (s.chosen.rule, dict(s.chosen.decisions))
    return TaskResult(
        *(s.task.func.name, s.task.key, len(s.sites), each, each * s.decided, chosen, ""),
        *(s.trials, s.points, by_reason(s.failed), ((elapsed, each * s.decided),), s.task.func),
    )
