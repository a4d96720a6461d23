"""`tilewright bench`: how long a model takes to compile, to load, to run once and to run again, here and elsewhere."""

from pathlib import Path

import click

from tilewright.cli.catalogue import OURS
from tilewright.cli.dims import DimOption, ranges_of, sizes_of, sizes_text
from tilewright.cli.feeds import read_sample
from tilewright.cli.machine import machine, versions
from tilewright.cli.measure import Measured, Plugins, Report, measure_at
from tilewright.cli.output import milliseconds, note, print_json, print_table, progress_bar
from tilewright.cli.status import ExitStatus
from tilewright.ops.accuracy import Accuracy
from tilewright.placement.options import PluginOptions
from tilewright.runtime.machine import default_threads


def bench(
    model: Path,
    shapes: dict[str, tuple[int, ...]],
    dims: dict[str, DimOption],
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
    calibration: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> int:
    plugin_options = PluginOptions.of(plugins, policy, strict, calibration=map(read_sample, calibration))
    reports: list[Report] = []
    for threads in thread_counts or (default_threads(),):
        with progress_bar() as progress:
            found = measure_at(
                model,
                sizes_of(dims),
                dims=ranges_of(dims),
                shapes=shapes,
                files=files,
                seed=seed,
                threads=threads,
                target=target,
                accuracy=accuracy,
                plugin_options=plugin_options,
                against=against,
                pythons=pythons,
                rounds=rounds,
                seconds=seconds,
                timeout=timeout,
                progress=progress,
            )
        reports += found
        for report in found if not as_json else ():
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
            f"our results differ from {r.reference}'s with {r.threads} thread(s){sizes_text(r.sizes, ' at ')}:"
            f" relative error {r.error:.3g}, allowed {tolerance:.3g}"
        )
    return ExitStatus.MISMATCH if wrong else ExitStatus.OK


def show(report: Report, tolerance: float) -> None:
    """A table with a row for each engine, and what there is to say of those that have none."""
    ratios = report.speedup
    if report.sizes:
        click.echo(f"{sizes_text(report.sizes)}:")
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
    if report.note is not None:
        click.echo(report.note)
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
