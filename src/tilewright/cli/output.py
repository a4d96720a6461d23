"""What commands print: results on stdout (a table, or JSON), everything else on stderr."""

import json
import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from tilewright.cli.verbosity import is_quiet
from tilewright.support.errors import UserError
from tilewright.support.progress import OnProgress

Cell: TypeAlias = str | int

WIDTH_IN_A_PIPE = 240  # names of kernels are long, and are to be copied in one piece

_NUMBER = re.compile(r"-?\d[\d.,]*(e[+-]?\d+)?( ?[^\s\d]+)?( [!†])?|\d+(x\d+)+|inf.*")  # with its unit


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Columns of numbers to the right, others to the left; nothing is cut off."""
    rows = [[f"{c:,}" if isinstance(c, int) else c for c in row] for row in rows]
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(table.columns):
        column.overflow = "fold"
        if all(_NUMBER.fullmatch(row[i]) for row in rows if row[i].strip("-")):
            column.justify = "right"
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH_IN_A_PIPE)
    console.print(table)


def write_drawing(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise UserError(f"cannot write the drawing: {e.strerror or e}", where=str(path)) from e


def note(text: str) -> None:
    """A remark that is no result; `-q` hides it."""
    if not is_quiet():
        click.echo(text, err=True)


@contextmanager
def progress_bar() -> Generator[OnProgress | None]:
    """Bars on stderr, one a stage, if somebody watches; None otherwise."""
    console = Console(stderr=True)
    if is_quiet() or not console.is_terminal:
        yield None
        return
    tasks: dict[str, Any] = {}
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as bars:

        def on_progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield on_progress


def milliseconds(seconds: float) -> str:
    """Three significant digits."""
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms" if ms >= 0.01 else f"{ms * 1e3:.3g} µs"


def megabytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def shape_text(shape: Sequence[int | str]) -> str:
    return "x".join(map(str, shape)) or "scalar"
