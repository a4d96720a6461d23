"""The real ONNX Runtime, if it is installed.

With our import hook in place, `onnxruntime` in `sys.modules` is ours. The real package imports itself by that name, so
it is loaded while ours step aside, and its modules are kept here afterwards. What of it is imported later by name
(`onnxruntime.quantization`) comes from its files, and finds ours where it asks for `onnxruntime`.
"""

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "onnxruntime"


class StepAside(threading.local):
    """Whether this thread wants the real package; our finder then finds nothing."""

    is_on = False


step_aside = StepAside()
_lock = threading.RLock()
_found: list[ModuleType] = []  # the real package, once it is loaded
_kept: dict[str, ModuleType] = {}  # its modules


def real_spec() -> ModuleSpec | None:
    """Where the real package is; None if it is not installed."""
    with _aside():
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(NAME, None) if find is not None else None
            if spec is not None:
                return spec if spec.origin or spec.submodule_search_locations else None
    return None


def is_installed() -> bool:
    return real_spec() is not None


def real_onnxruntime() -> ModuleType:
    """The package, loaded now if need be. ImportError if it is not installed, or does not work."""
    with _lock:
        if _found:
            return _found[0]
        there = sys.modules.get(NAME)
        if there is not None and not is_ours(there):
            _found.append(there)
            return there
        ours = _take_modules()
        try:
            with _aside():
                found = import_module(NAME)
            _found.append(found)
            return found
        finally:
            if ours:
                _kept.update(_take_modules())
                sys.modules.update(ours)


def real_attribute(module: str, name: str, asked: str) -> Any:
    """What the real package has under this name and ours has not. AttributeError if it has neither, or is missing."""
    try:
        home: Any = real_onnxruntime()
        for part in module.split(".")[1:]:
            home = getattr(home, part)
        return getattr(home, name)
    except (ImportError, AttributeError):
        raise AttributeError(f"module {asked!r} has no attribute {name!r}") from None


def is_ours(module: ModuleType) -> bool:
    return bool(getattr(module, "is_tilewright", False))


def _take_modules() -> dict[str, ModuleType]:
    """Remove the package and what is inside of it from those that are imported."""
    names = [n for n in sys.modules if n == NAME or n.startswith(f"{NAME}.")]
    return {n: sys.modules.pop(n) for n in names}


@contextmanager
def _aside() -> Generator[None]:
    before, step_aside.is_on = step_aside.is_on, True
    try:
        yield
    finally:
        step_aside.is_on = before
