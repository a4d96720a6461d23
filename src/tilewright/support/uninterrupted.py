"""Functions in which an exception is lost: Python calls them by itself and ignores what they raise (callbacks of weak
references, finalizers). A Ctrl-C that arrives there must wait until they have returned.
"""

from types import CodeType, FrameType, FunctionType
from typing import Any, cast

_codes: set[CodeType] = set()


def uninterrupted(function: Any) -> None:
    """Exceptions of this function are lost."""
    _codes.add(cast(FunctionType, function).__code__)


def is_uninterrupted(frame: FrameType | None) -> bool:
    """Would an exception that is raised here be lost?"""
    while frame is not None:
        if frame.f_code in _codes:
            return True
        frame = frame.f_back
    return False
