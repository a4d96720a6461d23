"""Search strategies at equal numbers of trials, on recorded design spaces: docs/results/strategies.md.

    python -m benchmarks.strategies --record spaces.json m.onnx   # measure points of the slowest kernels, kind by kind
    python -m benchmarks.strategies --from spaces.json            # search them, and write the page

The file is added to, so that it can be recorded in pieces.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, TypeAlias

import click
import numpy as np

from benchmarks.network_kernels import network_kernels
from benchmarks.recorded_spaces import RecordedTask, record
from benchmarks.results import FOLDER, ROOT, table, write
from benchmarks.svg import step_chart
from tilewright.cli.output import note
from tilewright.families.space import Space
from tilewright.search.anneal import Annealing
from tilewright.search.evolve import Evolution, Proposal
from tilewright.search.strategy import Strategy

SHOWS = """How soon strategies of search find what is quick, at equal numbers of trials."""

METHOD = """Of {spaces} kernels up to {most} points each were measured once, half of them the cheapest by the cost form
and half taken evenly from the rest. Strategies search these points in batches of {batch} and are told the times that
were recorded: nothing is measured here, and all search the same space. *Regret* is the time of the best point so far
over that of the best of all recorded points, less one; the mean over {seeds} seeds and all kernels. `cheapest` takes
points in the order of the cost form, `random` evenly, `evolution` is what tuning uses, `annealing` is simulated
annealing with eight walkers. *Tasks*: the same kernels as one program, each weighted with the time of its default
schedule, and a number of trials for all of them together, each searched by `evolution`; `evenly` gives batches in turn,
`promise` to the task where the last batch gained most, as tuning does, `bandit` by an upper confidence bound of the
gain of a batch."""

BATCH = 8
SEEDS = 5
SHOWN = (8, 16, 32, 64, 128)  # trials
SHARES = (0.05, 0.1, 0.2, 0.4)  # of the points of all tasks
_EXPLORE = 0.5  # weight of what is not known yet in the bandit's bound, over the largest gain; given

MakeStrategy: TypeAlias = Callable[[Sequence[Space], int], Strategy]


class InOrder(Evolution):
    """Points in the order of the cost form, or in a random one."""

    def __init__(self, spaces: Sequence[Space], seed: int, is_random: bool) -> None:
        super().__init__(spaces, seed)
        order = np.random.default_rng(seed).permutation(self.size) if is_random else np.arange(self.size)
        self._left = [self._ranked_at(int(n)) for n in order]

    def propose(self, count: int) -> list[Proposal]:
        chosen, self._left = self._left[:count], self._left[count:]
        return chosen


STRATEGIES: Mapping[str, MakeStrategy] = {
    "cheapest": lambda spaces, seed: InOrder(spaces, seed, is_random=False),
    "random": lambda spaces, seed: InOrder(spaces, seed, is_random=True),
    "evolution": Evolution,
    "annealing": Annealing,
}


# ------------------------------------------------------------------------------------------------------- one task


@dataclass(slots=True)
class Search:
    """A strategy at work on a recorded task; `best` is the best so far after each trial."""

    task: RecordedTask
    strategy: Strategy
    best: list[float] = field(default_factory=list[float])
    is_done: bool = False

    def run_batch(self, count: int = BATCH) -> None:
        found = self.strategy.propose(count)
        self.is_done = not found
        for p in found:
            seconds = self.task.seconds(p)
            self.strategy.tell(p, seconds)
            self.best.append(min(seconds, self.best[-1] if self.best else math.inf))

    @property
    def seconds(self) -> float:
        """With the default schedule, unless something better was found."""
        return min(self.task.default_seconds, self.best[-1] if self.best else math.inf)


def regrets(task: RecordedTask, make: MakeStrategy, trials: int, seed: int) -> list[float]:
    """After each trial, until there are no more points."""
    search = Search(task, make(task.spaces, seed))
    while len(search.best) < trials and not search.is_done:
        search.run_batch(min(BATCH, trials - len(search.best)))
    return [b / task.best_seconds - 1 for b in search.best]


def mean_regrets(tasks: Sequence[RecordedTask], make: MakeStrategy, trials: int) -> list[float]:
    """Over tasks and seeds, after each trial; a search that has ended stays where it is. A first batch without a right
    result counts as twice the best.
    """
    found = [regrets(t, make, trials, seed) for t in tasks for seed in range(SEEDS)]
    padded = [r + [r[-1]] * (trials - len(r)) for r in found if r]
    return [mean(min(r[n], 1.0) for r in padded) for n in range(trials)]


def regret_table(curves: Mapping[str, Sequence[float]]) -> str:
    shown = [n for n in SHOWN if all(len(c) >= n for c in curves.values())]
    rows = [[name, *(f"{100 * curve[n - 1]:.1f} %" for n in shown)] for name, curve in curves.items()]
    return table(("strategy", *(f"{n} trials" for n in shown)), rows)


# ---------------------------------------------------------------------------------------------------- several tasks


def evenly(searches: Sequence[Search], gains: Mapping[int, Sequence[float]]) -> int:
    """The task that has had the fewest batches."""
    open_tasks = [n for n, s in enumerate(searches) if not s.is_done]
    return min(open_tasks, key=lambda n: len(gains[n]))


def promise(searches: Sequence[Search], gains: Mapping[int, Sequence[float]]) -> int:
    """The task where a batch may gain most: as much as the last, or a little if that gained nothing."""

    def value(n: int) -> float:
        last = gains[n][-1] if gains[n] else 1.0
        return max(last, 0.1 * searches[n].seconds / max(len(gains[n]), 1))

    return max((n for n, s in enumerate(searches) if not s.is_done), key=value)


def bandit(searches: Sequence[Search], gains: Mapping[int, Sequence[float]]) -> int:
    """The largest upper bound of what a batch gains: the mean so far, and more where few batches were tried."""
    total = sum(map(len, gains.values()))
    scale = max((g for found in gains.values() for g in found), default=0.0)

    def value(n: int) -> float:
        found = gains[n]
        if not found:
            return math.inf
        return mean(found) + _EXPLORE * scale * math.sqrt(math.log(total) / len(found))

    return max((n for n, s in enumerate(searches) if not s.is_done), key=value)


Policy: TypeAlias = Callable[[Sequence[Search], Mapping[int, Sequence[float]]], int]
POLICIES: Mapping[str, Policy] = {"evenly": evenly, "promise": promise, "bandit": bandit}


def program_regrets(tasks: Sequence[RecordedTask], policy: Policy, seed: int) -> list[float]:
    """Of all tasks together, after each trial, until all points were tried."""
    searches = [Search(t, Evolution(t.spaces, seed)) for t in tasks]
    gains: dict[int, list[float]] = {n: [] for n in range(len(tasks))}
    optimum = sum(min(t.best_seconds, t.default_seconds) for t in tasks)
    out: list[float] = []
    while not all(s.is_done for s in searches):
        n = policy(searches, gains)
        before, tried = searches[n].seconds, len(searches[n].best)
        searches[n].run_batch()
        gains[n].append(before - searches[n].seconds)
        now = sum(s.seconds for s in searches) / optimum - 1
        out += [now] * (len(searches[n].best) - tried)
    return out


def policy_table(tasks: Sequence[RecordedTask]) -> str:
    points = sum(t.size for t in tasks)
    at = [max(1, round(share * points)) for share in SHARES]
    rows: list[list[str]] = []
    for name, policy in POLICIES.items():
        found = [program_regrets(tasks, policy, seed) for seed in range(SEEDS)]
        rows.append([name, *(f"{100 * mean(r[min(n, len(r)) - 1] for r in found):.1f} %" for n in at)])
    return table(("tasks", *(f"{n} trials" for n in at)), rows)


# ----------------------------------------------------------------------------------------------------------- command


def spaces_table(records: Mapping[str, Mapping[str, Any]], tasks: Sequence[RecordedTask]) -> str:
    rows = [
        [
            r["name"],
            r["kind"],
            str(r["points_in_all"]),
            str(t.size),
            f"{t.default_seconds * 1e6:.0f}",
            f"{t.default_seconds / t.best_seconds:.2f}",
        ]
        for r, t in zip(records.values(), tasks, strict=True)
    ]
    return table(("kernel", "kind", "points", "measured", "default µs", "default / best"), rows)


def record_all(path: Path, models: Sequence[Path], count: int, seconds: float, threads: int) -> None:
    """The slowest kernel of each kind that the file has not yet."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for model in models:
        for kernel in network_kernels(model, threads):
            if kernel.kind in known or kernel.share < 0.01:
                continue
            note(f"{model.stem}: {kernel.name}, {kernel.kind}")
            found = record(kernel, count, seconds)
            if found is not None:
                known[kernel.kind] = found
                path.write_text(json.dumps(known))


@click.command()
@click.argument("models", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--record", "recorded", type=click.Path(path_type=Path), help="Measure, and add to this file.")
@click.option("--from", "source", type=click.Path(exists=True, path_type=Path), help="Search these spaces.")
@click.option("--points", default=200, show_default=True, help="Of each space, at most.")
@click.option("--seconds", default=40.0, show_default=True, help="To record a space, at most.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--save/--no-save", default=True, show_default=True, help="Write docs/results/strategies.md.")
def main(
    models: tuple[Path, ...],
    recorded: Path | None,
    source: Path | None,
    points: int,
    seconds: float,
    threads: int,
    save: bool,
) -> None:
    """Record spaces of MODELS, or compare strategies on recorded ones."""
    if recorded is not None:
        record_all(recorded, models, points, seconds, threads)
    if source is None:
        return
    records = json.loads(source.read_text())
    tasks = [RecordedTask(r) for r in records.values()]
    trials = max(t.size for t in tasks)
    curves = {name: mean_regrets(tasks, make, trials) for name, make in STRATEGIES.items()}
    parts = [regret_table(curves), policy_table(tasks), spaces_table(records, tasks)]
    click.echo("\n\n".join(parts))
    if save:
        lines = {name: [(n + 1.0, r) for n, r in enumerate(curve)] for name, curve in curves.items()}
        chart = step_chart("Strategies", "trials", "regret", lines, float(trials))
        (FOLDER / "strategies.svg").write_text(chart, encoding="utf-8")
        method = METHOD.format(spaces=len(tasks), most=trials, batch=BATCH, seeds=SEEDS)
        picture = "![Strategies](strategies.svg)"
        path = write("strategies", "Strategies of search", SHOWS, method, picture, *parts)
        click.echo(f"\nwritten to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
