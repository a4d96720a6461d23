"""`tilewright report`: its options."""

from pathlib import Path

import click

from tilewright.cli.command import Command
from tilewright.cli.commands.bench import parse_engines
from tilewright.cli.dims import RUN_DIM
from tilewright.cli.options import COMPILING, INPUT, JSON, MODEL, SEED, SHAPE, THREADS

_FILE = click.Path(path_type=Path, dir_okay=False)

COMMAND = Command(
    "report",
    "tilewright.cli.report:report",
    """Run MODEL (.onnx or .tw), and write a page about it: graph, kernels, where the time goes, memory, threads.

    The page is one HTML file that needs no network. MODEL may also be the data of an earlier report (.json), which is
    shown without running anything.
    """,
    [
        MODEL,
        click.Option(
            ["-o", "--output", "output"],
            type=_FILE,
            help="The page [default: the model's name with .html, unless only --json, --data or --chrome-trace are"
            " asked for].",
        ),
        click.Option(["--data"], type=_FILE, help="Write what the page shows as JSON, too."),
        click.Option(
            ["--chrome-trace"],
            type=_FILE,
            help="Write one run as events for chrome://tracing or Perfetto, too.",
        ),
        click.Option(
            ["--compare"],
            type=_FILE,
            metavar="FILE.json",
            help="Show the difference to an earlier run, of which --data or --json has kept this.",
        ),
        click.Option(
            ["--against"],
            multiple=True,
            callback=parse_engines,
            metavar="ENGINE[,…]",
            help="Time other engines in turns with ours, as bench does.",
        ),
        click.Option(
            ["--seconds"],
            default=1.0,
            show_default=True,
            type=click.FloatRange(0),
            help="How long the model is run.",
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
