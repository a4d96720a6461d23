"""`tilewright generate`: its options."""

from pathlib import Path

import click

from tilewright.cli.command import Command
from tilewright.cli.options import JSON, TARGET, THREADS


def parse_tokens(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """`1,2,3`, with spaces or without."""
    if value is None:
        return None
    parts = value.replace(",", " ").split()
    if not parts or not all(p.isdecimal() for p in parts):
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 1,2,3.", ctx, param)
    return tuple(map(int, parts))


COMMAND = Command(
    "generate",
    "tilewright.cli.generate:generate",
    "Go on from a prompt with the language model of a folder: MODEL has config.json, *.safetensors and tokenizer.json.",
    [
        click.Argument(["model"], type=click.Path(path_type=Path)),
        click.Option(["--prompt"], metavar="TEXT", help="What to go on from."),
        click.Option(
            ["--prompt-tokens", "numbers"],
            callback=parse_tokens,
            metavar="1,2,3",
            help="The same as numbers of tokens; then tokens are printed as numbers too.",
        ),
        click.Option(
            ["--chat"], is_flag=True, help="Put --prompt as a question, as the model's template says."
        ),
        click.Option(
            ["--tokens", "count"],
            type=click.IntRange(min=1),
            default=128,
            show_default=True,
            help="The most that are generated.",
        ),
        click.Option(
            ["--temperature"],
            type=click.FloatRange(min=0),
            default=0.0,
            show_default=True,
            help="0: the likeliest token; above: at random, the flatter the higher.",
        ),
        click.Option(
            ["--top-k"],
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Draw from so many of the likeliest tokens; 0: from all.",
        ),
        click.Option(
            ["--top-p"],
            type=click.FloatRange(min=0, max=1, min_open=True),
            default=1.0,
            show_default=True,
            help="Draw from the fewest tokens that have this probability together.",
        ),
        click.Option(
            ["--seed"], type=click.IntRange(min=0), default=0, show_default=True, help="Of what is drawn."
        ),
        click.Option(
            ["--context"],
            type=click.IntRange(min=1),
            help="The most tokens that a text has, with the prompt [default: 2048, or the model's].",
        ),
        click.Option(
            ["--bits"],
            type=click.Choice(["4", "8", "32"]),
            default="4",
            show_default=True,
            help="Of a weight; 32: as floats.",
        ),
        click.Option(
            ["--random", "is_random"],
            is_flag=True,
            help="Take random weights: MODEL needs no more than config.json.",
        ),
        click.Option(
            ["--keep"],
            type=click.Path(path_type=Path, file_okay=False),
            metavar="FOLDER",
            help="Where the converted model is kept [default: MODEL/tilewright].",
        ),
        THREADS,
        TARGET,
        JSON,
    ],
)
