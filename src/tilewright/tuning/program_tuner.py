"""Tuning a whole program: structure and loops together, then loops alone, then whole programs in turns.

Joint stage: the compiler's own structure and others (`tuning/structures.py`) are compiled and timed site by site. Each
brings tasks of its own, since a Func with another layout or algorithm is another Func; of those that take time, a few
points are tried before the structure is judged. The best of all of them, mixed segment by segment, is a structure too.

Loop stage: the structure stays, and the rest of the time goes to schedules, task by task where another batch promises
most. As many candidates as there are sites are timed in one run of the program (`tuning/inside.py`).

In the end the best few of each task are measured again, the program is compiled with the winners, and takes turns with
the one that compilation makes by itself. It is kept only if it is quicker beyond doubt.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from statistics import median

from tilewright.compiler import CompiledModel
from tilewright.driver.trace import ProgramTrace
from tilewright.search.database import Choice, Database, Measurement, RecordScope
from tilewright.search.default import Spaces
from tilewright.search.evolve import Proposal
from tilewright.search.program_records import InsideTrial, ProgramRecord
from tilewright.support.errors import UserError
from tilewright.support.turns import Series, median_of_rounds, speedup
from tilewright.tuning.candidate import Task
from tilewright.tuning.candidates import Point
from tilewright.tuning.failures import Failure
from tilewright.tuning.insides import InsideOutcome
from tilewright.tuning.program_source import ProgramSource
from tilewright.tuning.sites import SitedProgram, sited
from tilewright.tuning.structures import (
    MeasuredStructure,
    Structure,
    mixed,
    other_algorithms,
    other_joins,
    other_layouts,
)
from tilewright.tuning.task_search import CLEARLY_BETTER, FINALISTS, TaskSearch
from tilewright.tuning.trial import Candidate, TrialStatus
from tilewright.tuning.workplace import CandidateBuilder, ProgramRunner

_log = logging.getLogger("tilewright")

# Shares of the budget, given: what the joint stage may take, and what is kept for the end.
_JOINT_SHARE = 0.4
_FINAL_SHARE = 0.2
_NEGLIGIBLE = 0.004  # of a run, given: a task below is not tuned
BATCH = 24  # candidates that are built together for each copy of the program, bound: about two seconds of building
_SITES = 4  # candidates of one task in a batch, for each copy, bound
_NO_MORE = 1000  # batches that stand for having no more points
_RUNS = 4  # of the program with candidates, and as many without
_AGAIN = 2  # times that what seems to be a gain is measured once more
_JOINT_BATCHES = 2  # of each structure, bound
_FINAL_ROUNDS = 9
_LEAST_FINAL_ROUNDS = 3
_FINAL_RUNS = 3
_COMPARE_ROUNDS = 25
_LEAST_ROUNDS = 5  # if the user does not want to wait
_TOLERANCE = 1e-3  # of the largest output, given: orders of sums differ in every layer
_LEAST_GAIN = 1.005  # given: for less, nothing is kept
_WORTH_MORE = 0.97  # of a ratio, given: gains that are kept if all of them together are not quicker

OnStep = Callable[[str], None]


@dataclass(slots=True)
class ProgramOutcome:
    """`series` are the times of the untuned program and of the tuned one, in rounds side by side."""

    untuned: CompiledModel
    tuned: CompiledModel | None = None  # None: the untuned one stays
    series: tuple[Series, Series] | None = None
    problem: str = ""

    @property
    def untuned_seconds(self) -> float:
        return math.inf if self.series is None else median_of_rounds(self.series[0].round_medians).value

    @property
    def seconds(self) -> float:
        return self.untuned_seconds / self.speedup

    @property
    def speedup(self) -> float:
        if self.series is None or self.tuned is None:
            return 1.0
        return speedup(self.series[1], self.series[0]).value


@dataclass(slots=True, eq=False)
class ProgramTuner:
    """`key` is that of the model in the database. `clock` tells the seconds since the tuning began."""

    source: ProgramSource
    key: str
    threads: int
    candidates: CandidateBuilder
    inside: ProgramRunner
    database: Database
    scope: RecordScope
    spaces: Spaces
    clock: Callable[[], float]
    budget: float
    on_step: OnStep = lambda text: None
    seed: int = 0
    limit: float = math.inf  # of trials
    is_joint: bool = True  # or loops alone, in the compiler's own structure
    searches: dict[str, TaskSearch] = field(default_factory=dict[str, TaskSearch])
    history: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    trials: int = 0
    untuned_seconds: float = math.inf  # of all sites, one by one
    structures: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])  # why, seconds
    _untuned: CompiledModel | None = None
    _program: SitedProgram | None = None

    # ------------------------------------------------------------------------------------------------- the whole of it

    def run(self) -> ProgramOutcome:
        """What came of it."""
        _, self._untuned = self.source.compile(ProgramTrace(), {})
        own = self._sited(ProgramTrace())
        self._enter(own)
        self.untuned_seconds = sum(self.inside.seconds)
        if self.is_joint:
            self._joint(own)
        self._loops()
        self._finals()
        return self._finish(_COMPARE_ROUNDS)

    def settle(self) -> ProgramOutcome | None:
        """End soon, with what is clearly better so far; None if nothing was measured yet."""
        if self._untuned is None or self._program is None:
            return None
        for s in self._current():
            s.settle()
        return self._finish(_LEAST_ROUNDS)

    @property
    def estimate(self) -> float:
        """Seconds of a run with the best of each task, as measured in passing."""
        if self._program is None:
            return math.inf
        every = self.inside.seconds
        saved = sum(s.seconds * (1 - s.best) for s in self._current())
        return sum(every) - saved

    @property
    def failed(self) -> list[Failure]:
        """Trials that did."""
        return [f for s in self.searches.values() for f in s.failed]

    def _sited(self, trace: ProgramTrace) -> SitedProgram:
        """With the schedules that compilation takes by itself: ratios of a task are the same in all programs."""
        given = ProgramTrace({**trace.sections, "beside": ()}, trace.machine)
        return sited(*self.source.compile(given, {}))

    def _enter(self, program: SitedProgram) -> None:
        """Candidates that follow stand in this program."""
        self.inside.prepare(program, 2 + _RUNS)
        self._program = program
        total = sum(self.inside.seconds)
        for key, (func, constants) in program.funcs.items():
            sites = program.calls_of(key)
            seconds = sum(self.inside.seconds[n] for n in sites)
            if seconds < _NEGLIGIBLE * total:
                self.searches.pop(key, None)
                continue
            search = self.searches.get(key)
            if search is None:
                task = Task(key, func, constants, self.source.target, self.spaces, None, self.threads)
                search = self.searches[key] = TaskSearch(task, sites, seconds, self.seed)
                self._recall(search)
            search.sites, search.seconds = sites, seconds

    def _recall(self, search: TaskSearch) -> None:
        """What was measured in this program before is not measured again, and guides the search."""
        for t in self.database.inside_trials(self.scope, self.key, self.threads, search.task.key):
            if t.is_stale:
                continue
            ratio = t.seconds / t.default_seconds if t.seconds and t.default_seconds else math.inf
            search.recall(t.rule, t.decisions, ratio)

    def _current(self) -> list[TaskSearch]:
        """The tasks of the program that candidates stand in."""
        assert self._program is not None
        return [s for k, s in self.searches.items() if k in self._program.funcs]

    # -------------------------------------------------------------------------------------------------- joint stage

    def _joint(self, own: SitedProgram) -> None:
        """Find the best structure; candidates stand in its program then."""
        end = _JOINT_SHARE * self.budget
        found = [self._judged("as compiled", own, end)]
        grouped = self.source.until("groups", own.trace)
        for structure in self._structures(own.trace):
            if self.clock() > end or self.trials >= self.limit:
                break
            program = self._try_structure(structure)
            if program is not None:
                found.append(self._judged(structure.why, program, end))
        for _ in range(2):
            trace, _ = mixed(found, grouped.current, self.source.target)
            if any(_structure(trace) == _structure(f.trace) for f in found):
                break
            program = self._try_structure(Structure("the best of all", trace))
            if program is None:
                break
            found.append(self._judged("the best of all", program, end))
        best = min(found, key=lambda f: f.total)
        self._enter(own if best is found[0] else self._sited(_without_kernels(best.trace)))

    def _structures(self, own: ProgramTrace) -> list[Structure]:
        source, target = self.source, self.source.target.for_threads(1)
        grouped = source.until("groups", own)
        found = list(other_algorithms(grouped, own, target, source.accuracy.allows))
        found += other_layouts(source.until("joins", own), own, target)
        found += other_joins(source.until("algorithms", own), own, target)
        return found

    def _try_structure(self, structure: Structure) -> SitedProgram | None:
        try:
            program = self._sited(structure.trace)
        except UserError as e:
            _log.debug("%s: %s", structure.why, e.message)
            return None
        self._enter(program)
        return program

    def _judged(self, why: str, program: SitedProgram, end: float) -> MeasuredStructure:
        """After a few batches for tasks that are new."""
        self.on_step(why)
        for _ in range(_JOINT_BATCHES):
            new = [s for s in self._current() if s.batches < _JOINT_BATCHES]
            if self.clock() > end or not new or self.trials >= self.limit:
                break
            self._batch(new)
        seconds: dict[str, float] = {}
        for n, site in enumerate(program.sites):
            search = self.searches.get(site.task)
            ratio = 1.0 if search is None else search.best
            seconds[site.func] = seconds.get(site.func, 0.0) + self.inside.seconds[n] * ratio
        judged = MeasuredStructure(program.trace, seconds)
        self.structures.append((why, judged.total))
        return judged

    # --------------------------------------------------------------------------------------------------- loop stage

    def _loops(self) -> None:
        end = (1 - _FINAL_SHARE) * self.budget
        self.on_step("loops")
        while self.clock() < end and self.trials < self.limit:
            left = [s for s in self._current() if s.promise > 0]
            left.sort(key=lambda s: -s.promise)
            if not self._batch(left):
                break

    def _batch(self, wanted: Sequence[TaskSearch]) -> bool:
        """Build and time candidates of these tasks, the first ones first; False if there are no more."""
        copies = self.inside.copies
        count = int(min(BATCH * copies, self.limit - self.trials))
        chosen: list[tuple[TaskSearch, int, Proposal]] = []
        for s in wanted:
            if s.batches >= _NO_MORE:  # to look for more again takes as long as to find some
                continue
            many = min(max(_SITES, BATCH // len(wanted)) * copies, count - len(chosen))
            if many < 1:
                break
            proposals = s.evolution.propose(many)
            if not proposals:
                s.batches += _NO_MORE
            chosen += [(s, site, p) for site, p in zip(cycle(s.sites), proposals, strict=False)]
        if not chosen:
            return False
        outcomes = self._tried([(s, site, s.point(p)) for s, site, p in chosen], _RUNS)
        for s in dict.fromkeys(s for s, _, _ in chosen):
            own = [(p, o.ratio) for (t, _, p), o in zip(chosen, outcomes, strict=True) if t is s]
            s.tell(own)
        self.history.append((self.clock(), self.estimate))
        self.on_step("")
        return True

    def _tried(self, wanted: Sequence[tuple[TaskSearch, int, Point]], runs: int) -> list[InsideOutcome]:
        """Candidates at sites, built and timed. What a run has measured is recorded at once."""
        built = self.candidates.build_all([(s.task, point) for s, _, point in wanted])
        failed = {n: b for n, b in enumerate(built) if b.candidate is None}
        found = {n: InsideOutcome(b.status, message=b.message) for n, b in failed.items()}
        self._note([(*wanted[n], o) for n, o in found.items()])
        left: dict[int, tuple[int, Candidate]] = {
            n: (wanted[n][1], b.candidate) for n, b in enumerate(built) if b.candidate is not None
        }
        while left:
            numbers = self._at_once(left)
            now = [left.pop(n) for n in numbers]
            timed = self.inside.run(now, runs)
            try:
                timed = self._confirmed(now, timed, runs)
            finally:  # whatever happens meanwhile
                found |= dict(zip(numbers, timed, strict=True))
                self._note([(*wanted[n], found[n]) for n in numbers])
        return [found[n] for n in range(len(wanted))]

    def _at_once(self, left: Mapping[int, tuple[int, Candidate]]) -> list[int]:
        """Those that run together: each copy of the program has one candidate at a site."""
        taken: dict[int, list[int]] = {}
        for n, (site, _) in left.items():
            taken.setdefault(site, []).append(n)
        return [n for numbers in taken.values() for n in numbers[: self.inside.copies]]

    def _confirmed(
        self, placed: Sequence[tuple[int, Candidate]], found: Sequence[InsideOutcome], runs: int
    ) -> list[InsideOutcome]:
        """What seems to be a gain is measured again: of many, the best is luck otherwise."""
        ratios = {n: [o.ratio] for n, o in enumerate(found) if o.ratio < CLEARLY_BETTER}
        for _ in range(_AGAIN if ratios else 0):
            for n, o in zip(ratios, self.inside.run([placed[n] for n in ratios], runs), strict=True):
                ratios[n].append(o.ratio)
        return [replace(o, ratio=median(ratios[n])) if n in ratios else o for n, o in enumerate(found)]

    def _note(self, measured: Sequence[tuple[TaskSearch, int, Point, InsideOutcome]]) -> None:
        trials: list[InsideTrial] = []
        for s, site, (rule, decisions), o in measured:
            if o.is_lost:  # with its node: nothing is known of it
                continue
            if o.status is not TrialStatus.OK:
                name = s.task.func.name
                s.failed.append(Failure(o.status.value, o.message, name, rule, dict(decisions)))
            base = self.inside.seconds[site]
            what = self.key, self.threads, s.task.key, rule, decisions, base * o.ratio, base
            trials.append(InsideTrial(*what, o.status.value, o.message))
        self.database.record_inside(self.scope, *trials)
        self.trials += len(trials)

    # ------------------------------------------------------------------------------------------------------ the end

    def _finals(self) -> None:
        """Measure the best few of each task again, at its sites in turn. A site has one candidate at a time."""
        self.on_step("finals")
        found = [(s, rank, p) for s in self._current() for rank, p in enumerate(s.finalists())]
        built = self.candidates.build_all([(s.task, s.point(p)) for s, _, p in found])
        entrants = [(*f, b.candidate) for f, b in zip(found, built, strict=True) if b.candidate is not None]
        end = (1 - _FINAL_SHARE / 2) * self.budget
        for n in range(_FINAL_ROUNDS):
            if self.clock() > end and n >= _LEAST_FINAL_ROUNDS:
                break
            for rank in range(FINALISTS):
                now = [(s, p, c) for s, r, p, c in entrants if r == rank]
                sites = [s.sites[(n + rank) % len(s.sites)] for s, _, _ in now]
                outcomes = self.inside.run(
                    [(site, c) for site, (_, _, c) in zip(sites, now, strict=True)], _FINAL_RUNS
                )
                for (s, p, _), o in zip(now, outcomes, strict=True):
                    s.tell_final(p, o.ratio)
        for s in {s: None for s, _, _ in found}:
            s.decide()

    def _finish(self, rounds: int) -> ProgramOutcome:
        """Compile with what has won, compare, and keep it if it is quicker."""
        untuned, program = self._untuned, self._program
        assert untuned is not None and program is not None
        structure = program.trace
        outcome = ProgramOutcome(untuned)
        won = {s.task.key: s for s in self._current() if s.chosen is not None}
        tries = [won, {k: s for k, s in won.items() if s.decided < _WORTH_MORE}]
        for n, kept in enumerate(tries):
            if n and len(kept) == len(won):
                break
            self.on_step("comparing programs")
            choices = {k: s.chosen for k, s in kept.items() if s.chosen is not None}
            _, made = self.source.compile(_without_kernels(structure), choices)
            if _same(made, untuned):
                break
            found = self.inside.compare(
                [untuned.artifact, made.artifact],
                rounds=rounds,
                seconds=max(0.05, min(0.5, 0.05 * self.budget / rounds)),
                tolerance=_TOLERANCE,
            )
            if isinstance(found, str):
                outcome.problem = f"the tuned program failed: {found}"
                _log.warning("%s", outcome.problem)
                continue
            outcome.series = found[0], found[1]
            gain = speedup(found[1], found[0])
            if gain.low > 1.0 and gain.value >= _LEAST_GAIN:
                outcome.tuned = made
                self._keep_choices(choices)
                break
        self._record(outcome)
        return outcome

    def _keep_choices(self, choices: Mapping[str, Choice]) -> None:
        """For other programs with the same kernels."""
        for key, choice in choices.items():
            s = self.searches[key]
            row = Measurement(
                key,
                "choice",
                choice.rule,
                choice.decisions,
                seconds=s.seconds / len(s.sites) * s.decided,
                threads=self.threads,
            )
            self.database.record(self.scope, row)

    def _record(self, outcome: ProgramOutcome) -> None:
        trace = "" if outcome.tuned is None else str(outcome.tuned.trace)
        record = ProgramRecord(self.key, self.threads, trace, outcome.seconds, outcome.untuned_seconds)
        self.database.record_program(self.scope, record)


def _structure(trace: ProgramTrace) -> Mapping[str, frozenset[str]]:
    """What a trace decides beside kernels, in any order."""
    names = ("groups", "algorithms", "joins", "layouts")
    return {n: frozenset(map(str, trace.sections.get(n, ()))) for n in names}


def _without_kernels(trace: ProgramTrace) -> ProgramTrace:
    kept = {n: d for n, d in trace.sections.items() if n not in ("kernels", "beside")}
    return replace(trace, sections=kept)


def _same(one: CompiledModel, other: CompiledModel) -> bool:
    return one.trace == other.trace
