"""Memory of results that is used again once nobody has it any more.

The system gives fresh memory page by page, when it is first written to: that takes longer than to write it. A caller
that hands the results of one run to the next, as with a cache that grows, lets go of them one run later.
"""

from math import prod

import numpy as np

from tilewright.runtime.memory import MemoryRegion, empty_aligned
from tilewright.support.arrays import OpaqueArray

_LEAST = (
    1 << 18
)  # bytes: what is smaller the allocator of the process has at hand. Counted: its own such limit


class RecycledMemory:
    """Arrays whose memory comes back. At most as much is kept as was in use at a time."""

    def __init__(self) -> None:
        self._free: dict[int, list[MemoryRegion]] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> OpaqueArray:
        """Like `empty_aligned`."""
        nbytes = dtype.itemsize * prod(shape)
        if nbytes < _LEAST:
            return empty_aligned(shape, dtype)
        free = self._free.setdefault(nbytes, [])
        try:
            region = free.pop()
        except IndexError:
            region = MemoryRegion(nbytes, zeroed=False)
        return region.lent(nbytes, free.append).view(dtype).reshape(shape)

    def clear(self) -> None:
        """Nothing that comes back from now on is kept."""
        self._free = {}
