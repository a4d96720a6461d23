"""`tilewright cache`: its commands and their options."""

import re

import click

from tilewright.cli.command import Command, SubCommands
from tilewright.cli.options import JSON

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_age(ctx: click.Context, param: click.Parameter, value: str | None) -> float:
    """`30d`, `12h`, `5m` or `60s`, in seconds; 0 if it is not given."""
    if value is None:
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a time such as 30d, 12h, 5m or 60s.", ctx, param)
    return float(match[1]) * _SECONDS[match[2]]


COMMAND = SubCommands(
    "cache",
    "Look at the cache of compiled programs, and empty it.",
    [
        Command(
            "show",
            "tilewright.cli.cache:show_cache",
            "Show where the cache is, its size and limit, and what is in it.",
            [JSON],
        ),
        Command(
            "clear",
            "tilewright.cli.cache:clear_cache",
            """Remove what is in the cache; it is compiled again when it is needed.

            Other processes may use the cache meanwhile. A folder that has other files in it is left alone.
            """,
            [
                click.Option(
                    ["--older-than", "age"],
                    callback=parse_age,
                    metavar="TIME",
                    help="Only what was not used for so long: 30d, 12h, 5m.",
                ),
                click.Option(["--yes"], is_flag=True, help="Do not ask."),
                JSON,
            ],
        ),
    ],
)
