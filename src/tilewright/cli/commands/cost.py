"""`tilewright cost`: its commands and their options."""

from pathlib import Path

import click

from tilewright.cli.command import Command, SubCommands
from tilewright.cli.options import JSON, SHAPE

_CORPUS = click.Argument(["corpus"], type=click.Path(path_type=Path))
_SEED = click.Option(
    ["--seed"], default=0, show_default=True, type=click.IntRange(0), help="Of the training."
)

COMMAND = SubCommands(
    "cost",
    "Train models that predict how long schedules take, judge them, and see why they say what they say.",
    [
        Command(
            "train",
            "tilewright.cli.cost:train_model",
            """Train a model on all timed schedules of CORPUS, a folder that `corpus build` has made.

            The model is an ONNX file, which Tilewright compiles where it is used. TILEWRIGHT_COST_MODEL names the file
            that schedules are ranked by.
            """,
            [
                _CORPUS,
                click.Option(
                    ["--output", "-o", "output"],
                    type=click.Path(path_type=Path),
                    default=Path("cost_model.onnx"),
                    show_default=True,
                    metavar="FILE",
                ),
                click.Option(
                    ["--model", "network"],
                    type=click.Choice(["trees", "gnn"]),
                    default="trees",
                    show_default=True,
                    help="What is trained: trees, or a network over the graph of the kernel, to compare with.",
                ),
                click.Option(
                    ["--task"],
                    type=click.Choice(["schedules", "seconds"]),
                    default="schedules",
                    show_default=True,
                    help="Rank the schedules of a kernel, or predict seconds, which searches of fusion add up.",
                ),
                _SEED,
                JSON,
            ],
        ),
        Command(
            "eval",
            "tilewright.cli.cost:evaluate_models",
            """Train on parts of CORPUS, and judge the models by the rest of it.

            Programs are held out at random, those that are unlike the others (manual), and all kernels of some kinds
            (family). Errors are in percent, rank correlations between -1 and 1.
            """,
            [
                _CORPUS,
                click.Option(
                    ["--seeds"],
                    default=5,
                    show_default=True,
                    type=click.IntRange(1),
                    help="Times that each split is trained; of the random one, each holds out other programs.",
                ),
                click.Option(
                    ["--gnn"],
                    is_flag=False,
                    flag_value=2,
                    default=0,
                    type=click.IntRange(0),
                    metavar="[SEEDS]",
                    help="Judge graph neural networks as well, with 2 seeds unless given; training takes long.",
                ),
                click.Option(
                    ["--page"],
                    type=click.Path(path_type=Path),
                    metavar="FILE.md",
                    help="Write the results to a page, with ablations and drawings beside it.",
                ),
                click.Option(
                    ["--ablation-seeds", "ablation_seeds"],
                    default=2,
                    show_default=True,
                    type=click.IntRange(0),
                    help="Of the ablations on the page.",
                ),
                JSON,
            ],
        ),
        Command(
            "explain",
            "tilewright.cli.cost:explain_schedules",
            """Say which features moved the predicted times of schedules.

            MODEL is a network (.onnx), whose kernels are listed; --kernel explains one of them. Or name a KERNEL of a
            --corpus by the beginning of its key.
            """,
            [
                click.Argument(["what"], metavar="MODEL|KERNEL"),
                click.Option(
                    ["--corpus"], type=click.Path(path_type=Path), metavar="FOLDER", help="That KERNEL is in."
                ),
                click.Option(
                    ["--with", "cost_model"],
                    type=click.Path(path_type=Path),
                    metavar="FILE",
                    help="The cost model [default: TILEWRIGHT_COST_MODEL, or the one that comes with Tilewright].",
                ),
                click.Option(["--kernel"], help="A kernel, by its name or a part of it."),
                click.Option(
                    ["--features", "count"],
                    default=8,
                    show_default=True,
                    type=click.IntRange(1),
                    help="How many features are told.",
                ),
                click.Option(
                    ["--svg"],
                    type=click.Path(path_type=Path),
                    metavar="FILE",
                    help="Draw what moved the prediction of the kernel.",
                ),
                click.Option(
                    ["--threads"],
                    default=1,
                    show_default=True,
                    type=click.IntRange(1),
                    help="That the kernel runs on.",
                ),
                SHAPE,
                JSON,
            ],
        ),
    ],
)
