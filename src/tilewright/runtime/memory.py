"""Memory of a program: anonymous, 64-byte aligned, in huge pages where the system has them, and touched at load.

Regions belong to Python objects: an array that views a region keeps it mapped. A piece of a region is freed by itself,
so that constants of several programs can be shared one by one (`runtime.weights`). Regions are private mappings, so a
forked child writes to its own copy.
"""

import contextlib
import ctypes
import mmap
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.weights import LARGE, share, shared_bytes
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

    __slots__ = ("_mapping", "_start", "address", "array")

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
        self._mapping, self._start = mapping, start
        self.array = whole[start : start + size]
        self.address = address_of(self.array)
        if zeroed:
            ctypes.memset(self.address, 0, size)

    def piece(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """A part of the region that is freed by itself: its pages, when nothing views the piece any more. The rest of
        the region must not be part of another piece, and `nbytes` not be 0.
        """
        made = np.frombuffer(self._mapping, np.uint8, nbytes, self._start + offset)
        start = round_up(self._start + offset, mmap.PAGESIZE)
        end = (self._start + offset + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            # also keeps the mapping, so that it outlives its pieces
            weakref.finalize(made, _free_pages, self._mapping, start, end - start).atexit = False
        return made

    def lent(self, nbytes: int, give_back: Callable[["MemoryRegion"], None]) -> NDArray[np.uint8]:
        """The beginning of the region, which is given back when nothing views it any more."""
        made = np.frombuffer(self._mapping, np.uint8, nbytes, self._start)
        weakref.finalize(made, give_back, self).atexit = False
        return made


def _free_pages(mapping: mmap.mmap, start: int, size: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        mapping.madvise(mmap.MADV_DONTNEED, start, size)


_regions: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()


def _is_in_region(array: NDArray[np.generic]) -> bool:
    owner: object = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.obj if isinstance(owner, memoryview) else cast(object, owner.base)
    return isinstance(owner, mmap.mmap) and owner in _regions


class Constants:
    """The constants of a program: `arrays` are read-only views, `addresses` where they are.

    Those that are in a region already stay there; the others are copied, one after the other, into one. Those that have
    a digest are shared with other programs of the process. `in_place`: only those that are not contiguous and aligned
    are copied (they are in a mapped file, say), and nothing is shared.
    """

    __slots__ = ("addresses", "arrays")

    def __init__(
        self,
        constants: Sequence[NDArray[np.generic]],
        digests: Sequence[str] = (),
        *,
        in_place: bool = False,
    ) -> None:
        keys = digests if digests and not in_place else [""] * len(constants)
        found = [shared_bytes(d, c.nbytes) for d, c in zip(keys, constants, strict=True)]
        self.arrays = [
            c.view() if f is None else f.view(c.dtype).reshape(c.shape)
            for c, f in zip(constants, found, strict=True)
        ]
        moved = [
            i
            for i, c in enumerate(constants)
            if found[i] is None and not ((in_place or _is_in_region(c)) and _is_ready(c))
        ]
        for i, memory in zip(moved, memory_for([constants[i].nbytes for i in moved]), strict=True):
            self.arrays[i] = memory.view(constants[i].dtype).reshape(constants[i].shape)
            self.arrays[i][...] = constants[i]
        for i, key in enumerate(keys):
            self.arrays[i] = share(key, self.arrays[i])
            self.arrays[i].flags.writeable = False
        self.addresses = [address_of(a) for a in self.arrays]


def memory_for(sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Memory of these sizes in regions, aligned: what is large can be freed by itself, what is small goes together."""
    out: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)] * len(sizes)
    for is_large in (False, True):
        group = [i for i, n in enumerate(sizes) if n and (n >= LARGE) is is_large]
        if not group:
            continue
        align = mmap.PAGESIZE if is_large else ALIGN  # so that all of a piece can be freed
        offsets = [0, *accumulate(round_up(sizes[i], align) for i in group)]
        region = MemoryRegion(offsets.pop(), zeroed=False)
        for i, at in zip(group, offsets, strict=True):
            out[i] = region.piece(at, sizes[i]) if is_large else region.array[at : at + sizes[i]]
    return out


def _is_ready(array: NDArray[np.generic]) -> bool:
    return array.flags.c_contiguous and (address_of(array) % ALIGN == 0 or array.size == 0)


class Shelf:
    """Arrays side by side in large regions, where `Constants` leaves them. A large one is freed when nobody has it any
    more, the others when none of them is left.
    """

    def __init__(self) -> None:
        self._region: MemoryRegion | None = None
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        nbytes = dtype.itemsize * prod(shape)
        if self._region is None or self._used + nbytes > self._region.array.size:
            self._region, self._used = MemoryRegion(max(nbytes, _SHELF), zeroed=False), 0
        at, region = self._used, self._region
        self._used += round_up(nbytes, ALIGN)
        memory = region.piece(at, nbytes) if nbytes >= LARGE else region.array[at : at + nbytes]
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
