"""`tilewright corpus`: its commands and their options."""

from pathlib import Path

import click

from tilewright.cli.command import Command, SubCommands
from tilewright.cli.options import JSON

_FOLDER = click.Argument(["folder"], type=click.Path(path_type=Path))
_MODELS = click.Argument(["models"], nargs=-1, type=click.Path(path_type=Path), metavar="[MODEL]...")

COMMAND = SubCommands(
    "corpus",
    "Build a corpus of timed schedules, on which performance models are trained.",
    [
        Command(
            "build",
            "tilewright.cli.corpus:build_corpus",
            """Time schedules of the kernels of each MODEL (.onnx), and of generated programs, and keep them in FOLDER.

            What is in FOLDER already is not measured again. Ctrl-C ends the build and keeps what was measured; so does
            a kill. The same command goes on.
            """,
            [
                _FOLDER,
                _MODELS,
                click.Option(
                    ["--generated"],
                    default=0,
                    show_default=True,
                    type=click.IntRange(0),
                    help="Programs to generate.",
                ),
                click.Option(
                    ["--per-kernel", "per_kernel"],
                    default=30,
                    show_default=True,
                    type=click.IntRange(1),
                    help="Schedules of a kernel.",
                ),
                click.Option(
                    ["--structures"],
                    default=0,
                    show_default=True,
                    type=click.IntRange(0),
                    help="Other joins, layouts and algorithms of a program to take kernels from as well.",
                ),
                click.Option(
                    ["--threads"],
                    default=1,
                    show_default=True,
                    type=click.IntRange(1),
                    help="That a schedule runs on.",
                ),
                click.Option(["--budget"], help="How long: 60s, 5m, 1.5h [default: until all is measured]."),
                click.Option(
                    ["--seed"],
                    default=0,
                    show_default=True,
                    type=click.IntRange(0),
                    help="Of the generated programs, and of what is chosen at random.",
                ),
                click.Option(
                    ["--on"],
                    type=click.Choice(["ray"]),
                    help="Build on all nodes of a cluster, instead of this machine.",
                ),
                click.Option(
                    ["--address"],
                    help="Of the cluster [default: RAY_ADDRESS, or else a cluster of this machine alone].",
                ),
                JSON,
            ],
        ),
        Command(
            "show",
            "tilewright.cli.corpus:show_corpus",
            """Show what is in the corpus in FOLDER: kernels, schedules, how many failed, and how noisy times are.""",
            [_FOLDER, JSON],
        ),
        Command(
            "merge",
            "tilewright.cli.corpus:merge_corpora",
            """Add what is in other corpora to the one in FOLDER. What is there already is not added again.""",
            [
                _FOLDER,
                click.Argument(
                    ["others"],
                    nargs=-1,
                    required=True,
                    type=click.Path(path_type=Path),
                    metavar="OTHER...",
                ),
                JSON,
            ],
        ),
    ],
)
