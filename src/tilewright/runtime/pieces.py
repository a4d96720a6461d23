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


@dataclass(frozen=True, slots=True, eq=False)
class HeldBytes:
    """Bytes in memory, and the checksums that their pieces should have."""

    data: memoryview
    expected: Sequence[int]

    def is_right(self, n: int) -> bool:
        """Is the n-th piece?"""
        return zlib.crc32(self.data[n * PIECE : (n + 1) * PIECE]) == self.expected[n]


@dataclass(frozen=True, slots=True, eq=False)
class FileBytes:
    """Bytes of a file: how it is opened, where they are, where they go, and the checksums that pieces should have."""

    opened: Callable[[], AbstractContextManager[int]]
    offset: int
    data: memoryview
    expected: Sequence[int]

    def is_right(self, n: int) -> bool:
        """Read the n-th piece. Is it all there, and right?"""
        piece = self.data[n * PIECE : (n + 1) * PIECE]
        done = 0
        with self.opened() as file:
            while done < len(piece):
                got = os.preadv(file, [piece[done:]], self.offset + n * PIECE + done)
                if got == 0:
                    return False
                done += got
        return zlib.crc32(piece) == self.expected[n]


def are_whole(parts: Sequence[HeldBytes | FileBytes]) -> list[bool]:
    """Read and check all of them, together. Of each: are all bytes there, and do they have these checksums?"""
    whole = [len(p.expected) == -(-len(p.data) // PIECE) for p in parts]
    jobs = _jobs([len(p.data) if is_whole else 0 for p, is_whole in zip(parts, whole, strict=True)])

    def run(job: Sequence[tuple[int, int]]) -> list[int]:
        return [i for i, n in job if not parts[i].is_right(n)]

    threads = min(default_threads(), len(jobs), _MAX_THREADS)
    if threads < 2:
        bad = [i for job in jobs for i in run(job)]
    else:
        with ThreadPoolExecutor(threads) as pool:
            bad = [i for found in pool.map(run, jobs) for i in found]
    return [is_whole and i not in bad for i, is_whole in enumerate(whole)]


def _jobs(sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
    """(part, piece) in their order; several small ones are one job, which is done sooner than as many jobs."""
    jobs: list[list[tuple[int, int]]] = []
    filled = PIECE  # of the last job
    for i, size in enumerate(sizes):
        for n, start in enumerate(range(0, size, PIECE)):
            length = min(PIECE, size - start)
            if filled + length > PIECE:
                jobs.append([])
                filled = 0
            jobs[-1].append((i, n))
            filled += length
    return jobs
