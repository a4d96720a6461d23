"""`tilewright quantize`: its options."""

from pathlib import Path

import click

from tilewright.cli.command import Command
from tilewright.cli.options import JSON, MODEL, TARGET, THREADS


def parse_error(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """`1%`, or `0.01`."""
    text = value.strip()
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = 0.0
    if not 0 < found < 1:
        raise click.BadParameter(f"{value!r} is not an error such as 1% or 0.01.", ctx, param)
    return found


COMMAND = Command(
    "quantize",
    "tilewright.cli.quantize:quantize_file",
    """Bring layers of MODEL (.onnx, in floats) to fewer bits where that is quicker, and keep its error within a bound.

    The error is that of the worst output over samples that ranges were not taken from: the root of the sum of squared
    differences from floats, over that of the squares.
    """,
    [
        MODEL,
        click.Option(
            ["--calibrate", "calibration"],
            multiple=True,
            type=click.Path(path_type=Path, exists=True),
            metavar="DATA",
            help="Samples of the model's inputs: .npz files with arrays by name, or folders of them; may be repeated.",
        ),
        click.Option(
            ["--error"],
            default="1%",
            show_default=True,
            callback=parse_error,
            metavar="1%",
            help="The most that the results may be off.",
        ),
        click.Option(
            ["--bits"],
            type=click.Choice(["auto", "8", "4"]),
            default="auto",
            show_default=True,
            help="Of weights.",
        ),
        click.Option(
            ["-o", "--output"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Where to write the model [default: MODEL's name, ending in .quantized.onnx].",
        ),
        THREADS,
        TARGET,
        JSON,
    ],
)
