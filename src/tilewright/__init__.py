"""Tilewright: a tensor compiler in which graph, layouts, loops and tensor instructions are chosen together.

The compiler is imported when it is first asked for: a machine that only runs compiled programs needs neither LLVM nor
onnx, and importing `tilewright.runtime` does not load them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.runtime.session import Bound, Session
from tilewright.support.errors import InternalError, TilewrightError, UserError
from tilewright.version import __version__

if TYPE_CHECKING:
    from tilewright.compiler import CompiledModel, compile, load

__all__ = [
    "Bound",
    "CompiledModel",
    "InternalError",
    "Session",
    "TilewrightError",
    "UserError",
    "__version__",
    "compile",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in ("CompiledModel", "compile", "load"):
        return getattr(import_module("tilewright.compiler"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
