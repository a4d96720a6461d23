"""`tilewright bench`: how long a model takes to compile, to load, to run once and to run again."""

from pathlib import Path

import click

from tilewright.cli.difference import TOLERANCE
from tilewright.cli.machine import machine, versions
from tilewright.cli.measure import Report, measure
from tilewright.cli.options import (
    accuracy_option,
    input_option,
    json_option,
    model_argument,
    seed_option,
    shape_option,
    target_option,
    threads_option,
)
from tilewright.cli.output import milliseconds, note, print_json, print_table, progress_bar
from tilewright.cli.status import Status
from tilewright.ops.accuracy import Accuracy


@click.command()
@model_argument
@shape_option
@input_option
@click.option("--against", type=click.Choice(["ort"]), help="Another engine to take turns with.")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1), help="Turns of each engine.")
@click.option("--seconds", default=0.5, show_default=True, type=click.FloatRange(0), help="Of each turn.")
@click.option("--tolerance", default=TOLERANCE, show_default=True, help="Allowed error against the engine.")
@threads_option
@target_option
@accuracy_option
@seed_option
@json_option
def bench(
    model: Path,
    shapes: dict[str, tuple[int, ...]],
    files: dict[str, str],
    against: str | None,
    rounds: int,
    seconds: float,
    tolerance: float,
    threads: int | None,
    target: str,
    accuracy: Accuracy | None,
    seed: int,
    as_json: bool,
) -> int:
    """Time MODEL (.onnx or .tw), alone or in turns with another engine.

    The process is pinned to as many cores as there are threads, for all engines alike. If the engines' results
    differ, the exit status is 4.
    """
    with progress_bar() as progress:
        report = measure(
            model,
            shapes=shapes,
            files=files,
            seed=seed,
            threads=threads,
            target=target,
            accuracy=accuracy,
            against_ort=against == "ort",
            rounds=rounds,
            seconds=seconds,
            progress=progress,
        )
    if as_json:
        print_json({**report.as_json(), "machine": machine().summary(), "versions": versions()})
    else:
        _show(report)
    if report.error is not None and report.error > tolerance:
        note(f"the engines' results differ: relative error {report.error:.3g}, allowed {tolerance:.3g}")
        return Status.MISMATCH
    return Status.OK


def _show(report: Report) -> None:
    names = [name.replace("_", " ") for name in report.start_up]
    print_table(names, [[milliseconds(t) for t in report.start_up.values()]])
    click.echo()
    print_table(
        ("engine", "median", "p90", "p99", "runs", "noise"),
        [
            (name, *(milliseconds(s.percentile(p)) for p in (50, 90, 99)), s.runs, f"{100 * s.spread:.0f} %")
            for name, s in report.engines.items()
        ],
    )
    click.echo()
    for name, ratio in report.speedup.items():
        click.echo(f"against {name}: {ratio} (95 % interval over rounds), relative error {report.error:.2g}")
    cores = ", ".join(map(str, report.cores))
    click.echo(f"{report.threads} thread(s) pinned to core(s) {cores}; {machine().summary()}")
