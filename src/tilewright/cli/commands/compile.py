"""`tilewright compile`: its options."""

from pathlib import Path

import click

from tilewright.cli.command import Command
from tilewright.cli.dims import COMPILED_DIM
from tilewright.cli.options import COMPILING, JSON, MODEL, SHAPE

COMMAND = Command(
    "compile",
    "tilewright.cli.compile:compile_model",
    """Compile MODEL (.onnx) to a program (.tw).

    The program is native code: run it only if you trust where it came from.
    """,
    [
        MODEL,
        click.Option(
            ["-o", "--output"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Where to write the program [default: MODEL's name, ending in .tw].",
        ),
        click.Option(
            ["--trace"],
            type=click.Path(path_type=Path, dir_okay=False, exists=True),
            help="Take the decisions in this file, and decide only what it leaves open.",
        ),
        click.Option(
            ["--trace-out"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Write all decisions to a file, to look at, change and compile with again.",
        ),
        click.Option(
            ["--threads"],
            type=click.IntRange(min=1),
            help="Choose kernels for this many threads [default: for any number]. The program runs with any number.",
        ),
        SHAPE,
        COMPILED_DIM,
        *COMPILING,
        JSON,
    ],
)
