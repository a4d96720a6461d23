"""`tilewright quantize`: a model of floats to one of fewer bits, within a bound on its error."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from tilewright.cli.feeds import read_sample
from tilewright.cli.output import milliseconds, note, print_json, print_table, progress_bar, shape_text
from tilewright.quantize.forms import LayerForm
from tilewright.quantize.quantized_model import LayerChoice, QuantizedModel
from tilewright.quantize.quantized_model import quantize as quantize_model
from tilewright.support.errors import UserError

_SAMPLE = ".npz"


def quantize_file(
    model: Path,
    calibration: tuple[Path, ...],
    error: float,
    bits: str,
    output: Path | None,
    threads: int | None,
    target: str,
    as_json: bool,
) -> None:
    path = output or Path(model.with_suffix(".quantized.onnx").name)
    if not path.parent.is_dir():  # not after minutes
        raise UserError(f"there is no folder {path.parent} for the model", hint="make it first")
    if not calibration:
        raise UserError(
            "there are no samples to calibrate with",
            hint="name a folder of .npz files, with inputs by name: --calibrate FOLDER",
        )
    start = time.perf_counter()
    samples = [read_sample(path) for path in sample_files(calibration)]
    with progress_bar() as progress:
        made = quantize_model(
            model, samples, error, bits=bits, threads=threads, target=target, progress=progress
        )
    made.save(path)
    seconds = time.perf_counter() - start
    if as_json:
        print_json({"model": str(model), "output": str(path), "seconds": seconds, **as_object(made)})
        return
    columns = ("layer", "operator", "weights", "form", "error", "floats", "now", "why")
    print_table(columns, map(layer_row, made.choices))
    for name, why in made.others.items():
        note(f"{name} stays as it is: {why}")
    click.echo(f"\n{summary(made)}\n{path}, in {seconds:.0f} s")


def sample_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Files as they are, and those in folders by name."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(p for p in path.iterdir() if p.suffix == _SAMPLE)
        if not found:
            raise UserError(
                f"{path} has no {_SAMPLE} files",
                hint="write each sample with numpy.savez, by the names of inputs",
            )
        yield from found


def layer_row(choice: LayerChoice) -> tuple[str, ...]:
    return (
        choice.name,
        choice.operator,
        shape_text(choice.shape),
        choice.form.value,
        "" if choice.form is LayerForm.FLOAT else f"{choice.error:.3%}",
        milliseconds(choice.float_seconds),
        milliseconds(choice.seconds),
        choice.why,
    )


def summary(made: QuantizedModel) -> str:
    counts = ", ".join(f"{n} {form}" for form, n in made.counts.items())
    tested = "held-out sample" if made.is_apart else "sample that ranges were taken from"
    return (
        f"{len(made.choices)} layers: {counts}\n"
        f"error {made.error:.2%} of at most {made.bound:.2%}, on {made.held_out} {tested}"
        f"{'s' if made.held_out > 1 and made.is_apart else ''}\n"
        f"{milliseconds(made.times.median)}, in floats {milliseconds(made.float_times.median)}:"
        f" {made.speedup} ({made.threads} thread{'s' if made.threads > 1 else ''})"
    )


def as_object(made: QuantizedModel) -> dict[str, Any]:
    return {
        "bound": made.bound,
        "error": made.error,
        "held_out": made.held_out,
        "is_held_out": made.is_apart,
        "threads": made.threads,
        "seconds_float": made.float_times.median,
        "seconds_quantized": made.times.median,
        "speedup": made.speedup.as_json(),
        "counts": {form.value: n for form, n in made.counts.items()},
        "layers": [
            {
                "name": c.name,
                "operator": c.operator,
                "shape": list(c.shape),
                "form": c.form.value,
                "error": c.error,
                "seconds_float": c.float_seconds,
                "seconds": c.seconds,
                "why": c.why,
            }
            for c in made.choices
        ],
        "others": dict(made.others),
    }
