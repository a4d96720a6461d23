"""`tilewright compile`: a model to one file that runs without the compiler."""

import time
from pathlib import Path

import click

from tilewright.cli.options import (
    PROGRAM,
    accuracy_option,
    json_option,
    model_argument,
    plugin_options,
    shape_option,
    target_option,
)
from tilewright.cli.output import megabytes, milliseconds, print_json, print_table, progress_bar
from tilewright.compiler import compile as compile_to_artifact
from tilewright.ops.accuracy import Accuracy
from tilewright.wish import Sample


@click.command("compile")
@model_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the program [default: MODEL's name, ending in .tw].",
)
@shape_option
@target_option
@accuracy_option
@plugin_options
@json_option
def compile_model(
    model: Path,
    output: Path | None,
    shapes: dict[str, tuple[int, ...]],
    target: str,
    accuracy: Accuracy | None,
    plugins: tuple[str, ...],
    policy: str,
    strict: bool,
    calibration: tuple[Sample, ...],
    as_json: bool,
) -> None:
    """Compile MODEL (.onnx) to a program (.tw).

    The program is native code: run it only if you trust where it came from.
    """
    path = output or Path(model.with_suffix(PROGRAM).name)
    start = time.perf_counter()
    with progress_bar() as progress:
        compiled = compile_to_artifact(
            model,
            shapes=shapes,
            target=target,
            accuracy=accuracy,
            plugins=plugins,
            placement=policy,
            strict=strict,
            calibration=calibration,
            progress=progress,
        )
    compiled.save(path)
    total = time.perf_counter() - start
    artifact = compiled.artifact
    weights = sum(c.nbytes for c in artifact.constants)
    code = sum(map(len, artifact.objects))
    if as_json:
        print_json(
            {
                "output": str(path),
                "seconds": {**compiled.seconds, "total": total},
                "file_bytes": path.stat().st_size,
                "code_bytes": code,
                "weights_bytes": weights,
                "arena_bytes": artifact.arena_bytes,
                "triple": artifact.manifest.triple,
                "features": sorted(artifact.manifest.features),
                "accuracy": artifact.manifest.options["accuracy"],
            }
        )
        return
    print_table(
        ("stage", "time"), [(s, milliseconds(t)) for s, t in [*compiled.seconds.items(), ("total", total)]]
    )
    print(
        f"{path}: {megabytes(path.stat().st_size)} (code {megabytes(code)}, weights {megabytes(weights)}),"
        f" needs {megabytes(artifact.arena_bytes)} to run"
    )
