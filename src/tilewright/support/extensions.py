"""What other packages add: schedule steps, kernel families, graph passes, intrinsics, targets, commands.

Each kind has a `register_…` function beside the list of our own, and a package calls these where it is imported. Who
uses Tilewright from Python imports the package. The command line, and the processes that tuning starts, import by
themselves what installed packages name in the entry point group `tilewright.extensions`, and the modules that the
environment variable TILEWRIGHT_EXTENSIONS names, separated by commas.

What was added decides what programs are, so the sources of those who added it are a part of the keys of the cache.
"""

import hashlib
import inspect
import os
import sys
from collections.abc import Collection, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from tilewright.support.errors import UserError

GROUP = "tilewright.extensions"
VARIABLE = "TILEWRIGHT_EXTENSIONS"

T = TypeVar("T")

_kinds: "list[Additions[Any]]" = []


class Additions(Generic[T]):
    """Things of one kind that others have added, by name and in order."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.items: dict[str, T] = {}
        self._homes: dict[str, str] = {}  # the modules that have added them
        _kinds.append(self)

    @property
    def homes(self) -> set[str]:
        return {self._homes[name] for name in self.items}

    def add(self, items: Mapping[str, T], own: Collection[str]) -> None:
        """All or none; the same again does nothing. UserError if a name is taken, by one of our `own` or by another."""
        fresh = {name: item for name, item in items.items() if self.items.get(name) != item}
        for name in fresh:
            if name in own or name in self.items:
                raise UserError(f"there is another {self.kind} {name!r}", hint="give it another name")
        if fresh:
            self.items |= fresh
            self._homes |= dict.fromkeys(fresh, _caller())


def _caller() -> str:
    """The module that called a `register_…` function, which called `add`."""
    frame = inspect.currentframe()
    for _ in range(3):
        frame = frame.f_back if frame is not None else None
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""


def extensions_digest() -> str:
    """Of the sources of all packages that have added something; empty if none has."""
    homes = {home for kind in _kinds for home in kind.homes}
    return _digest(tuple(sorted(homes))) if homes else ""


@lru_cache(maxsize=4)
def _digest(homes: tuple[str, ...]) -> str:
    h = hashlib.sha256()
    for home in homes:
        top = sys.modules.get(home.partition(".")[0])
        folders: list[str] = list(getattr(top, "__path__", ()))
        file: str | None = getattr(top, "__file__", None)
        files = [p for f in folders for p in sorted(Path(f).rglob("*.py"))] or ([Path(file)] if file else [])
        h.update(f"\n{home}\n".encode())
        for path in files:
            h.update(path.read_bytes())
        if not files:  # no source, so nothing tells this process from another: it shares no program with it
            h.update(os.urandom(16))
    return h.hexdigest()


@lru_cache(maxsize=1)
def load_extensions() -> None:
    """Import what installed packages and the environment name; once."""
    for entry in entry_points(group=GROUP):
        _load(entry.value)
    for name in os.environ.get(VARIABLE, "").split(","):
        if name.strip():
            _load(name.strip())


def _load(module: str) -> None:
    try:
        import_module(module)
    except UserError:
        raise
    except Exception as e:
        raise UserError(
            f"the extension {module} cannot be imported: {type(e).__name__}: {e}",
            hint=f"uninstall the package, or take it out of {VARIABLE}",
        ) from e
