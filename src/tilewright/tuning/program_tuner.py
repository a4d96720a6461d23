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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from tilewright.compiler import CompiledModel
from tilewright.driver.trace import ProgramTrace
from tilewright.learned.online import OnlineModel
from tilewright.search.database import Choice, Database, Measurement, RecordScope
from tilewright.search.default import Refine, Spaces, as_stated
from tilewright.search.evolve import Proposal
from tilewright.search.program_records import InsideTrial, ProgramRecord
from tilewright.support.errors import UserError
from tilewright.support.turns import Series, median_of_rounds, speedup
from tilewright.tuning.candidate import Task
from tilewright.tuning.failures import Failure
from tilewright.tuning.groups import mixed_groups, other_groups
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
from tilewright.tuning.task_search import Entrant, TaskSearch
from tilewright.tuning.trial import Candidate, TrialStatus
from tilewright.tuning.workplace import CandidateBuilder, ProgramRunner

_log = logging.getLogger("tilewright")

# Shares of the budget, given: what the joint stage may take, and what is kept for the end.
_JOINT_SHARE = 0.4
_FINAL_SHARE = 0.2
_NEGLIGIBLE = 0.004  # of a run, given: a task below is not tuned
BATCH = (
    32  # candidates that are built together for each copy of the program, bound: a few seconds of building
)
_MOST_OF_A_TASK = 16  # candidates in a batch, for each copy, bound
_LEAST_TIMED, _MOST_TIMED = 2, 16  # rounds of the program in which new candidates of a batch are timed, bound
_TIMED_SECONDS = 2.0  # of such rounds, given: about as long as building takes
_NO_MORE = 1000  # batches that stand for having no more points
_RUNS = 4  # of the program with candidates, and as many without
_STRUCTURE_RUNS = 10  # of the program of a structure, to time its sites
_JOINT_BATCHES = 2  # of each structure, bound
_LEAST_FINAL_ROUNDS = 6
_TURN_SECONDS = 0.01  # of a program that takes turns; one run, if it takes longer
_LEAST_ROUNDS, _MOST_ROUNDS = 25, 400  # of such turns
_COMPARE_SHARE = 0.1  # of the budget, and in seconds at least and at most
_LEAST_COMPARE, _MOST_COMPARE = 4.0, 40.0
_MOST_COMPARE_SHARE = 0.2  # of the budget, given: a short tuning shall not take much longer than it may
_TOLERANCE = 1e-3  # of the largest output, given: orders of sums differ in every layer
_LEAST_GAIN = 1.005  # given: for less, nothing is kept
_MUCH = 0.97  # a ratio, given: gains that are kept if all of them together are not quicker

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
    refine: Refine = as_stated  # ranks schedules that were not measured
    refine_fusion: Refine = as_stated  # has seconds of kernels, which fusion adds up
    online: OnlineModel = field(default_factory=OnlineModel)  # learns from what is measured
    is_joint: bool = True  # or loops alone, in the structure that it begins with
    begin: ProgramTrace = field(
        default_factory=ProgramTrace
    )  # what is not decided here is the compiler's own
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
        _, self._untuned = self.source.compile(self.begin, {})
        own = self._sited(self.begin)
        self.candidates.wait_until_ready()  # they would disturb the first times
        self._enter(own)
        self.untuned_seconds = sum(self.inside.seconds)
        if self.is_joint:
            self._joint(own)
        self._loops()
        self._finals()
        wanted = min(max(_COMPARE_SHARE * self.budget, _LEAST_COMPARE), _MOST_COMPARE)
        return self._finish(min(wanted, _MOST_COMPARE_SHARE * self.budget))

    def settle(self) -> ProgramOutcome | None:
        """End soon, with what is clearly better so far; None if nothing was measured yet."""
        if self._untuned is None or self._program is None:
            return None
        for s in self._current():
            s.decide()
        return self._finish(_LEAST_COMPARE)

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
        self.inside.prepare(program, _STRUCTURE_RUNS)
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
                search = self.searches[key] = TaskSearch(
                    task, sites, seconds, self.seed, self.refine, self.online
                )
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

    def _joint(self, compiled: SitedProgram) -> None:
        """Find the best structure; candidates stand in its program then."""
        end = _JOINT_SHARE * self.budget
        own, judged = self._best_groups(compiled, end)
        found = [judged]
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
        chosen = own if best is found[0] else self._sited(_without_kernels(best.trace))
        if chosen is not self._program:
            self._enter(chosen)

    def _best_groups(self, compiled: SitedProgram, end: float) -> tuple[SitedProgram, MeasuredStructure]:
        """The program with the groups that are quickest in each part of the graph."""
        found = [self._judged("as compiled", compiled, end)]
        for structure in other_groups(
            compiled.trace,
            lambda eagerness, refine: self.source.until("groups", ProgramTrace(), eagerness, refine).trace,
            self.refine_fusion,
        ):
            program = self._try_structure(structure) if self.clock() < end else None
            if program is not None:
                found.append(self._judged(structure.why, program, end))
        mixed = mixed_groups(found)
        program = None if mixed is None else self._try_structure(Structure("the best groups", mixed))
        if program is not None:
            judged = self._judged("the best groups", program, end)
            if judged.total < found[0].total:
                return program, judged
        if self._program is not compiled:
            self._enter(compiled)
        return compiled, found[0]

    def _structures(self, own: ProgramTrace) -> Iterator[Structure]:
        """One of each kind in turn: where there is little time, some of all kinds are tried."""
        source, target = self.source, self.source.target.for_threads(1)
        grouped = source.until("groups", own)
        kinds = (
            other_algorithms(grouped, own, target, source.accuracy.allows),
            other_layouts(source.until("joins", own), own, target),
            other_joins(source.until("algorithms", own), own, target),
        )
        return (s for turn in zip_longest(*kinds) for s in turn if s is not None)

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
        chosen = self._proposed(wanted)
        if not chosen:
            return False
        tasks = list(dict.fromkeys(s for s, _ in chosen))
        before = [s.best for s in tasks]
        built = self.candidates.build_all([(s.task, s.point(p)) for s, p in chosen])
        for (s, p), b in zip(chosen, built, strict=True):
            if b.candidate is None:
                s.tell(p, None, ())
                self._note([(s, s.sites[0], p, InsideOutcome(b.status, message=b.message))])
        waiting = {
            s: deque(
                (p, b.candidate)
                for (t, p), b in zip(chosen, built, strict=True)
                if t is s and b.candidate is not None
            )
            for s in tasks
        }
        while any(waiting.values()):
            self._run_round(waiting)
        for s, best in zip(tasks, before, strict=True):
            s.end_batch(best)
        self.history.append((self.clock(), self.estimate))
        self.on_step("")
        return True

    def _proposed(self, wanted: Sequence[TaskSearch]) -> list[tuple[TaskSearch, Proposal]]:
        """As many as take a few seconds to build. A task has no more of them than its sites time in as long."""
        copies = self.inside.copies
        round_seconds = 2 * _RUNS * sum(self.inside.seconds)
        rounds = int(min(max(_TIMED_SECONDS / round_seconds, _LEAST_TIMED), _MOST_TIMED))
        count = int(min(BATCH * copies, self.limit - self.trials))
        chosen: list[tuple[TaskSearch, Proposal]] = []
        for s in wanted:
            if s.batches >= _NO_MORE:  # to look for more again takes as long as to find some
                continue
            many = min(rounds * len(s.sites) * copies, _MOST_OF_A_TASK * copies, count - len(chosen))
            if many < 1:
                break
            proposals = s.propose(many)
            if not proposals:
                s.batches += _NO_MORE
            chosen += [(s, p) for p in proposals]
        return chosen

    def _run_round(self, waiting: Mapping[TaskSearch, deque[tuple[Proposal, Candidate]]]) -> None:
        """Run the program with something at each site: a candidate that waits for it, or else a leader of which too
        little is known.
        """
        placed: list[tuple[TaskSearch, int, Proposal | Entrant, Candidate]] = []
        for s in self._current():
            for site in s.sites:
                for _ in range(self.inside.copies):
                    queue = waiting.get(s)
                    if queue:
                        placed.append((s, site, *queue.popleft()))
                        continue
                    leader = s.doubtful()
                    if leader is not None:
                        placed.append((s, site, leader, leader.candidate))
                    break  # a leader is timed once at a site
        outcomes = self.inside.run([(site, c) for _, site, _, c in placed], _RUNS)
        ended = list(zip(placed, outcomes, strict=True))
        self._note([(s, site, p, o) for (s, site, p, _), o in ended if isinstance(p, Proposal)])
        for (s, _, what, candidate), o in ended:
            if isinstance(what, Proposal):
                s.tell(what, candidate, o.ratios)
            else:
                s.tell_again(what, o.ratios)

    def _note(self, measured: Sequence[tuple[TaskSearch, int, Proposal, InsideOutcome]]) -> None:
        """Record what is new."""
        trials: list[InsideTrial] = []
        for s, site, p, o in measured:
            if o.is_lost or not s.is_new(p):  # with its node: nothing is known of it
                continue
            rule, decisions = s.point(p)
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
        """Time leaders until enough is known of them, and decide."""
        self.on_step("finals")
        end = (1 - _FINAL_SHARE / 2) * self.budget
        rounds = 0
        while any(s.doubtful() is not None for s in self._current()):
            if self.clock() > end and rounds >= _LEAST_FINAL_ROUNDS:
                break
            self._run_round({})
            rounds += 1
        for s in self._current():
            s.decide()

    def _finish(self, seconds: float) -> ProgramOutcome:
        """Compile with what has won, compare for about so long, and keep it if it is quicker."""
        untuned, program = self._untuned, self._program
        assert untuned is not None and program is not None
        outcome = ProgramOutcome(untuned)
        tried = [untuned]
        for n, (structure, kept) in enumerate(self._outcomes(program.trace)):
            if n and self.clock() > self.budget:
                break
            self.on_step("comparing programs")
            choices = {k: s.chosen for k, s in kept.items() if s.chosen is not None}
            _, made = self.source.compile(_without_kernels(structure), choices)
            if any(made.trace == t.trace for t in tried):
                continue
            tried.append(made)
            turn = max(_TURN_SECONDS, sum(self.inside.seconds))
            found = self.inside.compare(
                [untuned.artifact, made.artifact],
                rounds=round(min(max(seconds / (2 * turn), _LEAST_ROUNDS), _MOST_ROUNDS)),
                seconds=_TURN_SECONDS,
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

    def _outcomes(self, structure: ProgramTrace) -> Iterator[tuple[ProgramTrace, dict[str, TaskSearch]]]:
        """What may be kept, the most promising first: all that has won; those kernels alone that gain much; all that
        has won in the compiler's own structure.
        """
        won = {k: s for k, s in self.searches.items() if s.chosen is not None}
        yield structure, won
        yield structure, {k: s for k, s in won.items() if s.decided < _MUCH}
        yield self.begin, won

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
