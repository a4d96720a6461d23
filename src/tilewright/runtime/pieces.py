"""Checksums of the weights, piece by piece, so that several threads can read and check them at once.

Weights are most of a file, and loading it should take little longer than reading it. CRC-32 runs at several times the
speed of SHA-256 and finds damage as well; against malice neither would help. Reading, page faults and checksums all
happen outside of the interpreter's lock.
"""

import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tilewright.runtime.machine import default_threads

PIECE = 4 << 20  # large enough to keep the table short, small enough to be checked while still in the cache
_MAX_THREADS = 8  # memory is busy with fewer


def checksums(parts: Iterable[bytes | memoryview]) -> list[int]:
    """One for each PIECE of the parts' bytes, one after the other; the last piece may be shorter."""
    out: list[int] = []
    filled = PIECE  # of the last piece
    for part in parts:
        rest = memoryview(part)
        while rest:
            if filled == PIECE:
                out.append(0)
                filled = 0
            taken = rest[: PIECE - filled]
            out[-1] = zlib.crc32(taken, out[-1])
            filled += len(taken)
            rest = rest[len(taken) :]
    return out


def are_whole(data: memoryview, expected: Sequence[int]) -> bool:
    """Do the pieces of `data` have these checksums?"""

    def check(n: int) -> bool:
        return zlib.crc32(data[n * PIECE : (n + 1) * PIECE]) == expected[n]

    return len(expected) == -(-len(data) // PIECE) and all(_for_each(check, len(expected)))


def read_whole(file: int, offset: int, into: memoryview, expected: Sequence[int]) -> bool:
    """Fill `into` from the file. Are all bytes there, and do they have these checksums?"""

    def read(n: int) -> bool:
        piece = into[n * PIECE : (n + 1) * PIECE]
        done = 0
        while done < len(piece):
            got = os.preadv(file, [piece[done:]], offset + n * PIECE + done)
            if got == 0:
                return False
            done += got
        return zlib.crc32(piece) == expected[n]

    return len(expected) == -(-len(into) // PIECE) and all(_for_each(read, len(expected)))


def _for_each(work: Callable[[int], bool], count: int) -> Iterable[bool]:
    threads = min(default_threads(), count, _MAX_THREADS)
    if threads < 2:
        return map(work, range(count))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(count)))
