"""`tilewright inspect`: what a model becomes, at every stage.

What was shown before is shown again from the cache (`cli.views`); so the compiler, and all that needs it
(`cli.inspection`), is imported only where there is something to compile or to run, by name.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import click

from tilewright.cli.dims import DimOption, ranges_of, sizes_of
from tilewright.cli.options import PROGRAM
from tilewright.cli.output import print_json
from tilewright.cli.summary import print_summary, summary_of
from tilewright.cli.traffic_table import show_traffic, total_of
from tilewright.cli.views import Views, pick
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.file import load_artifact as read_program
from tilewright.support.errors import UserError

# How a program is run: files with inputs, the seed of the others, seconds, and sizes of open dimensions.
ProfiledRun: TypeAlias = tuple[dict[str, str], int, float, dict[str, int]]


def inspect(
    model: Path,
    ir: str | None,
    kernel: str | None,
    trace: bool,
    placement: bool,
    svg: Path | None,
    profile: bool,
    traffic: bool,
    seconds: float,
    threads: int | None,
    files: dict[str, str],
    seed: int,
    shapes: dict[str, tuple[int, ...]],
    dims: dict[str, DimOption],
    target: str,
    accuracy: Accuracy | None,
    check_indices: bool | None,
    plugins: tuple[str, ...],
    policy: str,
    strict: bool,
    calibration: tuple[str, ...],
    as_json: bool,
) -> None:
    options = {
        "shapes": shapes,
        "target": target,
        "accuracy": accuracy,
        "check_indices": check_indices,
        "dims": ranges_of(dims),
    }
    (sizes,) = sizes_of(dims)
    if trace and (ir is not None or kernel is not None or profile or placement or svg or plugins):
        raise click.UsageError(
            "--trace shows all decisions: it takes no --ir, --kernel, --profile, --plugin."
        )
    if traffic:
        if ir is not None or trace or placement or plugins or (kernel and not svg):
            raise click.UsageError(
                "--traffic shows all kernels: it takes no --ir, --trace, --plugin, and --kernel only with --svg."
            )
        if model.suffix == PROGRAM:
            raise UserError(
                "a compiled program holds machine code only", where=str(model), hint="inspect the .onnx file"
            )
        run = (files, seed, seconds, sizes) if profile else None
        views = Views.of(model, shapes, target, accuracy, check_indices, dims)
        _show_traffic(views, options, threads, run, kernel, svg, as_json)
        return
    if profile:
        if ir is not None or kernel is not None:
            raise click.UsageError("--profile shows all kernels: it takes no --ir and no --kernel.")
        _inspection().show_profile_of(model, options, (files, seed, seconds, sizes), threads, as_json)
        return
    if plugins or placement or svg:
        if not plugins or not (placement or svg):
            raise click.UsageError("--plugin and --placement (or --svg) belong together.")
        wanted = (plugins, policy, strict, threads, calibration)
        _inspection().show_placement_of(model, options, wanted, svg, as_json)
        return
    if threads is not None or files:
        raise click.UsageError("--threads and --input are for --profile, which runs the model.")
    views = Views.of(model, shapes, target, accuracy, check_indices, dims)
    if trace:
        _show_trace(views, options, as_json)
        return
    if ir is None:
        if kernel is not None:
            raise click.UsageError("--kernel needs --ir, to say what to show of it.")
        _show_summary(views, options, as_json)
        return
    if model.suffix == PROGRAM:
        raise UserError(
            "a compiled program holds machine code only", where=str(model), hint="inspect the .onnx file"
        )
    text = _text(views, options, ir, kernel)
    if as_json:
        print_json({"model": str(model), "ir": ir, "kernel": kernel, "text": text})
    else:
        click.echo(text)


def _inspection() -> ModuleType:
    return import_module("tilewright.cli.inspection")


def _show_summary(views: Views, options: dict[str, Any], as_json: bool) -> None:
    """Arithmetic is known only where the kernels are: not of a compiled program."""
    if views.model.suffix == PROGRAM:
        summary = summary_of(read_program(views.model), {})
    else:
        summary = _view(views, options, "summary", lambda: _inspection().summary_view)
    if as_json:
        print_json(summary)
    else:
        print_summary(summary)


def _show_traffic(
    views: Views,
    options: dict[str, Any],
    threads: int | None,
    run: ProfiledRun | None,
    kernel: str | None,
    svg: Path | None,
    as_json: bool,
) -> None:
    """`run` is given if times are to be measured."""
    if run is not None or svg is not None:
        view = _inspection().traffic_of_model(views.model, options, threads, run, kernel, svg)
    else:
        name = f"traffic {threads or 1}"
        view = _view(views, options, name, lambda: partial(_inspection().traffic_view, threads=threads or 1))
    if as_json:
        print_json({"model": str(views.model), **view, "total": total_of(view)})
    else:
        show_traffic(view)


def _show_trace(views: Views, options: dict[str, Any], as_json: bool) -> None:
    if views.model.suffix == PROGRAM:
        text = read_program(views.model).manifest.options.get("trace", "")
    else:
        text = _view(views, options, "trace", lambda: _inspection().trace_view)
    if as_json:
        print_json({"model": str(views.model), "trace": text.splitlines()})
    else:
        click.echo(text, nl=False)


def _text(views: Views, options: dict[str, Any], ir: str, kernel: str | None) -> str:
    if ir == "graph" and kernel is not None:
        raise click.UsageError("--ir graph has no kernels.")
    only = kernel if ir == "asm" else None  # LLVM takes its time for each
    name = ir if only is None else f"{ir} {only}"
    view = _view(views, options, name, lambda: partial(_inspection().text_view, ir=ir, kernel=only))
    return view["whole"] if kernel is None else pick(view["parts"], kernel)


def _view(views: Views, options: dict[str, Any], name: str, maker: Callable[[], Any]) -> Any:
    """From the cache, or made now; `maker` gives the function that makes it of a compilation."""
    value = views.find(name)
    if value is None:
        make = maker()
        found = _inspection().stages(views.model, **options, with_narrower=name == "trace")
        value = make(found)
        views.keep(name, value, found.external_files)
    return value
