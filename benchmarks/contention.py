"""What threads of another library cost us that spin in our process: runs that take turns with ONNX Runtime's."""

import importlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.results import table, write
from tilewright.compiler import compile as compile_model
from tilewright.runtime.machine import check_threads, default_threads
from tilewright.runtime.made_feeds import random_array
from tilewright.runtime.session import Session
from tilewright.runtime.team import shared_team

SHOWS = """How much longer runs take while threads of another library spin on the same cores."""

METHOD = """Ours and ONNX Runtime's session of a model, in one process, {threads} threads each. *alone*: runs follow
each other, after a pause in which ONNX Runtime's threads fall asleep. *in turns*: each run follows one of ONNX Runtime,
whose threads still spin. *a patient caller* waits for a worker that has lost its core; otherwise the caller summons it.
If workers share their cores fairly with those that spin, {cores:.1f} of {threads} are left: no run can take less than
{fair:.2f} of its time alone. {rounds} rounds of {runs} runs of each kind; medians."""

PAUSE = 0.3  # seconds: longer than anybody spins


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


class Pair:
    """Both sessions of a model."""

    def __init__(self, model: Path, threads: int) -> None:
        artifact = compile_model(model).artifact
        self.team = shared_team(artifact.driver, threads)
        session = Session(artifact, threads)
        rng = np.random.default_rng(0)
        feeds = {spec.name: random_array(spec, rng) for spec in session.inputs}
        self.ours: Callable[[], object] = session.bind(feeds).run
        ort: Any = importlib.import_module("onnxruntime")  # it has no types
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        other = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.other: Callable[[], object] = lambda: other.run(None, feeds)
        self.times: dict[str, list[float]] = {}

    def measure(self, runs: int) -> None:
        """One round."""
        for kind, run in (("alone", self.ours), ("ONNX Runtime alone", self.other)):
            time.sleep(PAUSE)
            for _ in range(3):  # the first ones wake threads up
                run()
            self._add(kind, [seconds(run) for _ in range(runs)])
        for kind, is_patient in (("in turns, a patient caller", True), ("in turns", False)):
            self.team.is_patient = is_patient
            for _ in range(runs):
                self._add("ONNX Runtime in turns", [seconds(self.other)])
                self._add(kind, [seconds(self.ours)])

    def _add(self, kind: str, times: list[float]) -> None:
        self.times.setdefault(kind, []).extend(times)


def rows_of(times: dict[str, list[float]]) -> list[list[str]]:
    rows: list[list[str]] = []
    for kind in (
        "alone",
        "in turns, a patient caller",
        "in turns",
        "ONNX Runtime alone",
        "ONNX Runtime in turns",
    ):
        own = "ONNX Runtime alone" if kind.startswith("ONNX") else "alone"
        median = statistics.median(times[kind])
        late = float(np.percentile(times[kind], 90))
        rows.append(
            [
                kind,
                f"{median * 1e3:.2f}",
                f"{late * 1e3:.2f}",
                f"{median / statistics.median(times[own]):.2f}",
            ]
        )
    return rows


@click.command()
@click.argument(
    "models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--threads", type=int, help="Of each session; one for each core unless given.")
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(1))
@click.option(
    "--runs", default=10, show_default=True, type=click.IntRange(1), help="Of each kind in a round."
)
def main(models: tuple[Path, ...], threads: int | None, rounds: int, runs: int) -> None:
    """Measure runs of MODELS while other threads spin; writes docs/results/contention.md."""
    count = default_threads() if threads is None else check_threads(threads)
    parts: list[str] = []
    for model in models:
        pair = Pair(model, count)
        for _ in range(rounds):
            pair.measure(runs)
        text = table(("", "ms", "90 %", "of alone"), rows_of(pair.times))
        click.echo(f"{model.stem}\n{text}")
        parts += [f"## {model.stem}", text]
    cores = 1 + (count - 1) / 2  # all workers share theirs
    method = METHOD.format(threads=count, cores=cores, fair=count / cores, rounds=rounds, runs=runs)
    click.echo(f"written to {write('contention', 'Beside threads that spin', SHOWS, method, *parts)}")


if __name__ == "__main__":
    main()
