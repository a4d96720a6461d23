"""`tilewright tune`: its options."""

import click

from tilewright.cli.command import Command
from tilewright.cli.dims import COMPILED_DIM
from tilewright.cli.options import ACCURACY, DB, JSON, MODEL, SHAPE, TARGET
from tilewright.support.budget import DEFAULT_BUDGET

COMMAND = Command(
    "tune",
    "tilewright.cli.tune:tune_model",
    """Measure schedules for the kernels of MODEL (.onnx). What is found is used whenever it is compiled again.

    Every measurement goes to the database of the user at once. Ctrl-C ends the search and keeps what was found; so
    does a kill. --resume goes on.
    """,
    [
        MODEL,
        click.Option(
            ["--budget"],
            help=f"How long: 60s, 5m, 1.5h [default: {DEFAULT_BUDGET}, or that of the tuning that is resumed].",
        ),
        click.Option(["--trials"], type=click.IntRange(1), help="Measure at most this many candidates."),
        click.Option(
            ["--threads"],
            default=1,
            show_default=True,
            type=click.IntRange(1),
            help="That a candidate runs on.",
        ),
        click.Option(
            ["--seed"], default=0, show_default=True, help="Of the search and of the random tensors."
        ),
        SHAPE,
        COMPILED_DIM,
        TARGET,
        ACCURACY,
        DB,
        click.Option(
            ["--resume"],
            is_flag=True,
            help="Go on with the last tuning of MODEL for as many threads, which was killed or interrupted.",
        ),
        click.Option(
            ["--on"],
            type=click.Choice(["ray"]),
            help="Tune on all nodes of a cluster, instead of this machine.",
        ),
        click.Option(
            ["--address"],
            help="Of the cluster [default: RAY_ADDRESS, or else a cluster of this machine alone].",
        ),
        JSON,
    ],
)
