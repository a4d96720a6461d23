"""`tilewright compare`: its options."""

import re
from pathlib import Path

import click

from tilewright.cli.command import Command
from tilewright.cli.dims import RUN_DIM
from tilewright.cli.options import (
    ACCURACY,
    INPUT,
    JSON,
    MODEL,
    SEED,
    SHAPE,
    TARGET,
    THREADS,
    tolerance_option,
)

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """`512MB`, `1GB`, `2GiB`, or a number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmg]?i?)b?", value.strip().lower())
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise click.BadParameter(f"{value!r} is not an amount of memory such as 512MB.", ctx, param)
    return int(float(match[1]) * _UNITS[match[2]])


COMMAND = Command(
    "compare",
    "tilewright.cli.compare:compare",
    """Run MODEL (.onnx) here and in another engine, on files or random numbers, and compare the results.

    The exit status is 4 if they differ. An error is the largest difference over the largest magnitude of the
    reference; NaN and infinities must be in the same places, integers and strings equal.
    """,
    [
        MODEL,
        click.Option(
            ["--against"],
            type=click.Choice(["ort", "onnx", "reference"]),
            default="ort",
            show_default=True,
            help="ONNX Runtime, the reference of the onnx package, or our own operators in numpy.",
        ),
        SHAPE,
        RUN_DIM,
        INPUT,
        tolerance_option("Allowed error of floats, relative to the largest magnitude of an output."),
        click.Option(
            ["--steps"],
            default=0,
            show_default=True,
            type=click.IntRange(0),
            help="Allowed difference of integers.",
        ),
        click.Option(["--bisect"], is_flag=True, help="Find the first node whose result differs."),
        click.Option(
            ["--memory"],
            default="1GB",
            show_default=True,
            callback=parse_bytes,
            help="For intermediate results while bisecting.",
        ),
        click.Option(
            ["--write", "folder"],
            type=click.Path(path_type=Path, file_okay=False),
            metavar="FOLDER",
            help="Bisect, and write the smallest part of the model that differs, with its inputs.",
        ),
        THREADS,
        TARGET,
        ACCURACY,
        SEED,
        JSON,
    ],
)
