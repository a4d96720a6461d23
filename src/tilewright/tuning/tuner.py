"""Tuning one task: candidates of its design spaces are built in batches, timed, verified and remembered.

What is right is known before anything is measured: the outputs of the Func as it is written, without any step, from the
interpreter where that is quick and natively where it is affordable; otherwise those of the default schedule. Every
candidate is compared with them.

Measurements in passing are noisy. So in the end the best few take turns with the default schedule, and one of them is
chosen only if it is better beyond doubt.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.codegen.objects import LLVM_VERSION
from tilewright.ir.expr import Buffer
from tilewright.search.database import DEFAULT_RULE, Choice, Database, Measurement, RecordScope
from tilewright.search.evolve import Evolution, Proposal
from tilewright.support.errors import UserError
from tilewright.support.turns import Series, median_of_rounds, speedup
from tilewright.tir.func import Func
from tilewright.tir.interp import interpret_func, poisoned_array
from tilewright.tir.stmt import Alloc, Block, For, If, IterKind, Repeat, Seq, Stmt, blocks
from tilewright.tuning.candidate import DEFAULT, PLAIN, Task, tensor_spec
from tilewright.tuning.candidates import Built, Candidates
from tilewright.tuning.failures import Failure
from tilewright.tuning.open_settings import shape_at, sizes_read, sizes_to_time
from tilewright.tuning.trial import (
    SHORT,
    Candidate,
    Experiment,
    TrialSizes,
    TrialStatus,
    random_input,
    tensor_bytes,
)
from tilewright.tuning.trials import Outcome, Trials
from tilewright.version import __version__

_log = logging.getLogger("tilewright")

BATCH = 24
FIRST_BATCH = 4
RUNS = 3  # of a candidate, after one that warms the caches; the quickest counts
FINALISTS = 4
ROUNDS = 15  # of the last comparison
MIN_ROUNDS = 5
_HOPELESS = 4.0  # times the best: a candidate this slow is run once
_WORTH_COMPARING = 0.99  # of the default's time, measured in passing
_LEAST_GAIN = (
    0.98  # of the default's time: for less, what was a little luck on this day is not worth a choice
)

_VERSIONS = f"tilewright {__version__}, LLVM {LLVM_VERSION}"
_INTERPRETED = 1 << 18  # iterations that the interpreter takes a moment for
_PLAIN_SECONDS = 8e-9  # for an iteration of a program without any step
_MEMORY_BYTES = 2 << 30  # for a candidate, and this many times its tensors
_MEMORY_TIMES = 4


def innermost_iterations(s: Stmt) -> int:
    """How often the innermost statements run."""
    match s:
        case For():
            return s.extent * innermost_iterations(s.body)
        case Seq():
            return sum(map(innermost_iterations, s.stmts))
        case If():
            return innermost_iterations(s.then)
        case Alloc() | Repeat():
            return innermost_iterations(s.body)
        case _:
            return 1


def tolerance(func: Func) -> float:
    """Of the result, relative to its largest magnitude: sums of n terms differ by the order in which they are added,
    by about the square root of n roundings. Integers alone are exact.
    """
    floats = [b.dtype for b in (*func.params, *func.locals) if b.dtype.is_float]
    if not floats:
        return 0.0
    coarsest = 2.0 ** -min(_MANTISSA[d.value] for d in floats)
    length = max((_reduction(b) for b in blocks(func.body)), default=1)
    return min(0.1, coarsest * (64 + 16 * math.sqrt(length)))


_MANTISSA = {"bf16": 7, "f16": 10, "f32": 23, "f64": 52}


def _reduction(block: Block) -> int:
    return math.prod(it.extent for it in block.iters if it.kind is IterKind.REDUCE)


def winner(found: Sequence[Series]) -> tuple[int, float]:
    """The quickest, and how many times quicker than the first it is; the first, unless it is no luck and worth it."""
    default = found[0]
    best = min(range(len(found)), key=lambda n: speedup(default, found[n]).value)
    gain = speedup(found[best], default)
    return (best, gain.value) if gain.low > 1.0 and gain.value >= 1.0 / _LEAST_GAIN else (0, 1.0)


@dataclass(frozen=True, slots=True)
class Tools:
    """What all tasks of a tuning share."""

    candidates: Candidates
    trials: Trials
    database: Database
    scope: RecordScope
    driver: bytes
    clock: Callable[[], float]  # seconds since the tuning began


@dataclass(slots=True, eq=False)
class TaskTuner:
    """One task. `prepare` first, then any number of `run_batch`, then `finish` or `settle`."""

    task: Task
    name: str
    calls: int  # in a run of the model
    tools: Tools
    threads: int = 1
    seed: int = 0
    default_seconds: float = math.inf
    best_seconds: float = math.inf
    trials: int = 0
    batches: int = 0
    last_gain: float = 0.0  # of the last batch, as a fraction
    problem: str = ""  # why the task is not tuned
    is_done: bool = False  # nothing is left to measure
    chosen: tuple[str, dict[str, int]] | None = None  # None: the default
    trace: str = ""  # of what is chosen
    failed: list[Failure] = field(default_factory=list[Failure])
    history: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    _evolution: Evolution | None = None
    _chosen_seconds: float | None = None  # of what was compared and chosen last
    _built: dict[Proposal, Built] = field(default_factory=dict[Proposal, Built])
    _incumbent: Proposal | None = None  # what an earlier tuning chose
    _default: Candidate | None = None
    _default_trace: str = ""
    _expected: list[bytes] = field(default_factory=list[bytes])
    _experiment: Experiment | None = None

    @property
    def is_prepared(self) -> bool:
        return self._experiment is not None

    @property
    def evolution(self) -> Evolution:
        """Over the design spaces of the task, which are found when they are first asked for."""
        if self._evolution is None:
            try:
                self._evolution = Evolution(self.task.design_spaces(), self.seed)
            except UserError as e:
                self._evolution = Evolution(())
                self._give_up(e.message)
        return self._evolution

    @property
    def points(self) -> int:
        """How many were ranked; 0 before anybody has asked for them."""
        return 0 if self._evolution is None else self._evolution.size

    def estimate(self) -> float:
        """Seconds that the Func may take, before anything is measured: only to weigh tasks against each other."""
        moved = sum(b.bytes for b in self.task.func.params)
        return innermost_iterations(self.task.func.body) / 2e10 + moved / 1e10

    # ----------------------------------------------------------------------------------------------------- beginning

    def prepare(self, seconds: float) -> None:
        """Find what is right (`seconds` may be spent on it), and time the default schedule."""
        func, tools = self.task.func, self.tools
        inputs = tuple(tensor_spec(p) for p in func.params if p not in func.outputs)
        outputs = tuple(map(tensor_spec, func.outputs))
        memory = _MEMORY_BYTES + _MEMORY_TIMES * tensor_bytes((*inputs, *outputs))
        sizes = tuple(
            TrialSizes(sizes_read(func, at), tuple(shape_at(b, at) for b in func.outputs))
            for at in sizes_to_time(func)
        )
        self._experiment = Experiment(
            inputs, outputs, tools.driver, self.threads, tolerance(func), memory, self.seed, sizes
        )
        plain, default = tools.candidates.build(self.task, [(PLAIN, {}), (DEFAULT, {})])
        if default.candidate is None:
            self._give_up(f"the default schedule cannot be built: {default.message}")
            return
        self._default, self._default_trace = default.candidate, default.trace
        self._expected = self._reference(plain, seconds)
        self._enter()
        outcome = self._time(default.candidate)
        self._record("default", DEFAULT_RULE, {}, outcome, default.trace)
        if outcome.status is not TrialStatus.OK:
            self._give_up(f"the default schedule: {outcome.status.value} ({outcome.message})")
            return
        self.default_seconds = self.best_seconds = outcome.seconds
        self.history.append((tools.clock(), outcome.seconds))
        self.trace = default.trace
        self._recall()

    def _give_up(self, problem: str) -> None:
        self.problem, self.is_done = problem, True
        _log.warning("%s is not tuned: %s", self.name, problem)

    def _reference(self, plain: Built, seconds: float) -> list[bytes]:
        """The outputs of the Func as it is written, or else of the default schedule; nothing if neither runs."""
        func = self.task.func
        work = innermost_iterations(func.body)
        if work <= _INTERPRETED:
            return self._interpret()
        assert self._experiment is not None and self._default is not None
        self.tools.trials.prepare(self._experiment)
        if plain.candidate is not None and work * _PLAIN_SECONDS <= seconds:
            outcome, results = self.tools.trials.outputs(plain.candidate, timeout=10 * seconds + 1)
            if outcome.status is TrialStatus.OK:
                return results
        _, results = self.tools.trials.outputs(self._default, timeout=60)
        return results

    def _interpret(self) -> list[bytes]:
        func = self.task.func
        given = [p for p in func.params if p not in func.outputs]
        results: list[bytes] = []
        for at in sizes_to_time(func):
            arrays: dict[Buffer, np.ndarray] = {b: poisoned_array(b) for b in func.outputs}
            arrays |= {p: random_input(tensor_spec(p), self.seed + n) for n, p in enumerate(given)}
            arrays |= {given[n]: np.array([size]) for n, size in sizes_read(func, at)}
            interpret_func(func, arrays)
            results += [arrays[b].tobytes() for b in func.outputs]
        return results

    def _recall(self) -> None:
        """What was measured before is not measured again; it guides the search, and its best may win. Times are taken
        relative to the default's of the same tuning, because the machine may have been busier then.
        """
        then = self.default_seconds
        for m in self.tools.database.measurements(self.tools.scope, self.task.key):
            if m.threads != self.threads:
                continue
            if m.purpose == "default" and m.seconds:
                then = m.seconds
            p = self.evolution.find(m.rule, m.decisions) if m.purpose == "trial" else None
            if p is not None:
                seconds = m.seconds if m.status == TrialStatus.OK.value and m.seconds else math.inf
                self.evolution.tell(p, seconds * self.default_seconds / then)
        choice = self._used_now()
        self._incumbent = None if choice is None else self.evolution.find(choice.rule, choice.decisions)

    def _used_now(self) -> Choice | None:
        """What compilation takes, as long as nothing else is chosen."""
        return self.tools.database.choice(self.tools.scope, self.task.key, self.threads)

    @property
    def is_stale(self) -> bool:
        """Is what compilation takes now from a tuning with other rules?"""
        choice = self._used_now()
        return choice is not None and choice.is_stale

    def verify_stale(self, seconds: float) -> None:
        """Let what was found with other rules take turns with the default again, and choose, in about `seconds`: what
        compilation takes now, and the best that was measured beside it.
        """
        if self.problem or not self.is_prepared:
            return
        stale = self._stale_points()
        points = [(self.evolution.rule(p), self.evolution.decisions(p)) for p in stale]
        built = self.tools.candidates.build(self.task, points)
        self._enter()
        sound = [p for p, made in zip(stale, built, strict=True) if self._try(p, made)]
        if self._incumbent not in sound:
            self._incumbent = None
        if stale:
            self.finish(seconds)
        else:  # no family has such a point any more
            self._choose_default()
        self._incumbent = None if self.chosen is None else self.evolution.find(*self.chosen)

    def _stale_points(self) -> list[Proposal]:
        rows = self.tools.database.measurements(self.tools.scope, self.task.key, stale=True)
        timed = [
            m for m in rows if m.is_stale and m.purpose == "trial" and m.threads == self.threads and m.seconds
        ]
        timed.sort(key=lambda m: m.seconds or math.inf)
        found = (self._incumbent, *(self.evolution.find(m.rule, m.decisions) for m in timed[:FINALISTS]))
        return list(dict.fromkeys(p for p in found if p is not None))[:FINALISTS]

    # ----------------------------------------------------------------------------------------------------- measuring

    def _enter(self) -> None:
        """Candidates of this task follow."""
        assert self._experiment is not None
        self.tools.trials.prepare(self._experiment, self._expected)

    def run_batch(self, count: int, is_current: bool, deadline: float) -> None:
        """Build and time up to `count` candidates. `is_current`: the last batch was of this task too."""
        before = self.best_seconds
        proposals = self.evolution.propose(count)
        if not proposals:
            self.is_done = True
            return
        points = [(self.evolution.rule(p), self.evolution.decisions(p)) for p in proposals]
        built = self.tools.candidates.build(self.task, points)
        if not is_current:
            self._enter()
        for p, made in zip(proposals, built, strict=True):
            if self.tools.clock() > deadline:  # built in vain; it may be proposed by another tuning
                break
            self._try(p, made)
        self.batches += 1
        self.last_gain = 1 - self.best_seconds / before

    def _try(self, p: Proposal, made: Built) -> bool:
        """Time a candidate and record it. Did it run, and is its result right?"""
        failed = Outcome(made.status, message=made.message)
        outcome = failed if made.candidate is None else self._time(made.candidate)
        self.trials += 1
        rule, decisions = self.evolution.rule(p), self.evolution.decisions(p)
        if outcome.status is not TrialStatus.OK:
            self.failed.append(Failure(outcome.status.value, outcome.message, self.name, rule, decisions))
            _log.debug("%s: %s: %s", self.name, outcome.status.value, outcome.message)
        self._record("trial", rule, decisions, outcome, made.trace)
        self.evolution.tell(p, outcome.seconds)
        if outcome.status is TrialStatus.OK:
            self._keep(p, made)
        if outcome.seconds < self.best_seconds:
            self.best_seconds = outcome.seconds
            self.history.append((self.tools.clock(), outcome.seconds))
        return outcome.status is TrialStatus.OK

    def _keep(self, p: Proposal, made: Built) -> None:
        """The code of those that may take part in the last comparison."""
        self._built[p] = made
        finalists = set(self.evolution.winners(FINALISTS))
        self._built = {q: b for q, b in self._built.items() if q in finalists}

    def _time(self, candidate: Candidate) -> Outcome:
        known = self.best_seconds if math.isfinite(self.best_seconds) else 1.0
        return self.tools.trials.run(
            candidate, runs=RUNS, slow=_HOPELESS * known, timeout=2.0 + 10 * (RUNS + 1) * known
        )

    def _record(
        self, purpose: str, rule: str, decisions: dict[str, int], outcome: Outcome, trace: str
    ) -> None:
        seconds = outcome.seconds if math.isfinite(outcome.seconds) else None
        row = Measurement(
            self.task.key,
            purpose,
            rule,
            decisions,
            outcome.status.value,
            seconds,
            self.threads,
            trace,
            outcome.message,
            _VERSIONS,
        )
        self.tools.database.record(self.tools.scope, row)

    # ------------------------------------------------------------------------------------------------------- the end

    def finish_seconds(self) -> float:
        """How long the last comparison may take."""
        if not self.is_worth_comparing:
            return 0.0
        return 0.3 + ROUNDS * self._round_seconds(FINALISTS + 1)

    def _round_seconds(self, entrants: int) -> float:
        return entrants * (1 + RUNS) * max(self.default_seconds, SHORT)

    @property
    def is_worth_comparing(self) -> bool:
        """Is there something that may be better, or that compilation uses now?"""
        if self.problem or not self.is_prepared:
            return False
        best = self.evolution.best
        is_better = best is not None and best[1] < _WORTH_COMPARING * self.default_seconds
        return is_better or self._incumbent is not None

    def finish(self, seconds: float) -> None:
        """Let the best few and the default take turns, for about `seconds`, and choose."""
        if not self.is_prepared or self.problem:
            return
        if not self.is_worth_comparing:
            if self.trials:
                self._choose_default()
            return
        finalists = self._finalists()
        assert self._default is not None
        entrants = [self._default, *(b.candidate for _, b in finalists if b.candidate is not None)]
        each = self._round_seconds(len(entrants))
        rounds = max(MIN_ROUNDS, min(ROUNDS, int(seconds / each)))
        self._enter()
        samples = self.tools.trials.compare(
            entrants, rounds=rounds, runs=RUNS, timeout=10.0 + 20 * rounds * each
        )
        if isinstance(samples, Outcome):
            _log.warning(
                "%s: the last comparison failed: %s %s", self.name, samples.status.value, samples.message
            )
            self.settle()
            return
        self._choose(finalists, samples)

    def _finalists(self) -> list[tuple[Proposal, Built]]:
        """The best few with their code, which is built again for those of earlier tunings. What compilation uses now is
        one of them.
        """
        winners = self.evolution.winners(FINALISTS)
        if self._incumbent is not None and self._incumbent not in winners:
            winners.append(self._incumbent)
        missing = [p for p in winners if p not in self._built]
        points = [(self.evolution.rule(p), self.evolution.decisions(p)) for p in missing]
        rebuilt = dict(zip(missing, self.tools.candidates.build(self.task, points), strict=True))
        found = [(p, self._built.get(p) or rebuilt[p]) for p in winners]
        return [(p, b) for p, b in found if b.candidate is not None]

    def _choose(self, finalists: list[tuple[Proposal, Built]], found: list[Series]) -> None:
        """The first of `found` is the default's."""
        self.default_seconds = median_of_rounds(found[0].round_medians).value
        best, gain = winner(found)
        if best == 0:
            self._choose_default()
            return
        p, built = finalists[best - 1]
        self._choose_point(p, self.default_seconds / gain, built.trace)

    def _choose_default(self) -> None:
        self.best_seconds, self.chosen, self.trace = self.default_seconds, None, self._default_trace
        self._chosen_seconds = self.default_seconds
        self._record(
            "choice", DEFAULT_RULE, {}, Outcome(TrialStatus.OK, self.default_seconds), self._default_trace
        )

    def _choose_point(self, p: Proposal, seconds: float, trace: str) -> None:
        self.best_seconds = self._chosen_seconds = seconds
        self.trace = trace
        self.chosen = self.evolution.rule(p), self.evolution.decisions(p)
        self._record("choice", *self.chosen, Outcome(TrialStatus.OK, seconds), trace)

    def settle(self) -> None:
        """Choose without measuring any more: only what is better by far."""
        best = None if self._evolution is None else self._evolution.best
        known = self.default_seconds if self._chosen_seconds is None else self._chosen_seconds
        if self.problem or best is None or best[1] >= 0.9 * known:
            self.best_seconds = known
            return
        built = self._built.get(best[0])
        self._choose_point(best[0], best[1], built.trace if built is not None else "")
