"""Tilewright: a tensor compiler in which graph, layouts, loops and tensor instructions are chosen together."""

from tilewright.compiler import CompiledModel, compile, load
from tilewright.runtime.session import Bound, Session
from tilewright.support.errors import InternalError, TilewrightError, UserError
from tilewright.version import __version__

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
