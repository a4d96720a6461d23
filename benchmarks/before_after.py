"""What a change makes of the speed of networks: this checkout against another, in turns.

    git worktree add ../before v0.1.0
    python -m benchmarks.before_after ../before                # writes docs/results/before-after.md
    python -m benchmarks.before_after ../before m.onnx --no-save

Each side is a process of its own that compiles the model with its own code, and both take turns.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from benchmarks.fingerprint import bench_home
from benchmarks.networks import NETWORKS
from benchmarks.options import Turns, turn_options
from benchmarks.results import ROOT, current_commit, table, write
from benchmarks.suite_results import geometric_mean
from tilewright.cli.output import progress_bar
from tilewright.support.turns import Ratio, speedup, take_turns

METHOD = """*Before* is {before}, *after* {after}: each compiles the model itself, in a process of its own, pinned to as
many cores as it has threads, and they take turns in {rounds} rounds of {seconds} s on the same random inputs. *After
over before* is how many times faster a run is now, the median of rounds with its 95 % interval; times are medians."""

_WORKER = """
import os, sys, time
import numpy as np
import tilewright
path, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
session = tilewright.load(path, threads=threads)
rng = np.random.default_rng(0)
def value(i):
    if np.issubdtype(i.dtype, np.floating):
        return rng.standard_normal(i.shape).astype(i.dtype)
    return rng.integers(0, 2, i.shape).astype(i.dtype)
bound = session.bind({i.name: value(i) for i in session.inputs})
bound.run()
print("ready", flush=True)
for _ in sys.stdin:
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or not times:
        start = time.perf_counter()
        bound.run()
        times.append(time.perf_counter() - start)
    print(*times, flush=True)
"""


_MEAN = "geometric mean"


class Side:
    """A process that runs a model with the code of a checkout."""

    def __init__(self, checkout: Path, model: Path, threads: int, seconds: float, cache: Path) -> None:
        env = {**os.environ, "PYTHONPATH": str(checkout / "src"), "TILEWRIGHT_CACHE": str(cache)}
        command = [sys.executable, "-c", _WORKER, str(model), str(threads), str(seconds)]
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()

    def turn(self) -> Sequence[float]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return [float(t) for t in self._read().split()]

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise click.ClickException("a process has ended early; see above")
        return line

    def close(self) -> None:
        self._process.communicate()


def compare(
    before: Path, model: Path, threads: int, turns: Turns, folder: Path
) -> tuple[Ratio, float, float]:
    """After over before, with the median times in milliseconds."""
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, checkout in (("before", before), ("after", ROOT)):
            sides[name] = Side(checkout, model.absolute(), threads, turns.seconds, folder / name)
            stack.callback(sides[name].close)
        found = take_turns({name: side.turn for name, side in sides.items()}, turns.rounds)
    one, two = found["before"], found["after"]
    return speedup(two, one), one.median * 1e3, two.median * 1e3


@click.command()
@click.argument("before", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@turn_options(rounds=15, seconds=0.2)
@click.option("--save/--no-save", default=True, show_default=True, help="Write docs/results/before-after.md.")
def main(
    before: Path,
    files: tuple[Path, ...],
    turns: Turns,
    save: bool,
) -> None:
    """Compare with the checkout BEFORE on FILES (ONNX; the networks of the suite in $BENCH_HOME unless given)."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name, progress_bar() as progress:
        suite = (bench_home() / "models" / f"{n}.onnx" for n in NETWORKS)
        models = list(files) or [path for path in suite if path.exists()]
        total = len(models) * len(turns.thread_counts)
        for threads in turns.thread_counts:
            ratios: list[float] = []
            for model in models:
                if progress is not None:
                    progress(model.stem, len(rows), total)
                ratio, one, two = compare(before, model, threads, turns, Path(name))
                ratios.append(ratio.value)
                interval = f"{ratio.low:.2f} to {ratio.high:.2f}"
                rows.append(
                    [model.stem, str(threads), f"{one:.2f}", f"{two:.2f}", f"{ratio.value:.3f}", interval]
                )
            rows.append([_MEAN, str(threads), "", "", f"{geometric_mean(ratios):.3f}", ""])
    text = table(("network", "threads", "before, ms", "after, ms", "after over before", "95 %"), rows)
    click.echo(text)
    if save:
        method = METHOD.format(
            before=current_commit(before), after=current_commit(), rounds=turns.rounds, seconds=turns.seconds
        )
        means = [f"{row[4]} with {row[1]} thread(s)" for row in rows if row[0] == _MEAN]
        shows = (
            f"Networks run at {' and '.join(means)} times the speed they had before, on the geometric mean."
        )
        click.echo(f"\nwritten to {write('before-after', 'Speed after over before', shows, method, text)}")


if __name__ == "__main__":
    main()
