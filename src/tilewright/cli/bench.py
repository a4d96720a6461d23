"""`tilewright bench`: how long a model takes to compile, to load, to run once and to run again, here and elsewhere."""

from pathlib import Path

import click

from tilewright.cli.catalogue import OURS, PEERS
from tilewright.cli.difference import TOLERANCE
from tilewright.cli.machine import machine, versions
from tilewright.cli.measure import TIMEOUT, Measured, Plugins, Report, measure
from tilewright.cli.options import (
    accuracy_option,
    input_option,
    json_option,
    model_argument,
    parse_assignments,
    plugin_options,
    seed_option,
    shape_option,
    target_option,
)
from tilewright.cli.output import milliseconds, note, print_json, print_table, progress_bar
from tilewright.cli.status import Status
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.machine import default_threads
from tilewright.wish import Sample, Wish


def parse_engines(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """`ort,openvino`; the option may be repeated, and an engine counts once."""
    names = tuple(dict.fromkeys(n.strip() for v in values for n in v.split(",") if n.strip()))
    unknown = [n for n in names if n not in PEERS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(PEERS)}.", ctx, param)
    return names


def parse_pythons(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`ort=/path/python`."""
    found = parse_assignments(ctx, param, values)
    unknown = [n for n in found if n not in PEERS and n != OURS.name]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(PEERS)}.", ctx, param)
    return found


def parse_thread_counts(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """`1` or `1,2`; one for each core unless given."""
    if value is None:
        return (default_threads(),)
    words = [w.strip() for w in value.split(",")]
    if not all(w.isdecimal() and int(w) > 0 for w in words):
        raise click.BadParameter(
            f"{value!r} is not a number of threads, nor several such as 1,2.", ctx, param
        )
    return tuple(dict.fromkeys(map(int, words)))


@click.command()
@model_argument
@shape_option
@input_option
@click.option(
    "--against",
    multiple=True,
    callback=parse_engines,
    metavar="ENGINE[,…]",
    help=f"Other engines to take turns with: {', '.join(PEERS)}.",
)
@click.option(
    "--python",
    "pythons",
    multiple=True,
    callback=parse_pythons,
    metavar="ENGINE=PATH",
    help="Interpreter that an engine is installed in [default: this one]; may be repeated.",
)
@click.option(
    "--threads",
    "thread_counts",
    callback=parse_thread_counts,
    metavar="N[,M]",
    help="Worker threads of every engine, each count by itself [default: cores this process may use].",
)
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1), help="Turns of each engine.")
@click.option("--seconds", default=0.5, show_default=True, type=click.FloatRange(0), help="Of each turn.")
@click.option(
    "--tolerance", default=TOLERANCE, show_default=True, help="Allowed error against the reference."
)
@click.option(
    "--timeout",
    default=TIMEOUT,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds in which an engine must load the model, or end a turn.",
)
@target_option
@accuracy_option
@plugin_options
@seed_option
@json_option
def bench(
    model: Path,
    shapes: dict[str, tuple[int, ...]],
    files: dict[str, str],
    against: tuple[str, ...],
    pythons: dict[str, str],
    thread_counts: tuple[int, ...],
    rounds: int,
    seconds: float,
    tolerance: float,
    timeout: float,
    target: str,
    accuracy: Accuracy | None,
    plugins: tuple[str, ...],
    policy: str,
    strict: bool,
    calibration: tuple[Sample, ...],
    seed: int,
    as_json: bool,
) -> int:
    """Time MODEL (.onnx or .tw), alone or in turns with other engines.

    Every engine has a process of its own, pinned to as many cores as there are threads. One that is not installed, or
    cannot run the model, is told and left out. Results are compared with ONNX Runtime's, or those of the first other
    engine; if ours differ, the exit status is 4.
    """
    wish = Wish.of(plugins, policy, strict, calibration=calibration)
    reports: list[Report] = []
    for threads in thread_counts:
        with progress_bar() as progress:
            report = measure(
                model,
                shapes=shapes,
                files=files,
                seed=seed,
                threads=threads,
                target=target,
                accuracy=accuracy,
                wish=wish,
                against=against,
                pythons=pythons,
                rounds=rounds,
                seconds=seconds,
                timeout=timeout,
                progress=progress,
            )
        reports.append(report)
        if not as_json:
            show(report, tolerance)
    if as_json:
        results = [r.as_json() for r in reports]
        print_json(
            {
                "model": str(model),
                "machine": machine().summary(),
                "versions": versions(),
                "tolerance": tolerance,
                "results": results,
            }
        )
    wrong = [r for r in reports if r.error is not None and r.error > tolerance]
    for r in wrong:
        note(
            f"our results differ from {r.reference}'s with {r.threads} thread(s):"
            f" relative error {r.error:.3g}, allowed {tolerance:.3g}"
        )
    return Status.MISMATCH if wrong else Status.OK


def show(report: Report, tolerance: float) -> None:
    """A table with a row for each engine, and what there is to say of those that have none."""
    ratios = report.speedup
    columns = ("engine", "version", "load", "median", "95 %", "runs", "noise", "error", "we are")
    rows = [
        (
            _title(report, name),
            found.version,
            milliseconds(sum(s for phase, s in found.start_up.items() if phase != "first_run")),
            milliseconds(found.series.median),
            _interval(found),
            found.series.runs,
            f"{100 * found.series.spread:.0f} %",
            _error(report, name, tolerance),
            f"{ratios[name]}" if name in ratios else "",
        )
        for name, found in report.engines.items()
    ]
    print_table(columns, rows)
    for name, absent in report.absent.items():
        click.echo(f"{name}: {absent}")
    phases = ", ".join(f"{n.replace('_', ' ')} {milliseconds(s)}" for n, s in report.ours.start_up.items())
    cores = ", ".join(map(str, report.cores))
    click.echo()
    if report.plugins is not None:
        click.echo(_plugins(report.plugins))
    click.echo(f"ours: {phases}")
    click.echo(f"{report.threads} thread(s) pinned to core(s) {cores}; {machine().summary()}\n")


def _interval(found: Measured) -> str:
    interval = found.series.interval
    low, high = milliseconds(interval.low), milliseconds(interval.high)
    unit = high[-3:]  # " ms" or " µs"
    return f"{low.removesuffix(unit)} to {high}"


def _error(report: Report, name: str, tolerance: float) -> str:
    """Marked if it is larger than allowed: an engine that computes something else is no comparison."""
    error = report.engines[name].error
    if error is None:
        return "reference" if name == report.reference else ""
    return f"{error:.1e}{'' if error <= tolerance else ' !'}"


def _title(report: Report, name: str) -> str:
    """Ours is called what it is: with the plugins that run parts of the model."""
    regions = report.plugins.regions if report.plugins is not None else None
    if name != OURS.name or not regions:
        return name
    return " + ".join([name, *dict.fromkeys(plugin for plugin, _ in regions.values())])


def _plugins(found: Plugins) -> str:
    """A line on who runs what."""
    if found.regions is None:
        return f"plugins, {found.policy}: {', '.join(found.names)}, in a program for each part of the model"
    shares: list[str] = []
    for name in dict.fromkeys([*found.names, *(plugin for plugin, _ in found.regions.values())]):
        versions = [version for plugin, version in found.regions.values() if plugin == name]
        shares.append(
            f"{name} {versions[0]} runs {len(versions)} region{'s' * (len(versions) > 1)}"
            if versions
            else f"{name} runs nothing"
        )
    return f"plugins, {found.policy}: {', '.join(shares)}"
