"""Permission to use the tile registers of AMX, which Linux keeps from a process until it asks.

The state of a thread grows by 8 KiB with them. Asking once is enough for all threads of the process, those that exist
and those to come; an instruction without permission ends it. A process with a signal stack that is too small for the
state is refused, and so is any where a filter of system calls or an older kernel stands in the way.
"""

import ctypes
import platform
from collections.abc import Iterable
from functools import lru_cache

# Given: Linux on x86-64.
_ARCH_PRCTL = 158  # number of the system call
_ASK = 0x1023  # ARCH_REQ_XCOMP_PERM
_TILE_DATA = 18  # the component of the state that has the tiles

TILE_FEATURES = frozenset({"amx-tile", "amx-int8", "amx-bf16"})


@lru_cache(maxsize=1)
def tiles_are_permitted() -> bool:
    """May threads of this process use tile registers? Asks the kernel, the first time."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return False
    try:
        ask = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return False
    ask.restype, ask.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_long, ctypes.c_long]
    return ask(_ARCH_PRCTL, _ASK, _TILE_DATA) == 0


def without_refused(features: Iterable[str]) -> frozenset[str]:
    """Features of a processor, without those that the kernel keeps from this process."""
    some = frozenset(features)
    return some if some.isdisjoint(TILE_FEATURES) or tiles_are_permitted() else some - TILE_FEATURES
