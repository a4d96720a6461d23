"""Traces in files.

    # tilewright trace, version 1
    Split(loop='i', factors=(None, 6))
    Reorder(loops=('k', 'i_1'))
    # end

The lines between are those of `print_trace`, for people to read and to change; nothing is evaluated. A file is written
whole or not at all, and one whose end is missing is refused.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from tilewright.schedule.trace import Trace, parse_trace, print_trace
from tilewright.support.errors import UserError
from tilewright.support.replacing import replacing, write_all

_LAST = "# end"
_MAX_BYTES = 1 << 24
T = TypeVar("T")


class TraceFormat(NamedTuple):
    """The first line of a file, and what such a file is."""

    first: str
    what: str


_STEPS = TraceFormat("# tilewright trace, version 1", "a saved schedule")


def save_trace(trace: Trace, path: str | Path) -> None:
    save_text(_STEPS, print_trace(trace), path)


def load_trace(path: str | Path) -> Trace:
    """The trace that was saved; `UserError` if there is none, or something else in the file."""
    return load_text(_STEPS, path, parse_trace)


def save_text(form: TraceFormat, trace: str, path: str | Path) -> None:
    """Write the lines of a trace."""
    target = Path(path)
    text = f"{form.first}\n{trace}{_LAST}\n"
    try:
        with replacing(target) as file:
            write_all(file, text.encode())
    except OSError as e:
        raise UserError(f"the trace cannot be saved: {e.strerror}", where=str(path)) from None


def load_text(form: TraceFormat, path: str | Path, parse: Callable[[str], T]) -> T:
    """What `parse` makes of the lines of a file of this format."""
    try:
        with open(path, "rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as e:
        raise UserError(f"the trace cannot be read: {e.strerror}", where=str(path)) from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    lines = text.splitlines()
    if not lines or lines[0] != form.first:
        raise UserError(
            "this is not a trace that this version can read",
            where=str(path),
            hint=f"{form.what} begins with the line `{form.first}`",
        )
    if len(raw) > _MAX_BYTES or lines[-1] != _LAST:
        raise UserError("the trace is cut off", where=str(path), hint=f"its last line is `{_LAST}`")
    try:
        return parse(text)
    except UserError as e:
        raise UserError(e.message, where=f"{path}, {e.where}", hint=e.hint) from None
