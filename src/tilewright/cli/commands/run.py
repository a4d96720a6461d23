"""`tilewright run`: its options."""

import click

from tilewright.cli.command import Command
from tilewright.cli.defaults import TOLERANCE
from tilewright.cli.options import (
    ACCURACY,
    CHECK_INDICES,
    INPUT,
    JSON,
    MODEL,
    PLUGINS,
    SEED,
    SHAPE,
    TARGET,
    THREADS,
    parse_assignments,
)

COMMAND = Command(
    "run",
    "tilewright.cli.run:run",
    "Run MODEL (.onnx or .tw) once on files or random numbers.",
    [
        MODEL,
        SHAPE,
        INPUT,
        click.Option(
            ["--output", "saves"],
            multiple=True,
            callback=parse_assignments,
            metavar="NAME=FILE.npy",
            help="Write an output to a file; may be repeated.",
        ),
        click.Option(
            ["--expect", "expected"],
            multiple=True,
            callback=parse_assignments,
            metavar="NAME=FILE.npy",
            help="Compare an output with a file, and exit with 4 if it differs; may be repeated.",
        ),
        click.Option(
            ["--tolerance"],
            default=TOLERANCE,
            show_default=True,
            help="Of --expect, relative to the largest magnitude.",
        ),
        THREADS,
        TARGET,
        ACCURACY,
        CHECK_INDICES,
        *PLUGINS,
        SEED,
        JSON,
    ],
)
