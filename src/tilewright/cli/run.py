"""`tilewright run`: one inference, and what came out of it."""

from pathlib import Path
from typing import Any

from tilewright.api import load
from tilewright.cli.difference import compare_outputs
from tilewright.cli.dims import DimOption, ranges_of, sizes_of
from tilewright.cli.feeds import make_feeds, read_array, read_sample
from tilewright.cli.output import note, print_json, print_table, progress_bar, shape_text
from tilewright.cli.status import ExitStatus
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.made_feeds import output_statistics, write_npy
from tilewright.support.errors import UserError


def run(
    model: Path,
    shapes: dict[str, tuple[int, ...]],
    dims: dict[str, DimOption],
    files: dict[str, str],
    saves: dict[str, str],
    expected: dict[str, str],
    tolerance: float,
    threads: int | None,
    target: str,
    accuracy: Accuracy | None,
    check_indices: bool | None,
    plugins: tuple[str, ...],
    policy: str,
    strict: bool,
    calibration: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> int:
    with progress_bar() as progress:
        session = load(
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
        )
    names = [o.name for o in session.outputs]
    for name in (*saves, *expected):
        if name not in names:
            raise UserError(f"the model has no output {name!r}", hint=f"its outputs are: {', '.join(names)}")
    results = session.run(make_feeds(session.inputs, files, seed, sizes_of(dims)[0]))
    for name, path in saves.items():
        write_npy(path, results[name])
    errors = {
        d.output: d.error for d in compare_outputs(results, {n: read_array(p) for n, p in expected.items()})
    }

    rows: list[dict[str, Any]] = [{"name": name, **output_statistics(results[name])} for name in names]
    if as_json:
        found = {name: {"error": e, "tolerance": tolerance} for name, e in errors.items()}
        print_json({"outputs": rows, "expected": found})
    else:
        print_table(
            ("output", "type", "shape", "min", "max", "mean"),
            [
                (
                    r["name"],
                    r["dtype"],
                    shape_text(r["shape"]),
                    *(_number(r[k]) for k in ("min", "max", "mean")),
                )
                for r in rows
            ],
        )
    for name, error in errors.items():
        if error > tolerance:
            note(f"{name} differs from {expected[name]}: relative error {error:.3g}, allowed {tolerance:.3g}")
    return ExitStatus.MISMATCH if any(e > tolerance for e in errors.values()) else ExitStatus.OK


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"
