"""Traces in files.

    # tilewright trace, version 1
    Split(loop='i', factors=(None, 6))
    Reorder(loops=('k', 'i_1'))
    # end

The lines between are those of `print_trace`, for people to read and to change; nothing is evaluated. A file is written
whole or not at all, and one whose end is missing is refused.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from tilewright.schedule.trace import Trace, parse_trace, print_trace
from tilewright.support.errors import UserError

_FIRST = "# tilewright trace, version 1"
_LAST = "# end"
_MAX_BYTES = 1 << 24


def save_trace(trace: Trace, path: str | Path) -> None:
    target = Path(path)
    text = f"{_FIRST}\n{print_trace(trace)}{_LAST}\n"
    try:
        handle, staged = tempfile.mkstemp(
            prefix=f".{target.name[:200]}.", suffix=".partial", dir=target.parent
        )
    except OSError as e:
        raise UserError(f"the trace cannot be saved: {e.strerror}", where=str(path)) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, target)
    except OSError as e:
        raise UserError(f"the trace cannot be saved: {e.strerror}", where=str(path)) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(staged)


def load_trace(path: str | Path) -> Trace:
    """The trace that was saved; `UserError` if there is none, or something else in the file."""
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
    if not lines or lines[0] != _FIRST:
        raise UserError(
            "this is not a trace that this version can read",
            where=str(path),
            hint=f"a saved schedule begins with the line `{_FIRST}`",
        )
    if len(raw) > _MAX_BYTES or lines[-1] != _LAST:
        raise UserError("the trace is cut off", where=str(path), hint=f"its last line is `{_LAST}`")
    try:
        return parse_trace(text)
    except UserError as e:
        raise UserError(e.message, where=f"{path}, {e.where}", hint=e.hint) from None
