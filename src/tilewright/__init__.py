"""Tilewright: a tensor compiler in which graph, layouts, loops and tensor instructions are chosen together.

What is named here is imported when it is first asked for. A machine that only runs compiled programs needs neither
LLVM nor onnx; a program that was compiled before is loaded without the compiler; and a process that only compiles IR
(`tilewright.worker`) is ready without either.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.support.errors import InternalError, TilewrightError, UserError
from tilewright.version import __version__

if TYPE_CHECKING:
    from tilewright.api import load
    from tilewright.compiler import CompiledModel, compile
    from tilewright.runtime.session import Bound, Session

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

_HOMES = {
    "Bound": "tilewright.runtime.session",
    "CompiledModel": "tilewright.compiler",
    "Session": "tilewright.runtime.session",
    "compile": "tilewright.compiler",
    "load": "tilewright.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found
