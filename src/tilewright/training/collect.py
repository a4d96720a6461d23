"""Building a corpus: the kernels of one program after the other, and schedules of them timed inside of it.

A program is compiled as it would be, and each of its distinct kernels gets schedules in three rounds: the cheapest
with those that `Choose` takes from a pool, then children of the best, twice (`training/points.py`). A batch is built on
all cores, and then timed while nothing else runs: the program runs with a candidate at each of its sites, in turns with
the program as it was compiled. The quickest of many were lucky, too, so that the best few of each kernel are timed once
more, for longer, and these times alone count. What is measured goes to the corpus batch by batch.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice, zip_longest
from pathlib import Path
from statistics import median
from typing import TypeAlias

from onnx import ModelProto

from tilewright.codegen.objects import LLVM_VERSION
from tilewright.compiler import SPACES
from tilewright.driver.keys import rules_digest, target_digest
from tilewright.driver.trace import ProgramTrace
from tilewright.frontend.onnx.load import load_graph
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.machine import default_threads
from tilewright.search.database import decisions_text
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError
from tilewright.target.target import Target
from tilewright.tir.printer import print_func
from tilewright.training.corpus import Corpus, ProgramRow, UnwritableCorpusError
from tilewright.training.points import Choose, KernelPoints, farthest_points
from tilewright.training.rows import KernelKey, KernelRow, TrialRow
from tilewright.tuning.candidate import DEFAULT, Task
from tilewright.tuning.candidates import Candidates, Point
from tilewright.tuning.crew import NobodyLeftError
from tilewright.tuning.insides import InsideOutcome, Insides
from tilewright.tuning.program_source import ProgramSource
from tilewright.tuning.sites import SitedProgram, sited
from tilewright.tuning.structures import other_algorithms, other_joins, other_layouts
from tilewright.tuning.trial import Candidate, TrialStatus
from tilewright.tuning.workplace import ProgramRunner, workplace
from tilewright.version import __version__

_log = logging.getLogger("tilewright")

NETWORK = "network"  # the source of kernels of models that were given
PER_KERNEL = 30

_SITE_RUNS = 10  # of a program as it is, to time its sites
_RATIOS, _MOST_RATIOS = 8, 20  # of a candidate, given
_ROUND_SECONDS = 0.2  # of a program that is run for them, given: as long as building takes
_AGAIN = 6  # of the quickest schedules of a kernel that are timed again, given
_AGAIN_TIMES = 3  # times as many ratios then, given
_CHILDREN_ROUNDS = 2  # after the first, which has two thirds of the trials; given
_LEAST_SECONDS = 3e-6  # of a kernel, given: what is shorter takes as long as reading the clock
_MANY_BUILT = 500  # candidates, given: some hundred megabytes of a process
_BATCH = 160  # candidates that are built together, bound: what is lost when the process is killed

Known: TypeAlias = dict[tuple[str, str], float]  # ratios by family and decisions; infinite where it failed


@dataclass(frozen=True, slots=True)
class SourceProgram:
    """A model to take kernels from. `make` reads or generates it; `source` is as in `KernelRow`."""

    name: str
    source: str
    make: Callable[[], Path | ModelProto]

    @staticmethod
    def of_file(path: Path) -> "SourceProgram":
        return SourceProgram(path.stem, NETWORK, lambda: path)


@dataclass(slots=True)
class CollectProgress:
    """What was done so far, since the build began."""

    program: str = ""
    programs: int = 0  # that are complete, those of earlier builds among them
    kernels: int = 0
    trials: int = 0
    failures: dict[str, int] = field(default_factory=dict[str, int])
    problems: list[tuple[str, str]] = field(
        default_factory=list[tuple[str, str]]
    )  # program, why it has no rows


OnCollect: TypeAlias = Callable[[CollectProgress], None]


def machine_name(target: Target) -> str:
    """As rows have it: the processor, and a digest of the target."""
    return f"{target.cpu} {target_digest(target)[:16]}"


def versions_text() -> str:
    """Of what made the code."""
    return f"tilewright {__version__}, llvm {LLVM_VERSION}, rules {rules_digest()[:16]}"


def _alone(trace: ProgramTrace) -> ProgramTrace:
    """Without calls that run beside each other."""
    return ProgramTrace({**trace.sections, "beside": ()}, trace.machine)


@dataclass(slots=True, eq=False)
class _Kernel:
    """A kernel of the program at hand. `seconds` is what it takes as compiled, at a site."""

    task: Task
    points: KernelPoints
    sites: Sequence[int]
    seconds: float
    left: int  # trials that it is to have yet
    # The best so far: the median ratio, and what was run.
    best: list[tuple[float, Point, Candidate]] = field(default_factory=list[tuple[float, Point, Candidate]])

    def note(self, ratio: float, point: Point, candidate: Candidate) -> None:
        self.best.append((ratio, point, candidate))
        self.best.sort(key=lambda b: b[0])
        del self.best[_AGAIN:]


_Queues: TypeAlias = "dict[_Kernel, deque[tuple[Point, Candidate]]]"


class Collector(Closing):
    """Use it as a context manager: the processes that build and time candidates end with it. `clock` tells the seconds
    since the build began; after `budget` nothing is begun.
    """

    def __init__(
        self,
        corpus: Corpus,
        target: Target,
        *,
        threads: int = 1,
        per_kernel: int = PER_KERNEL,
        structures: int = 0,
        seed: int = 0,
        choose: Choose = farthest_points,
        budget: float = math.inf,
        on: str | None = None,
        address: str | None = None,
        progress: OnCollect | None = None,
    ) -> None:
        self.corpus, self.target, self.threads = corpus, target, threads
        self.per_kernel, self.structures = per_kernel, structures
        self.seed, self.choose, self.budget = seed, choose, budget
        self.now = CollectProgress()
        self._progress = progress
        self._start = time.monotonic()
        self._is_local = on is None
        self._place = workplace(on, address, threads, seed)
        self._built = 0  # candidates, since the processes that build them were started
        self._machine, self._versions = machine_name(target), versions_text()
        self._known: dict[tuple[KernelKey, str], Known] = {}  # by kernel and program
        self._trials: dict[KernelKey, int] = {}  # in all programs
        for t in corpus.trials():
            if (t.machine, t.threads) == (self._machine, threads):
                self._remember(t)

    def close(self) -> None:
        self._place.close()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def is_over(self) -> bool:
        return self.elapsed > self.budget

    def run(self, programs: Sequence[SourceProgram]) -> None:
        """All of them, or until the budget is spent."""
        complete = {p.program: p for p in self.corpus.programs() if self._is_ours(p)}
        for p in programs:
            if self.is_over:
                break
            done = complete.get(p.name)
            if done is not None and self._is_enough(done):
                self.now.programs += 1
                continue
            self.now.program = p.name
            self._tell()
            self._renew_builder()
            self._collect(p)

    def _renew_builder(self) -> None:
        """Processes that have built many candidates keep what they have learned of them, which is no use any more. New
        ones start while the program is compiled.
        """
        if self._is_local and self._built > _MANY_BUILT:
            self._place.builder.close()
            self._place = replace(self._place, builder=Candidates(default_threads()))
            self._built = 0
        self._place.builder.start()

    def _is_ours(self, row: ProgramRow) -> bool:
        return (row.machine, row.threads) == (self._machine, self.threads)

    def _is_enough(self, row: ProgramRow) -> bool:
        is_whole = row.per_kernel >= self.per_kernel and row.structures >= self.structures
        return is_whole or bool(row.problem)

    # ------------------------------------------------------------------------------------------------------ a program

    def _collect(self, program: SourceProgram) -> None:
        before = self.now.kernels, self.now.trials
        problem = ""
        try:
            self._measure(program)
        except NobodyLeftError as e:  # the program has no part in that, nor in what follows
            hint = "what was measured is kept: the same command goes on when the nodes are back"
            raise UserError(e.message, hint=hint) from e
        except UnwritableCorpusError:
            raise
        except UserError as e:
            problem = e.message
            self.now.problems.append((program.name, problem))
        if self.is_over:
            return
        row = ProgramRow(
            *(program.name, program.source, self._machine, self.threads, self.per_kernel),
            self.now.kernels - before[0],
            self.now.trials - before[1],
            problem,
            self.structures,
        )
        self.corpus.complete(row)
        self.now.programs += 1
        self._tell()

    def _measure(self, program: SourceProgram) -> None:
        with (
            ProgramSource(load_graph(program.make(), None), self.target, Accuracy.of(None)) as source,
            self._runner() as runner,
        ):
            if not source.is_one_segment():
                raise UserError("Python has a part in its program")
            own = sited(*source.compile(_alone(ProgramTrace()), {}))
            self._place.builder.wait_until_ready()
            self._measure_in(program, own, runner)
            for trace in islice(self._structures(source, own.trace), self.structures):
                if self.is_over:
                    break
                try:
                    other = sited(*source.compile(_alone(trace), {}))
                except UserError as e:
                    _log.debug("%s: another structure: %s", program.name, e.message)
                    continue
                self._measure_in(program, other, runner)

    def _structures(self, source: ProgramSource, own: ProgramTrace) -> Iterator[ProgramTrace]:
        """Traces of other algorithms, layouts and joins, one of each kind in turn."""
        target = self.target.for_threads(1)
        kinds = (
            other_algorithms(source.until("groups", own), own, target, source.accuracy.allows),
            other_layouts(source.until("joins", own), own, target),
            other_joins(source.until("algorithms", own), own, target),
        )
        return (s.trace for turn in zip_longest(*kinds) for s in turn if s is not None)

    def _measure_in(self, program: SourceProgram, compiled: SitedProgram, runner: ProgramRunner) -> None:
        runner.prepare(compiled, _SITE_RUNS)
        kernels = self._kernels(program, compiled, runner.seconds)
        first = {k: k.left - _CHILDREN_ROUNDS * (k.left // (3 * _CHILDREN_ROUNDS)) for k in kernels}
        self._batches(program, runner, {k: k.points.first(first[k], self.choose) for k in kernels})
        for _ in range(_CHILDREN_ROUNDS):
            if not self.is_over:
                each = {k: (k.left - first[k]) // _CHILDREN_ROUNDS for k in kernels}
                self._batches(program, runner, {k: k.points.next(each[k]) for k in kernels})
        again = {k: deque((p, c) for ratio, p, c in k.best if math.isfinite(ratio)) for k in kernels}
        self._keep(
            (), list(self._timed(program, runner, again, _AGAIN_TIMES * self._runs(runner))), is_new=False
        )

    @contextmanager
    def _runner(self) -> Generator[ProgramRunner]:
        """A process of its own for each program, on this machine: times are then those of the machine as it is."""
        if not self._is_local:
            yield self._place.runner
            return
        with Insides(self.threads, self.seed) as runner:
            yield runner

    def _kernels(
        self, program: SourceProgram, compiled: SitedProgram, seconds: Sequence[float]
    ) -> list[_Kernel]:
        """Those that are worth timing and do not have their trials yet."""
        found: list[_Kernel] = []
        rows: list[KernelRow] = []
        trials: list[TrialRow] = []
        for name, (func, constants) in compiled.funcs.items():
            key, sites = KernelKey(name), compiled.calls_of(name)
            each = sum(seconds[n] for n in sites) / max(1, len(sites))
            left = self.per_kernel - self._trials.get(key, 0)
            if each < _LEAST_SECONDS or left <= 0:
                continue
            task = Task(key, func, constants, self.target, SPACES, None, self.threads)
            known = self._known.get((key, program.name), {})
            points = KernelPoints(task, known, self.seed)
            kernel = _Kernel(task, points, sites, each, left)
            found.append(kernel)
            rows.append(
                KernelRow(key, print_func(func), tuple(sorted(constants)), program.name, program.source)
            )
            if (DEFAULT, "{}") not in known:
                trials.append(
                    self._row(program, kernel, (DEFAULT, {}), None, InsideOutcome(TrialStatus.OK, (1.0,)))
                )
            self._tell()
        self._keep(rows, trials)
        self.now.kernels += len(found)
        self.now.trials -= len(trials)  # nothing was timed for them
        return found

    # -------------------------------------------------------------------------------------------------------- batches

    def _batches(
        self, program: SourceProgram, runner: ProgramRunner, wanted: Mapping[_Kernel, list[Point]]
    ) -> None:
        """Some points of each kernel at a time, the cheapest first: what is slow runs beside what is slow, and is not
        timed for long.
        """
        ordered = {k: sorted(points, key=k.points.cost) for k, points in wanted.items() if points}
        waiting: dict[_Kernel, deque[Point]] = {k: deque(points) for k, points in ordered.items()}
        while waiting and not self.is_over:
            each = max(1, _BATCH // len(waiting))
            batch = [(k, q.popleft()) for k, q in waiting.items() for _ in range(min(each, len(q)))]
            waiting = {k: q for k, q in waiting.items() if q}
            self._batch(program, runner, batch)

    def _batch(
        self, program: SourceProgram, runner: ProgramRunner, batch: Sequence[tuple[_Kernel, Point]]
    ) -> None:
        """Build all of it, then time it; what was measured is kept, whatever happens."""
        rows: list[TrialRow] = []
        try:
            built = self._place.builder.build_all([(k.task, p) for k, p in batch])
            self._built += len(built)
            queues: _Queues = {}
            for (k, p), b in zip(batch, built, strict=True):
                if b.candidate is None:
                    rows.append(self._row(program, k, p, None, InsideOutcome(b.status)))
                else:
                    queues.setdefault(k, deque()).append((p, b.candidate))
            rows += self._timed(program, runner, queues, self._runs(runner))
        finally:
            self._keep((), rows)
            self._tell()

    def _timed(
        self, program: SourceProgram, runner: ProgramRunner, queues: _Queues, runs: int
    ) -> Iterator[TrialRow]:
        """Candidates of all kernels, one at each site at a time."""
        while any(queues.values()) and not self.is_over:
            placed = [
                (k, site, *queue.popleft())
                for k, queue in queues.items()
                for site in k.sites
                for _ in range(runner.copies)
                if queue
            ]
            outcomes = runner.run([(site, c) for _, site, _, c in placed], runs)
            for (k, _, p, c), o in zip(placed, outcomes, strict=True):
                if not o.is_lost:
                    k.note(o.ratio, p, c)
                    yield self._row(program, k, p, c, o)

    def _runs(self, runner: ProgramRunner) -> int:
        """Of a program, with its candidates: more if it is short, and times are noisy."""
        return int(min(max(_ROUND_SECONDS / (2 * sum(runner.seconds)), _RATIOS), _MOST_RATIOS))

    def _row(
        self, program: SourceProgram, k: _Kernel, point: Point, candidate: Candidate | None, o: InsideOutcome
    ) -> TrialRow:
        family, decisions = point
        k.points.tell(point, o.ratio)
        code = "" if candidate is None else sha256(b"".join(candidate.objects)).hexdigest()
        seconds = k.seconds * median(o.ratios) if o.ratios else math.nan
        return TrialRow(
            *(KernelKey(k.task.key), program.name, self._machine, self.threads, family),
            *(decisions_text(decisions), code, o.status.value, seconds, k.seconds, o.ratios, self._versions),
        )

    def _keep(self, kernels: Sequence[KernelRow], trials: Sequence[TrialRow], *, is_new: bool = True) -> None:
        """Trials that are not new were timed again."""
        self.corpus.add(kernels, trials)
        if not is_new:
            return
        for t in trials:
            self._remember(t)
            if t.status != TrialStatus.OK.value:
                self.now.failures[t.status] = self.now.failures.get(t.status, 0) + 1
        self.now.trials += len(trials)

    def _remember(self, t: TrialRow) -> None:
        ratio = median(t.ratios) if t.ratios else math.inf
        self._known.setdefault((t.kernel, t.program), {})[t.family, t.decisions] = ratio
        if t.family != DEFAULT:
            self._trials[t.kernel] = self._trials.get(t.kernel, 0) + 1

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.now)
