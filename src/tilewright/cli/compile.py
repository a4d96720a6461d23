"""`tilewright compile`: a model to one file that runs without the compiler."""

import time
from pathlib import Path

from tilewright.cli.dims import DimOption, ranges_of
from tilewright.cli.feeds import read_sample
from tilewright.cli.options import PROGRAM
from tilewright.cli.output import megabytes, milliseconds, print_json, print_table, progress_bar
from tilewright.cli.summary import dims_json, print_dims
from tilewright.compiler import compile as compile_to_artifact
from tilewright.ops.accuracy import Accuracy


def compile_model(
    model: Path,
    output: Path | None,
    trace: Path | None,
    trace_out: Path | None,
    threads: int | None,
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
    path = output or Path(model.with_suffix(PROGRAM).name)
    start = time.perf_counter()
    with progress_bar() as progress:
        compiled = compile_to_artifact(
            model,
            shapes=shapes,
            dims=ranges_of(dims),
            threads=threads,
            target=target,
            accuracy=accuracy,
            check_indices=check_indices,
            plugins=plugins,
            placement=policy,
            strict=strict,
            calibration=map(read_sample, calibration),
            progress=progress,
            trace=trace,
        )
    compiled.save(path)
    if trace_out is not None:
        compiled.trace.save(trace_out)
    total = time.perf_counter() - start
    artifact = compiled.artifact
    weights, code = artifact.weights_bytes, artifact.code_bytes
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
                "trace": None if trace_out is None else str(trace_out),
                "check_indices": "check_indices" in artifact.manifest.options,
                **dims_json(artifact),
            }
        )
        return
    print_table(
        ("stage", "time"), [(s, milliseconds(t)) for s, t in [*compiled.seconds.items(), ("total", total)]]
    )
    print(
        f"{path}: {megabytes(path.stat().st_size)} (code {megabytes(code)}, weights {megabytes(weights)}),"
        f" needs {megabytes(artifact.arena_bytes)} to run{' at the largest sizes' if artifact.manifest.dims else ''}"
    )
    print_dims(dims_json(artifact))
