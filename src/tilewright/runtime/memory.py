"""Memory of a program: anonymous, 64-byte aligned, in huge pages where the system has them, and touched at load.

Regions belong to Python objects: an array that views a region keeps it mapped. They are private mappings, so a forked
child writes to its own copy.
"""

import contextlib
import ctypes
import mmap
import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.support.errors import UserError

_addressof = ctypes.addressof
_from_buffer = ctypes.c_char.from_buffer

ALIGN = 64
HUGE_PAGE = 2 << 20
_SHELF = 64 << 20
_SMALL_ARRAY = 4096  # bytes

ArrayMaker: TypeAlias = Callable[[tuple[int, ...], np.dtype[np.generic]], NDArray[np.generic]]


def address_of(array: NDArray[np.generic]) -> int:
    """Where the first element of a contiguous array is."""
    try:
        # three times quicker than asking numpy
        return _addressof(_from_buffer(array))  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, BufferError):  # read-only, empty, or of a dtype that buffers do not know
        return array.ctypes.data


def round_up(n: int, align: int) -> int:
    return -(-n // align) * align


class MemoryRegion:
    """Memory of at least `nbytes` bytes: `array` views it, `address` is where it starts.

    It is zero; unless `zeroed` is false it has been touched too, so that page faults happen now and not in the first
    run. Leave that out where everything is written at once anyway.
    """

    __slots__ = ("address", "array")

    def __init__(self, nbytes: int, *, zeroed: bool = True) -> None:
        size = round_up(max(nbytes, 1), mmap.PAGESIZE)
        huge = size >= HUGE_PAGE
        try:
            mapping = mmap.mmap(
                -1, size + HUGE_PAGE if huge else size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, OverflowError, ValueError) as error:
            raise UserError(
                f"the program needs {nbytes} bytes of memory, which the system does not give: {error}",
                hint="free memory or raise the limit of the process",
            ) from error
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages: plain ones then
                mapping.madvise(mmap.MADV_HUGEPAGE)
        _regions.add(mapping)
        whole = np.frombuffer(mapping, np.uint8)
        start = -address_of(whole) % HUGE_PAGE if huge else 0
        self.array = whole[start : start + size]
        self.address = address_of(self.array)
        if zeroed:
            ctypes.memset(self.address, 0, size)


_regions: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()


def _is_in_region(array: NDArray[np.generic]) -> bool:
    owner: object = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.obj if isinstance(owner, memoryview) else cast(object, owner.base)
    return isinstance(owner, mmap.mmap) and owner in _regions


class Constants:
    """The constants of a program: `arrays` are read-only views, `addresses` where they are.

    Those that are in a region already stay there; the others are copied, one after the other, into one. `in_place`:
    only those that are not contiguous and aligned are copied (they are in a mapped file, say).
    """

    __slots__ = ("addresses", "arrays")

    def __init__(self, constants: Sequence[NDArray[np.generic]], *, in_place: bool = False) -> None:
        kept = [(in_place or _is_in_region(c)) and _is_ready(c) for c in constants]
        offsets, total = [0] * len(constants), 0
        for i, c in enumerate(constants):
            if not kept[i]:
                offsets[i] = total
                total += round_up(c.nbytes, ALIGN)
        region = MemoryRegion(total, zeroed=False) if total else None
        self.arrays: list[NDArray[np.generic]] = []
        for i, c in enumerate(constants):
            view = c.view()
            if region is not None and not kept[i]:
                memory = region.array[offsets[i] : offsets[i] + c.nbytes]
                view = memory.view(c.dtype).reshape(c.shape)
                view[...] = c
            view.flags.writeable = False
            self.arrays.append(view)
        self.addresses = [address_of(a) for a in self.arrays]


def _is_ready(array: NDArray[np.generic]) -> bool:
    return array.flags.c_contiguous and (address_of(array) % ALIGN == 0 or array.size == 0)


class Shelf:
    """Arrays side by side in large regions, where `Constants` leaves them. They are freed when none of them is left."""

    def __init__(self) -> None:
        self._region: NDArray[np.uint8] = np.empty(0, np.uint8)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        nbytes = dtype.itemsize * prod(shape)
        room = round_up(nbytes, ALIGN)
        if room > self._region.size:
            self._region = MemoryRegion(max(room, _SHELF), zeroed=False).array
        memory, self._region = self._region[:nbytes], self._region[room:]
        return memory.view(dtype).reshape(shape)


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Like `numpy.empty`, but large arrays start on a cache line, so that vector stores do not straddle two."""
    return maker_of(shape, dtype)(shape, dtype)


def maker_of(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> ArrayMaker:
    """What makes arrays of this type; for small ones, three more Python calls would cost more than they save."""
    return np.empty if dtype.itemsize * prod(shape) < _SMALL_ARRAY else _on_a_line


def _on_a_line(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    nbytes = dtype.itemsize * prod(shape)
    memory = np.empty(nbytes + ALIGN, np.uint8)
    start = -address_of(memory) % ALIGN
    return memory[start : start + nbytes].view(dtype).reshape(shape)
