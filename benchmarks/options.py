"""Options that several benchmarks share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tilewright.cli.machine import machine

Command = TypeVar("Command", bound=Callable[..., Any])


def parse_thread_counts(
    ctx: click.Context, param: click.Parameter, values: tuple[int, ...]
) -> tuple[int, ...]:
    """One and two, as far as there are cores, unless given."""
    return values or tuple(n for n in (1, 2) if n <= len(machine().affinity))


def turn_options(rounds: int, seconds: float) -> Callable[[Command], Command]:
    """How long engines take turns, and with how many threads."""

    def add(command: Command) -> Command:
        for option in (
            click.option("--seconds", default=seconds, show_default=True, help="Of each turn."),
            click.option("--rounds", default=rounds, show_default=True, type=click.IntRange(1)),
            click.option(
                "--threads",
                "thread_counts",
                multiple=True,
                type=click.IntRange(1),
                callback=parse_thread_counts,
                help="May be repeated [1 and 2].",
            ),
        ):
            command = option(command)
        return command

    return add


def results_option(name: str, variable: str, help: str) -> Callable[[Command], Command]:
    """Files with results of the suite (JSON)."""
    return click.option(
        name, variable, multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help=help
    )


def page_options(page: str) -> Callable[[Command], Command]:
    """What is done with results."""

    def add(command: Command) -> Command:
        for option in (
            click.option(
                "--save/--no-save", default=True, show_default=True, help=f"Write docs/results/{page}.md."
            ),
            click.option(
                "--keep",
                type=click.Path(path_type=Path),
                help="Also write what was measured to this file, as JSON.",
            ),
            click.option("--commit", help="That given results were measured at [default: the current one]."),
        ):
            command = option(command)
        return command

    return add
