"""`tune`: the best candidates of a design space, built, timed, verified and remembered.

    tw.tune("model.onnx", budget="60s")      all kernels of a model; the next tw.load uses what was found
    tw.tune(func, budget=10)                 one tensor program
    tw.tune(schedule, budget=10)             the decisions of a schedule's sampling steps

Time goes where it may gain most: every kernel that counts gets one batch, and after that the next batch goes to the
kernel whose time in a run, times what its last batch gained, is the largest. What is known is in the database at any
moment, so a tuning may be interrupted, and the next goes on where it ended.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from tilewright.codegen.driver import driver_ir
from tilewright.codegen.objects import compile_object
from tilewright.compiler import SPACES, Model
from tilewright.driver.passes import task_key
from tilewright.driver.tuned import tuning_scope
from tilewright.frontend.onnx.dim_ranges import DimRange
from tilewright.lowered import lowered
from tilewright.ops.accuracy import Accuracy, AccuracyLike
from tilewright.runtime.machine import check_threads, default_threads
from tilewright.schedule.decisions import sampling_steps
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.trace import print_trace
from tilewright.search.database import Database
from tilewright.search.default import Spaces
from tilewright.search.program_records import DONE, INTERRUPTED
from tilewright.support.arrays import Shapes
from tilewright.support.budget import parse_budget
from tilewright.support.closing import Closing
from tilewright.support.errors import Hint, UserError
from tilewright.support.program import leaves
from tilewright.target.names import resolve_target
from tilewright.target.target import Target
from tilewright.tir.func import Call, Func, Module
from tilewright.tuning.account import TuningAccount, open_tuning_database
from tilewright.tuning.candidate import Task
from tilewright.tuning.candidates import Candidates
from tilewright.tuning.failures import by_reason, by_status
from tilewright.tuning.model_tuning import ModelTuning
from tilewright.tuning.trials import Trials
from tilewright.tuning.tune_result import OnTuningProgress, TaskResult, TuneResult, TuningProgress
from tilewright.tuning.tuner import BATCH, FIRST_BATCH, TaskTuner, Tools
from tilewright.tuning.workplace import check_place

_NEGLIGIBLE = 0.003  # of a run: a kernel below is not tuned
_REFERENCE_SHARE = 0.05  # of the time to find out what is right


Subject: TypeAlias = "Func | Schedule | Model"


def tune(
    subject: Subject,
    *,
    budget: str | float | None = None,
    trials: int | None = None,
    threads: int = 1,
    seed: int = 0,
    shapes: Shapes | None = None,
    target: str | Target = "native",
    accuracy: AccuracyLike | None = None,
    spaces: Spaces | None = None,
    progress: OnTuningProgress | None = None,
    dims: Mapping[str, DimRange] | None = None,
    database: Database | str | Path | None = None,
    resume: bool = False,
    on: str | None = None,
    address: str | None = None,
) -> TuneResult:
    """Search for better schedules, and keep the best for later compilations (`docs/tuning.md`).

    On Ctrl-C everything measured is kept, and the interrupt goes on to the caller.

    Args:
        subject: a model (path, bytes or ModelProto), a Func, or a Schedule of one Func with sampling steps, whose
            decisions are taken anew.
        budget: how long: seconds, or "60s", "5m", "1.5h"; 60 s by default.
        trials: at most this many candidates are measured.
        threads: how many a candidate runs on, and is ranked for.
        seed: of the search and of random tensors.
        shapes: of inputs that the model leaves open, as for `load`.
        target: as for `load`.
        accuracy: of the model, as for `load`.
        spaces: the design spaces of a Func, instead of our own.
        progress: called with a `TuningProgress` after every batch.
        dims: ranges of open dimensions, as for `load`; candidates are timed at a few sizes of them
            (`tuning/open_settings.py`), and what is found is used by programs of the same ranges.
        database: a file to use instead of `TILEWRIGHT_DB`.
        resume: go on with the last tuning of the same kernels, target and threads that did not end: what it has used of
            its budget counts, and unless `budget` is given it is as large.
        on: "ray" for all nodes of a Ray cluster (`tuning/cluster.py`).
        address: of the cluster; by default that of RAY_ADDRESS, or else one of this machine alone.
    """
    with open_tuning(
        *(subject, budget, trials, threads, seed, shapes, target, accuracy, spaces, progress),
        database=database,
        dims=dims,
        resume=resume,
        on=on,
        address=address,
    ) as tuning:
        tuning.run()
        return tuning.result()


def open_tuning(
    subject: Subject,
    budget: str | float | None = None,
    trials: int | None = None,
    threads: int = 1,
    seed: int = 0,
    shapes: Shapes | None = None,
    target: str | Target = "native",
    accuracy: AccuracyLike | None = None,
    spaces: Spaces | None = None,
    progress: OnTuningProgress | None = None,
    database: Database | str | Path | None = None,
    dims: Mapping[str, DimRange] | None = None,
    resume: bool = False,
    on: str | None = None,
    address: str | None = None,
) -> "Tuning | ModelTuning":
    """A tuning as for `tune`. A model is tuned as a whole, unless Python has a part in its program, or its dimensions
    are open: then kernel by kernel, and on this machine alone.
    """
    check_place(on, address)
    if not isinstance(subject, Func | Schedule) and not dims:
        made = ModelTuning.try_open(
            *(subject, budget, trials, threads, seed, shapes, target, accuracy),
            spaces=SPACES if spaces is None else spaces,
            progress=progress,
            database=database,
            resume=resume,
            on=on,
            address=address,
        )
        if made is not None:
            return made
    if on is not None:
        raise UserError(
            "only a model whose program runs as a whole, with all sizes known, is tuned on a cluster",
            hint=Hint("leave out `on`, and dims", command="leave out --on, and --dim"),
        )
    return Tuning(
        *(subject, budget, trials, threads, seed, shapes, target, accuracy, spaces, progress),
        *(database, dims, resume),
    )


class Tuning(Closing):
    """A tuning kernel by kernel, that can be looked at after it was interrupted. Its processes end with it."""

    def __init__(
        self,
        subject: Subject,
        budget: str | float | None = None,
        trials: int | None = None,
        threads: int = 1,
        seed: int = 0,
        shapes: Shapes | None = None,
        target: str | Target = "native",
        accuracy: AccuracyLike | None = None,
        spaces: Spaces | None = None,
        progress: OnTuningProgress | None = None,
        database: Database | str | Path | None = None,
        dims: Mapping[str, DimRange] | None = None,
        resume: bool = False,
    ) -> None:
        self._start = time.monotonic()
        wanted = None if budget is None else parse_budget(budget)
        if trials is not None and trials < 1:
            raise UserError(f"trials = {trials}: there is nothing to do")
        self._limit = math.inf if trials is None else trials
        self._progress = progress
        self._database = open_tuning_database(database, must_exist=resume)
        machine = resolve_target(target)
        self._candidates, self._trials = Candidates(default_threads()), Trials()
        self._tools = Tools(
            self._candidates,
            self._trials,
            self._database,
            tuning_scope(machine),
            compile_object(driver_ir(machine), machine),
            lambda: time.monotonic() - self._start,
        )
        check_threads(threads)
        self._last: TaskTuner | None = None
        self._is_interrupted = False
        self._pace: float | None = None  # seconds for a candidate, as measured
        chosen = SPACES if spaces is None else spaces
        self.tuners = [
            TaskTuner(replace(task, threads=threads), task.func.name, count, self._tools, threads, seed)
            for task, count in _tasks(subject, shapes, dims, Accuracy.of(accuracy), machine, chosen)
        ]
        self.account = TuningAccount(
            self._database, self._tools.scope, {t.task.key: t.calls for t in self.tuners}, threads
        )
        if resume:
            self.account.resume(wanted, trials)
        else:
            self.account.begin(wanted)
        self.budget = self.account.left
        self._limit -= self.account.trials

    def close(self) -> None:
        self._candidates.close()
        self._trials.close()
        self._database.close()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def trials(self) -> int:
        return sum(t.trials for t in self.tuners)

    def run(self) -> None:
        """Until the budget is spent, or nothing is left to try."""
        try:
            self._candidates.start()
            self._trials.start()
            self.account.note(self.elapsed, self.trials)
            self._search()
            self._finish()
            self.account.note(self.elapsed, self.trials, DONE)
        except KeyboardInterrupt:
            self._is_interrupted = True
            for t in self.tuners:
                t.settle()
            self.account.note(self.elapsed, self.trials, INTERRUPTED)
            raise

    def result(self) -> TuneResult:
        found = tuple(_result(t) for t in self.tuners)
        return TuneResult(found, self.elapsed, self._is_interrupted)

    # -------------------------------------------------------------------------------------------------------- search

    def _search(self) -> None:
        total = sum(t.calls * t.estimate() for t in self.tuners)
        worthy = [
            t for t in self.tuners if t.calls * t.estimate() >= _NEGLIGIBLE * total and self._has_points(t)
        ]
        worthy.sort(key=lambda t: -t.calls * t.estimate())
        reference = max(0.3, _REFERENCE_SHARE * self.budget / max(1, len(worthy)))
        stale = [t for t in worthy if t.is_stale]
        for n, t in enumerate(
            stale
        ):  # before anything new: compilation takes what may mean something else by now
            if not self._goes_on():
                return
            t.prepare(reference)
            t.verify_stale((self.budget - self.elapsed) / (2 * (len(stale) - n)))
            self._tell(t)
        for t in worthy:  # all that count, once
            if not self._goes_on():
                return
            if not t.is_prepared:
                t.prepare(reference)
                self._tell(t)
            self._batch(t)
        while self._goes_on():
            left = [t for t in worthy if t.is_prepared and not t.is_done]
            if not left:
                return
            self._batch(max(left, key=_promise))

    def _has_points(self, t: TaskTuner) -> bool:
        """Where no rule spans a space there is nothing to search; of a single Func the time is still of interest."""
        return t.evolution.size > 0 or len(self.tuners) == 1

    def _goes_on(self) -> bool:
        return self.trials < self._limit and self.elapsed + self._reserve() < self.budget

    def _reserve(self) -> float:
        """Seconds for the last comparisons: at most a third of the budget."""
        return min(sum(t.finish_seconds() for t in self.tuners), self.budget / 3)

    def _batch(self, t: TaskTuner) -> None:
        left = self.budget - self._reserve() - self.elapsed
        # A first, small batch tells how long one takes.
        possible = FIRST_BATCH if self._pace is None else max(2, left / self._pace)
        count = int(min(BATCH, self._limit - self.trials, possible))
        if t.is_done or count < 1:
            return
        begin, before = self.elapsed, t.trials
        t.run_batch(count, self._last is t, self.budget - self._reserve())
        self._last = t
        if t.trials > before:
            self._pace = (self.elapsed - begin) / (t.trials - before)
        self._tell(t)

    def _finish(self) -> None:
        waiting = [t for t in self.tuners if t.is_prepared]
        for n, t in enumerate(waiting):
            wanted = sum(u.finish_seconds() for u in waiting[n:])
            share = t.finish_seconds() / wanted if wanted else 0.0
            t.finish(max(0.1, (self.budget - self.elapsed) * share))
            self._tell(t)

    def _tell(self, t: TaskTuner) -> None:
        self.account.note(self.elapsed, self.trials)
        if self._progress is None:
            return
        measured = [u for u in self.tuners if math.isfinite(u.default_seconds)]
        self._progress(
            TuningProgress(
                t.name,
                len(self.tuners),
                self.trials,
                by_status(f for u in self.tuners for f in u.failed),
                sum(u.calls * u.default_seconds for u in measured),
                sum(u.calls * u.best_seconds for u in measured),
                self.elapsed,
                self.budget,
            )
        )


def _promise(t: TaskTuner) -> float:
    """What another batch may gain in a run: as much as the last, or a little if it gained nothing."""
    return t.calls * t.best_seconds * max(t.last_gain, 0.1 / max(t.batches, 1))


def _result(t: TaskTuner) -> TaskResult:
    return TaskResult(
        t.name,
        t.task.key,
        t.calls,
        t.default_seconds,
        t.best_seconds,
        t.chosen,
        t.trace,
        t.trials,
        t.points,
        by_reason(t.failed),
        tuple(t.history),
        t.task.func,
        t.problem,
    )


def _tasks(
    subject: Subject,
    shapes: Shapes | None,
    dims: Mapping[str, DimRange] | None,
    accuracy: Accuracy,
    target: Target,
    spaces: Spaces,
) -> Sequence[tuple[Task, int]]:
    """The distinct Funcs, and how often each is called."""
    match subject:
        case Func():
            return [(Task(task_key(subject, ()), subject, frozenset(), target, spaces), 1)]
        case Schedule():
            return [(_trace_task(subject, target, spaces), 1)]
        case _:
            return _model_tasks(lowered(subject, shapes, accuracy, target, dims), target, spaces)


def _trace_task(schedule: Schedule, target: Target, spaces: Spaces) -> Task:
    """Its key is of its own: what is found is for this trace, and no compilation looks it up."""
    func = schedule.at(0)
    if not isinstance(func, Func):
        raise UserError("only a schedule of one Func can be tuned", hint="tune the model, or one Func of it")
    if not sampling_steps(schedule.trace):
        raise UserError(
            "the schedule has no decisions to tune",
            hint="use sampling steps such as sample_perfect_tile, or tune the Func itself",
        )
    text = print_trace(schedule.trace)
    key = sha256(f"{task_key(func, ())}\n{text}".encode()).hexdigest()[:32]
    return Task(key, func, frozenset(), target, spaces, text)


def _model_tasks(module: Module, target: Target, spaces: Spaces) -> Sequence[tuple[Task, int]]:
    constants = frozenset(c.buffer for c in module.constants)
    counts = Counter(c.func for c in leaves(module.program) if isinstance(c, Call))
    tasks: dict[str, Task] = {}
    total: Counter[str] = Counter()
    for func in module.funcs:
        key = task_key(func, constants)
        names = frozenset(p.name for p in func.params if p in constants)
        tasks.setdefault(key, Task(key, func, names, target, spaces))
        total[key] += counts[func.name]
    return [(task, total[key]) for key, task in tasks.items()]
