"""Large constants by their contents: programs of one process that have the same ones share the memory.

Two programs of a model (for two shapes, say) have mostly the same constants. Each is known by the SHA-256 of its bytes,
which is taken when a program is made and kept with it, so that loading does not hash anything. The table of what is in
memory is weak: an entry lives as long as some array views its memory, and is freed with the last one.
"""

import hashlib
import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.machine import default_threads

# Bytes. Whoever reads a constant of this size from a file of its own spends a tenth more than on the bytes alone (2 us
# to open it, 20 us to read and check 64 KiB), and the last block of the file is half empty (2 KiB: 3 %).
LARGE = 64 << 10

Bytes: TypeAlias = NDArray[np.uint8]

_known: "weakref.WeakValueDictionary[str, Bytes]" = weakref.WeakValueDictionary()
_lock = threading.Lock()


def digests_of(arrays: Sequence[NDArray[np.generic]]) -> tuple[str, ...]:
    """The SHA-256 of each large array's bytes; empty for a small one."""
    with ThreadPoolExecutor(max(1, min(default_threads(), len(arrays)))) as pool:
        return tuple(pool.map(_digest, arrays))  # hashing is outside of the interpreter's lock


def _digest(array: NDArray[np.generic]) -> str:
    return hashlib.sha256(bytes_of(array).data).hexdigest() if array.nbytes >= LARGE else ""


def bytes_of(array: NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def shared_bytes(digest: str, nbytes: int) -> Bytes | None:
    """Memory with these contents that some program of the process has, or None."""
    with _lock:
        found = _known.get(digest) if digest else None
    return found if found is not None and found.nbytes == nbytes else None


def share(digest: str, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The array, or one of the same contents that was shared before. From now on others may get it.

    What is no memory of its own, but a part of a larger array, is not shared: it would keep all of that.
    """
    mine = array
    while isinstance(mine.base, np.ndarray):
        mine = cast("NDArray[np.generic]", mine.base)
    if not digest or mine.dtype != np.uint8 or mine.nbytes != array.nbytes:
        return array
    mine = cast(Bytes, mine)
    with _lock:
        found = _known.setdefault(digest, mine)
    return array if found is mine else found.view(array.dtype).reshape(array.shape)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
