"""Options that several benchmarks share."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from benchmarks.results import ROOT, current_commit, write
from tilewright.cli.machine import machine

Command = TypeVar("Command", bound=Callable[..., Any])


def parse_thread_counts(
    ctx: click.Context, param: click.Parameter, values: tuple[int, ...]
) -> tuple[int, ...]:
    """One and two, as far as there are cores, unless given."""
    return values or tuple(n for n in (1, 2) if n <= len(machine().affinity))


@dataclass(frozen=True, slots=True)
class Turns:
    """How long engines take turns, and with how many threads."""

    thread_counts: tuple[int, ...]
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PageOptions:
    """What is done with results."""

    commit: str | None
    keep: Path | None
    save: bool

    def measured_at(self, is_given: bool) -> str | None:
        """The commit of results that were given; None for those that are measured now."""
        return (self.commit or current_commit()) if is_given else None

    def stored(self, measured: object, path: Path) -> Path:
        """Where the results are as JSON: at `path`, or where they are to be kept."""
        path = self.keep or path
        path.write_text(json.dumps(measured, indent=1), encoding="utf-8")
        return path

    def publish(
        self, name: str, title: str, shows: str, method: str, parts: Sequence[str], measured_at: str | None
    ) -> None:
        """Print what was found, and write docs/results/NAME.md if that is wanted."""
        click.echo("\n\n".join(parts))
        if self.save:
            path = write(name, title, shows, method, *parts, measured_at=measured_at)
            click.echo(f"\nwritten to {path.relative_to(ROOT)}")


def _packed(name: str, kind: type, options: Sequence[Callable[..., Any]]) -> Callable[[Command], Command]:
    """Adds options, whose values the command gets as one `kind` called `name`."""

    def add(command: Command) -> Command:
        @wraps(command)
        def packed(**values: Any) -> Any:
            own = {f.name: values.pop(f.name) for f in fields(kind)}
            return command(**values, **{name: kind(**own)})

        for option in options:
            packed = option(packed)
        return cast("Command", packed)

    return add


def turn_options(rounds: int, seconds: float) -> Callable[[Command], Command]:
    """The command takes `turns: Turns`."""
    return _packed(
        "turns",
        Turns,
        (
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
        ),
    )


def results_option(name: str, variable: str, help: str) -> Callable[[Command], Command]:
    """Files with results of the suite (JSON)."""
    return click.option(
        name, variable, multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help=help
    )


def page_options(page: str) -> Callable[[Command], Command]:
    """The command takes `page: PageOptions`."""
    return _packed(
        "page",
        PageOptions,
        (
            click.option(
                "--save/--no-save", default=True, show_default=True, help=f"Write docs/results/{page}.md."
            ),
            click.option(
                "--keep",
                type=click.Path(path_type=Path),
                help="Also write what was measured to this file, as JSON.",
            ),
            click.option("--commit", help="That given results were measured at [default: the current one]."),
        ),
    )
