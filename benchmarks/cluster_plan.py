"""Tuning planned to a thousand machines: what everything takes is measured here, and many nodes are simulated.

python -m benchmarks.cluster_plan             # writes docs/results/cluster.md; needs Ray
"""

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from benchmarks.cluster_simulation import Costs, Mode, Simulated, simulate
from benchmarks.results import FOLDER, table, write
from benchmarks.svg import log_chart
from examples.models import resnet18
from tilewright.cli.output import note
from tilewright.compiler import SPACES
from tilewright.driver.trace import ProgramTrace
from tilewright.driver.tuned import tuning_scope
from tilewright.frontend.onnx.load import load_graph
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.machine import default_threads
from tilewright.search.database import Database, RecordScope
from tilewright.search.evolve import Proposal
from tilewright.search.program_records import InsideTrial
from tilewright.search.tuning_file import connect_to
from tilewright.search.tuning_tables import PROGRAM_TRIALS
from tilewright.target.target import native
from tilewright.tuning.candidate import Task
from tilewright.tuning.candidates import Built, Candidates, Point
from tilewright.tuning.cluster import load_ray
from tilewright.tuning.insides import InsideOutcome, Insides
from tilewright.tuning.program_source import ProgramSource
from tilewright.tuning.sites import SitedProgram, sited
from tilewright.tuning.task_search import TaskSearch
from tilewright.tuning.trial import Candidate

NODES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_PART = 24  # candidates in a copy of the program, as the tuner has them
_RUNS = 4  # of the program with candidates, as the tuner has them
_ROUNDS = 8  # parts that are built and timed
_ROWS = 2000
_MESSAGES = 100

SHOWS = """A node like this one makes {rate:.1f} trials a second. Runners are the limit as long as nodes are few;
from {half} nodes on the driver works for more than half of the time, and a thousand nodes make {most:.0f} trials a
second. The first limit is the search, which alone would fill the driver's time at {search} nodes, then messages
({messages}), then the database with its single writer and a transaction a row ({database}; with one transaction a
batch {batched}). So batching appends gives {gain:.2f} times the throughput of a thousand nodes as it is, and
{later:.2f} times with a search that is ten times quicker."""

METHOD = """*Measured* is a ResNet-18 with images of {size} pixels, {sites} sites, on one thread: {parts} parts of
{part} candidates. *Build*: `Candidates` with one process, which has built a candidate of the task before. *Part*: a
request to `Insides`, which checks {part} candidates and runs the program {runs} times with and {runs} times without
them. *Row*: `Database.record_inside`, {rows} times; *row of many*: rows as long, ready made, in one transaction.
*Message*: CPU time of the driver's process, all threads, for a request to an actor of a local Ray {ray} and its
answer: half a
part of points and what was built of it, or a part of candidates and their times. *Search*: proposing a candidate
and being told of it.

*Simulated* are {nodes} nodes of {cores} cores each, {batches} batches a node, events in order
(`benchmarks/cluster_simulation.py`); builds and parts take a random one of the measured times. *For all nodes*: a
batch has {part} candidates for each node; it is built, then timed, then recorded, and all nodes wait for the
slowest. That is how it works now. *On its own*: a node gets its next part when it has answered the last. *Driver*
is the share of the time in which the driver works, and *runners* that in which a runner times; the rest of a
runner's time its node builds, or waits.

Assumed, not measured: messages cost the driver as much with a thousand actors as with one; nodes are alike, and
none is lost; networks are no limit (a part is {kib:.0f} KiB of code). Compiling structures, shipping programs
({mib:.0f} MiB here, once a node for each structure) and the last comparison take a share of the budget that does
not depend on the nodes, and are left out. So is the end of a search: the tasks of this model have {points} points
together, most of them fewer than a hundred, so that a large cluster is for larger models."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Candidates inside of a program: for each part the searches that propose them, and where they stand."""

    program: SitedProgram
    searches: Sequence[TaskSearch]

    def proposed(self) -> list[tuple[TaskSearch, int, Proposal]]:
        """A part: one candidate at each site, as far as there are points."""
        found: list[tuple[TaskSearch, int, Proposal]] = []
        for s in self.searches:
            many = min(len(s.sites), _PART - len(found))
            found += [(s, n, p) for n, p in zip(s.sites, s.evolution.propose(many), strict=False)]
        return found


@dataclass(frozen=True, slots=True)
class Measured:
    costs: Costs
    sites: int
    code_bytes: int  # of a part
    program_bytes: int
    points: int  # of all tasks


def seconds_of(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def make_work(size: int) -> Work:
    target = native()
    with ProgramSource(load_graph(resnet18(size), None), target, Accuracy.of(None)) as source:
        program = sited(*source.compile(ProgramTrace({"beside": ()}), {}))
    searches = [
        TaskSearch(Task(key, func, constants, target, SPACES), program.calls_of(key), 1.0)
        for key, (func, constants) in program.funcs.items()
    ]
    return Work(program, [s for s in searches if s.sites and s.evolution.size])


def measure(work: Work) -> Measured:
    search, builds, parts = list[float](), list[float](), list[float]()
    part: list[tuple[TaskSearch, int, Point, Built]] = []
    outcomes: list[InsideOutcome] = []
    with Candidates(1) as candidates, Insides(1) as inside:
        inside.prepare(work.program, 2 + _RUNS)
        for s in work.searches:  # the first candidate of a task takes longer, once a process
            candidates.build(s.task, [s.point(s.evolution.propose(1)[0])])
        for n in range(_ROUNDS):
            start = time.perf_counter()
            proposed = work.proposed()
            proposing = time.perf_counter() - start
            part = []
            for s, site, p in proposed:
                start = time.perf_counter()
                (built,) = candidates.build(s.task, [s.point(p)])
                builds.append(time.perf_counter() - start)
                part.append((s, site, s.point(p), built))
            placed = placed_candidates(part)
            start = time.perf_counter()
            outcomes = inside.run(placed, _RUNS)
            parts.append(time.perf_counter() - start)
            telling = seconds_of(lambda: tell(proposed, part, outcomes))  # noqa: B023
            search.append((proposing + telling) / len(proposed))
            note(
                f"part {n + 1} of {_ROUNDS}: {sum(builds[-len(proposed) :]):.1f} s built, {parts[-1]:.2f} s timed"
            )
    row, transaction, row_of_many = measure_appends()
    build_cpu, part_cpu = measure_messages(part, outcomes)
    costs = Costs(
        *(len(part), builds, parts, statistics.median(search), build_cpu, part_cpu),
        *(row, transaction, row_of_many),
    )
    code = sum(len(o) for _, c in placed_candidates(part) for o in c.objects)
    shipped = sum(int(c.nbytes) for c in work.program.artifact.constants)
    points = sum(s.points for s in work.searches)
    return Measured(costs, len(work.program.sites), code, shipped, points)


def placed_candidates(part: Sequence[tuple[TaskSearch, int, Point, Built]]) -> list[tuple[int, Candidate]]:
    return [(site, b.candidate) for _, site, _, b in part if b.candidate is not None]


def tell(
    proposed: Sequence[tuple[TaskSearch, int, Proposal]],
    part: Sequence[tuple[TaskSearch, int, Point, Built]],
    outcomes: Sequence[InsideOutcome],
) -> None:
    ratios: Iterator[float] = iter([o.ratio for o in outcomes])
    for (s, _, p), (_, _, _, built) in zip(proposed, part, strict=True):
        s.evolution.tell(p, next(ratios) if built.candidate is not None else float("inf"))


# ------------------------------------------------------------------------------------------------------ the database


def measure_appends() -> tuple[float, float, float]:
    """Seconds of a row in a transaction of its own; of a transaction, and of a row in one of many."""
    scope = tuning_scope(native())
    decisions = {f"knob{n}": 16 for n in range(8)}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # on a disk, as the user's is
        path = Path(folder) / "tuning.db"
        with closing(Database(path)) as database:
            trial = InsideTrial("m" * 64, 1, "t" * 32, "tiles", decisions, 1e-3, 1e-3)
            database.record_inside(scope, trial)
            each = [seconds_of(lambda: database.record_inside(scope, trial)) for _ in range(_ROWS)]
        with closing(connect_to(path)) as opened:
            one, many = (
                statistics.median(append_many(opened, scope, count) for _ in range(9)) for count in (1, _ROWS)
            )
    # The mean: now and then SQLite moves rows from its log to the file.
    row_of_many = (many - one) / (_ROWS - 1)
    return statistics.mean(each), one - row_of_many, row_of_many


def append_many(opened: sqlite3.Connection, scope: RecordScope, count: int) -> float:
    """Seconds of a transaction."""
    values = ("m" * 64, scope.target, scope.rules, 1, "t" * 32, "tiles", '{"knob": 16}' * 8)
    rows = [(*values, 1e-3, 1e-3, "ok", "", "2026-01-01T00:00:00.000+00:00", "tilewright")] * count
    start = time.perf_counter()
    opened.execute("BEGIN")
    opened.executemany(PROGRAM_TRIALS.insert, rows)
    opened.execute("COMMIT")
    return time.perf_counter() - start


# ---------------------------------------------------------------------------------------------------------- messages


class Echo:
    """An actor whose answers are ready."""

    def __init__(self, *answers: Any) -> None:
        self._answers = answers

    def answer(self, which: int, _: Any) -> Any:
        return self._answers[which]


def measure_messages(
    part: Sequence[tuple[TaskSearch, int, Point, Built]], outcomes: Sequence[InsideOutcome]
) -> list[float]:
    """CPU seconds of this process for a message to a builder, and for one to a runner."""
    ray = load_ray()
    half = part[: len(part) // 2]
    points = [(s.task.key, (rule, dict(decisions))) for s, _, (rule, decisions), _ in half]
    asked = (points, placed_candidates(part))
    answers = ([b for _, _, _, b in half], list(outcomes))
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="warning")
    try:
        actor = ray.remote(Echo).options(num_cpus=0).remote(*answers)
        found: list[float] = []
        for which, request in enumerate(asked):
            for _ in range(10):
                ray.get(actor.answer.remote(which, request))
            start = time.process_time()
            for _ in range(_MESSAGES):
                ray.get(actor.answer.remote(which, request))
            found.append((time.process_time() - start) / _MESSAGES)
        return found
    finally:
        ray.shutdown()


# -------------------------------------------------------------------------------------------------------------- page


def measured_table(m: Measured) -> str:
    c = m.costs
    ms = [
        ("search, a candidate", c.propose, "driver"),
        ("build, a candidate", statistics.mean(c.build), "a core"),
        (f"part of {c.part} candidates", statistics.mean(c.time), "runner"),
        (f"message to a builder, {c.part // 2} candidates", c.send_build, "driver"),
        (f"message to a runner, {c.part} candidates", c.send_part, "driver"),
        ("row in a transaction of its own", c.row, "driver"),
        ("a transaction of many rows", c.transaction, "driver"),
        ("a row of many", c.row_of_many, "driver"),
    ]
    rows = [(name, f"{seconds * 1e3:.3f}", who) for name, seconds, who in ms]
    return table(("what", "ms", "of whose time"), rows)


def simulate_all(costs: Costs, mode: Mode, cores: int, batches: int) -> list[Simulated]:
    return [simulate(n, cores, costs, mode, batches=batches) for n in NODES]


def simulated_table(found: Sequence[Simulated]) -> str:
    columns = (
        "nodes",
        "trials a second",
        "runners, %",
        "driver, %",
        "search, %",
        "messages, %",
        "database, %",
    )
    rows: list[list[str]] = []
    for nodes, s in zip(NODES, found, strict=True):
        shares = [sum(s.driver.values()), *(s.driver[k] for k in ("search", "messages", "database"))]
        rows.append(
            [
                f"{nodes}",
                f"{s.trials_a_second:.0f}",
                *(f"{100 * share:.0f}" for share in (s.runners, *shares)),
            ]
        )
    return table(columns, rows)


def modes_table(found: Sequence[list[Simulated]], names: Sequence[str]) -> str:
    rows = [[f"{n}", *(f"{f[at].trials_a_second:.0f}" for f in found)] for at, n in enumerate(NODES)]
    return table(("nodes", *names), rows)


def limits(c: Costs) -> dict[str, float]:
    """Seconds of the driver for one trial."""
    return {
        "search": c.propose,
        "messages": (2 * c.send_build + c.send_part) / c.part,
        "a transaction a row": c.row,
        f"a transaction of {c.part} rows": c.append(c.part, True) / c.part,
        "a transaction of a thousand parts": c.append(1000 * c.part, True) / (1000 * c.part),
    }


def limits_table(c: Costs, rate: float) -> str:
    """`rate`: trials a second of a node."""
    rows = [
        [name, f"{seconds * 1e3:.3f}", f"{1 / seconds:.0f}", f"{1 / seconds / rate:.0f}"]
        for name, seconds in limits(c).items()
    ]
    return table(
        ("the driver's work", "ms a trial", "at most, trials a second", "nodes that make as many"), rows
    )


def first_busy(found: Sequence[Simulated]) -> str:
    """The least number of nodes with which the driver works for half of the time."""
    busy = (str(n) for n, s in zip(NODES, found, strict=True) if sum(s.driver.values()) >= 0.5)
    return next(busy, f"more than {NODES[-1]}")


@click.command()
@click.option("--size", default=224, show_default=True, help="Of the images, in pixels.")
@click.option("--cores", default=default_threads(), show_default="as here", help="Of a node.")
@click.option("--batches", default=8, show_default=True, help="That are simulated.")
@click.option("--save/--no-save", default=True, help="Write docs/results/cluster.md.")
def main(size: int, cores: int, batches: int, save: bool) -> None:
    """Measure, simulate, and write the page."""
    load_ray()
    work = make_work(size)
    note(f"{len(work.program.sites)} sites, {len(work.searches)} tasks")
    m = measure(work)
    found = {mode: simulate_all(m.costs, mode, cores, batches) for mode in Mode}
    quicker = replace(m.costs, propose=m.costs.propose / 10)
    later = {mode: simulate_all(quicker, mode, cores, batches) for mode in (Mode.AS_IS, Mode.BATCHED)}
    now, rate = found[Mode.AS_IS], found[Mode.AS_IS][0].trials_a_second
    parts = (
        measured_table(m),
        limits_table(m.costs, rate),
        simulated_table(now),
        modes_table(list(found.values()), [mode.value for mode in found]),
        modes_table(list(later.values()), [mode.value for mode in later]),
    )
    click.echo("\n\n".join(parts))
    if not save:
        return
    filled = {name: f"{1 / seconds / rate:.0f}" for name, seconds in limits(m.costs).items()}
    shows = SHOWS.format(
        rate=rate,
        half=first_busy(now),
        most=now[-1].trials_a_second,
        search=filled["search"],
        messages=filled["messages"],
        database=filled["a transaction a row"],
        batched=filled["a transaction of a thousand parts"],
        gain=found[Mode.BATCHED][-1].trials_a_second / now[-1].trials_a_second,
        later=later[Mode.BATCHED][-1].trials_a_second / later[Mode.AS_IS][-1].trials_a_second,
    )
    method = METHOD.format(
        **{"size": size, "sites": m.sites, "parts": _ROUNDS, "part": m.costs.part, "runs": _RUNS},
        **{"rows": _ROWS, "ray": version("ray"), "nodes": f"{NODES[0]} to {NODES[-1]}", "cores": cores},
        **{"batches": batches, "kib": m.code_bytes / 1024, "mib": m.program_bytes / 2**20},
        points=f"{m.points:,}",
    )
    runs = {
        "as it is": now,
        "appends batched": found[Mode.BATCHED],
        "nodes on their own": found[Mode.ALONE],
        "the same, batched": found[Mode.ALONE_BATCHED],
        "search 10 times quicker": later[Mode.AS_IS],
        "the same, batched ": later[Mode.BATCHED],
    }
    curves = {
        name: [(float(n), s.trials_a_second) for n, s in zip(NODES, run, strict=True)]
        for name, run in runs.items()
    }
    chart = log_chart("Tuning on many nodes", "nodes", "trials a second", curves)
    (FOLDER / "cluster.svg").write_text(chart, encoding="utf-8")
    path = write(
        *("cluster", "Tuning on many machines", shows, method, "![Throughput](cluster.svg)"),
        *("What is measured:", parts[0], "What of it is the driver's, for one trial:", parts[1]),
        *("As it works now, simulated:", parts[2], "Other ways, trials a second:", parts[3]),
        *("The first two, with a search that is ten times quicker:", parts[4]),
    )
    click.echo(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
