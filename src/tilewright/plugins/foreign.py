"""Libraries of others through their C API: found in the package that brings them, called so that failures are errors.

For APIs whose functions return a status, 0 if all is well, and whose objects are handles: `thing_create` puts one where
its first argument points, `thing_destroy` frees it.
"""

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import byref, c_void_p
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from tilewright.support.errors import UserError


class ForeignError(UserError):
    """A library is not there, or refuses something."""


class Library:
    """A shared library of an installed package. `prefix` is what names of its functions begin with, `extra` the extra
    of ours that brings the package, `statuses` what each status means.
    """

    def __init__(self, package: str, file: str, prefix: str, extra: str, statuses: Sequence[str]) -> None:
        self._prefix, self._statuses = prefix, statuses
        try:
            files = distribution(package).files or ()
            self.functions: Any = ctypes.CDLL(next(str(f.locate()) for f in files if f.name == file))
        except PackageNotFoundError:
            raise ForeignError(f"{package} is not installed: pip install 'tilewright[{extra}]'") from None
        except (OSError, StopIteration) as e:
            raise ForeignError(f"{file} of {package} cannot be loaded: {e}") from None

    def call(self, name: str, *args: Any) -> None:
        """ForeignError if it fails."""
        status: int = getattr(self.functions, self._prefix + name)(*args)
        if status:
            known = 0 <= status < len(self._statuses)
            raise ForeignError(f"{self._prefix}{name}: {self._statuses[status] if known else status}")

    def make(self, kind: str, *args: Any, by: str = "") -> "Handle":
        """An object of this kind, by its usual function or another one."""
        made = Handle()
        self.call(by or f"{kind}_create", byref(made), *args)
        free = getattr(self.functions, f"{self._prefix}{kind}_destroy")
        weakref.finalize(made, free, c_void_p(made.value)).atexit = False
        return made


class Handle(c_void_p):
    """What a library has made. It is freed with this object."""
