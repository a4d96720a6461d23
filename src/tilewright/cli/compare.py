"""`tilewright compare`: whether a model gives what another engine gives, and if not, which node is to blame."""

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tilewright.api import load
from tilewright.cli.bisect import Bisection, Bisector, Found, Reproducer
from tilewright.cli.difference import Difference, Tolerance
from tilewright.cli.dims import DimOption, ranges_of, sizes_of
from tilewright.cli.engines import Engine, Ours, make_reference
from tilewright.cli.feeds import make_feeds
from tilewright.cli.options import PROGRAM
from tilewright.cli.output import note, print_json, print_table, progress_bar
from tilewright.cli.status import ExitStatus
from tilewright.cli.submodel import ModelParts, write_case
from tilewright.ops.accuracy import Accuracy
from tilewright.ops.hostop import HostValues
from tilewright.runtime.machine import default_threads
from tilewright.support.errors import UserError


def compare(
    model: Path,
    against: str,
    shapes: dict[str, tuple[int, ...]],
    dims: dict[str, DimOption],
    files: dict[str, str],
    tolerance: float,
    steps: int,
    bisect: bool,
    memory: int,
    folder: Path | None,
    threads: int | None,
    target: str,
    accuracy: Accuracy | None,
    seed: int,
    as_json: bool,
) -> int:
    if model.suffix == PROGRAM:
        raise UserError(
            "other engines cannot read a .tw program", where=str(model), hint="give the .onnx file"
        )
    allowed = Tolerance(tolerance, steps)
    reference = make_reference(against, threads or default_threads())
    with progress_bar() as progress:
        with load(
            model,
            shapes=shapes,
            dims=ranges_of(dims),
            threads=threads,
            target=target,
            accuracy=accuracy,
            progress=progress,
        ) as session:
            feeds: HostValues = make_feeds(session.inputs, files, seed, sizes_of(dims)[0])
            got = session.run(feeds)  # pyright: ignore[reportArgumentType]
        wanted = reference.prepare(model)(feeds)
        differences = allowed.differences(got, wanted)
        report: dict[str, Any] = {
            "model": str(model),
            "against": reference.name,
            "tolerance": tolerance,
            "steps": steps,
            "agrees": all(map(allowed.allows, differences)),
            "passes_at": _finite(max((d.error for d in differences), default=0.0)),
            "outputs": [_output(d, wanted[d.output]) for d in differences],
        }
        is_fine = report["agrees"]
        bisection: Bisection | None = None
        if bisect or folder is not None:
            bad = [d for d in differences if not allowed.allows(d)]
            with ModelParts(model) as parts:
                ours = Ours(threads, target, accuracy)
                bisector = Bisector(parts, feeds, ours, reference, allowed, memory, progress)
                bisection = bisector.search()
                suspect = _suspect(bisection, bad, parts.makers)
                made = bisector.reproduce(suspect) if folder is not None and suspect else None
            report["bisect"] = _bisection(bisection)
            if folder is not None:
                report["written"] = _write(made, folder, _options(against, tolerance, steps, accuracy))
            is_fine = is_fine and bisection.different is None and bisection.wrong is None
    if as_json:
        print_json(report)
    else:
        _show(report)
        if bisection is not None:
            _show_bisection(bisection, reference, is_whole_fine=report["agrees"])
            _show_written(report)
    return ExitStatus.OK if is_fine else ExitStatus.MISMATCH


def _suspect(b: Bisection, bad: list[Difference], makers: Mapping[str, int]) -> str | None:
    """The value that a reproducer has to get wrong."""
    found = b.wrong or b.different
    if found is not None:
        return found.difference.output
    return next((d.output for d in bad if d.output in makers), None)


# -------------------------------------------------------------------------------------------------------------- JSON


def _finite(number: float) -> float | None:
    """JSON knows no infinity: None stands for "no tolerance would do"."""
    return number if math.isfinite(number) else None


def _output(d: Difference, wanted: Any) -> dict[str, Any]:
    is_tensor = hasattr(wanted, "dtype")
    return {
        "name": d.output,
        "dtype": str(wanted.dtype) if is_tensor else None,
        "shape": list(wanted.shape) if is_tensor else None,
        **_difference(d),
    }


def _difference(d: Difference) -> dict[str, Any]:
    return {
        "error": _finite(d.error),
        "largest": _finite(d.largest),
        "different": d.different,
        "reason": d.reason or None,
    }


def _found(found: Found | None) -> dict[str, Any] | None:
    if found is None:
        return None
    d = found.difference
    return {
        "index": found.index,
        "node": found.node,
        "op": found.op_type,
        "output": d.output,
        **_difference(d),
    }


def _bisection(b: Bisection) -> dict[str, Any]:
    return {
        "nodes": b.nodes,
        "windows": b.windows,
        "peak_bytes": b.peak_bytes,
        "first_different": _found(b.different),
        "first_wrong": _found(b.wrong),
    }


def _write(made: Reproducer | None, folder: Path, options: list[str]) -> dict[str, Any] | None:
    if made is None:
        return None
    write_case(folder, made.model, made.inputs, made.expected)
    data = folder / "test_data_set_0"
    inputs = [f"--input={n}={data / f'input_{i}.pb'}" for i, n in enumerate(made.inputs)]
    command = ["tilewright", "compare", str(folder / "model.onnx"), *options, *inputs]
    return {
        "folder": str(folder),
        "nodes": [n.op_type for n in made.model.graph.node],
        "command": shlex.join(command),
        **_difference(made.difference),
    }


def _options(against: str, tolerance: float, steps: int, accuracy: Accuracy | None) -> list[str]:
    """Those that say what counts as different, so that the small model is judged as the whole one was."""
    given = {"against": against, "tolerance": f"{tolerance:g}", "steps": steps or None, "accuracy": accuracy}
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


# -------------------------------------------------------------------------------------------------------------- text


def _error_text(d: Mapping[str, Any]) -> str:
    return d["reason"] or f"{d['error']:.3g}"


def _show(report: Mapping[str, Any]) -> None:
    rows = [
        (
            o["name"],
            o["dtype"] or "not a tensor",
            "x".join(map(str, o["shape"])) if o["shape"] else "scalar" if o["shape"] == [] else "",
            f"{o['largest'] or 0:.3g}",
            o["different"],
            _error_text(o),
        )
        for o in report["outputs"]
    ]
    print_table(("output", "type", "shape", "largest difference", "differing", "error"), rows)
    at = report["passes_at"]
    least = "no tolerance would pass" if at is None else f"passes with --tolerance {_rounded_up(at)} or more"
    verdict = "agrees with" if report["agrees"] else "differs from"
    click.echo(f"\n{verdict} {report['against']} (tolerance {report['tolerance']:g}); {least}")


def _rounded_up(number: float) -> str:
    """Two digits that are not less."""
    if number == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    return f"{math.ceil(number / unit) * unit:.2g}"


def _show_bisection(b: Bisection, reference: Engine, *, is_whole_fine: bool) -> None:
    click.echo(f"\n{b.nodes} nodes; at most {b.peak_bytes:,} bytes of intermediate results held")
    _show_found("first node whose result differs, given all that comes before", b.different)
    _show_found(f"first node that is wrong on the inputs that {reference.name} has for it", b.wrong)
    if b.different is not None and b.wrong is None:
        click.echo("No node up to there is wrong on equal inputs: small errors have grown.")
    elif b.different is None and b.wrong is None and not is_whole_fine:
        click.echo(
            "Nodes agree when their results are asked for: what is wrong is how they are compiled together."
        )


def _show_found(what: str, found: Found | None) -> None:
    if found is None:
        click.echo(f"{what}: none")
        return
    d = found.difference
    click.echo(f"{what}:\n  {found.node} ({found.op_type}), output {d.output}: {_error_text(_difference(d))}")


def _show_written(report: Mapping[str, Any]) -> None:
    if "written" not in report:
        return
    written = report["written"]
    if written is None:
        note("nothing was written: no part of the model differs when only its result is asked for")
        return
    count, folder = len(written["nodes"]), written["folder"]
    click.echo(
        f"\n{count} node(s) that show it are written to {folder}. To run them:\n  {written['command']}"
    )
