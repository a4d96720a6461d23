"""Checksums of the weights, piece by piece, so that several threads can read and check them at once.

Weights are most of a file, and loading it should take little longer than reading it. CRC-32 runs at several times the
speed of SHA-256 and finds damage as well; against malice neither would help. Reading, page faults and checksums all
happen outside of the interpreter's lock.
"""

import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Bytes of a file: how it is opened, where they are, where they go, and the checksums of their pieces."""

    opened: Callable[[], AbstractContextManager[int]]
    offset: int
    into: memoryview
    expected: Sequence[int]

    def read(self, n: int) -> bool:
        """Read the n-th piece. Is it all there, and right?"""
        piece = self.into[n * PIECE : (n + 1) * PIECE]
        done = 0
        with self.opened() as file:
            while done < len(piece):
                got = os.preadv(file, [piece[done:]], self.offset + n * PIECE + done)
                if got == 0:
                    return False
                done += got
        return zlib.crc32(piece) == self.expected[n]


def read_whole(stretches: Sequence[Stretch]) -> list[bool]:
    """Read all of them, together. Of each: are all bytes there, and do they have these checksums?"""
    whole = [len(s.expected) == -(-len(s.into) // PIECE) for s in stretches]
    jobs = [(i, n) for i, s in enumerate(stretches) if whole[i] for n in range(len(s.expected))]

    def read(job: int) -> bool:
        i, n = jobs[job]
        return stretches[i].read(n)

    for (i, _), is_right in zip(jobs, _for_each(read, len(jobs)), strict=True):
        whole[i] &= is_right
    return whole


def _for_each(work: Callable[[int], bool], count: int) -> Iterable[bool]:
    threads = min(default_threads(), count, _MAX_THREADS)
    if threads < 2:
        return map(work, range(count))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(count)))
