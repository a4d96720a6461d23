"""`tilewright inspect`: its options."""

from pathlib import Path

import click

from tilewright.cli.command import Command
from tilewright.cli.dims import RUN_DIM
from tilewright.cli.options import COMPILING, INPUT, JSON, MODEL, SEED, SHAPE, THREADS

STAGES = ("graph", "tir", "scheduled", "lowered", "llvm", "asm")


COMMAND = Command(
    "inspect",
    "tilewright.cli.inspect:inspect",
    """Show what MODEL becomes: a summary (.onnx or .tw), its text at one stage (.onnx), or its profile (.onnx or .tw).

    \b
    graph      operators, after import
    tir        loops and blocks, as lowered from the graph
    scheduled  the same after layouts and loops were chosen
    lowered    kernels as plain loops
    llvm, asm  kernels as LLVM IR and as machine code
    """,
    [
        MODEL,
        click.Option(
            ["--ir"],
            type=click.Choice(STAGES),
            help="Print the program at this stage instead of a summary.",
        ),
        click.Option(
            ["--kernel"], metavar="NAME", help="Only this kernel of the stage, by its name or a part of it."
        ),
        click.Option(
            ["--trace"], is_flag=True, help="Print all decisions that make the program (.onnx or .tw)."
        ),
        click.Option(
            ["--placement"],
            is_flag=True,
            help="Show what plugins (--plugin) were asked, and what they run.",
        ),
        click.Option(
            ["--svg"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Draw the placement: the graph, coloured by who runs what; or, with --traffic, how values flow in a"
            " kernel (--kernel) before and after it was scheduled.",
        ),
        click.Option(["--profile"], is_flag=True, help="Run the model, and show where its time goes."),
        click.Option(
            ["--traffic"],
            is_flag=True,
            help="Show what kernels move between levels of memory; with --profile, next to measured times.",
        ),
        click.Option(
            ["--seconds"],
            default=1.0,
            show_default=True,
            type=click.FloatRange(0),
            help="How long --profile runs it.",
        ),
        THREADS,
        INPUT,
        SEED,
        SHAPE,
        RUN_DIM,
        *COMPILING,
        JSON,
    ],
)
