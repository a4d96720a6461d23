"""The files of the disk cache: how they are published, and which go when there are too many.

    KEY.twc       bytes under a key
    KEY.tw        a program, which names the large constants that it needs
    SHA256.tww    a large constant (a *blob*), which any number of programs have in common

Blobs are there before the program that names them, and go after the last one. So that nobody takes a blob away between
the two steps of somebody else, whoever publishes a program holds a shared lock on the folder, and whoever removes blobs
an exclusive one; a lock goes with its process. Where a file system has no locks nothing is locked: a program may then
lose a constant, which is a miss.
"""

import contextlib
import errno
import fcntl
import os
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import NamedTuple

from tilewright.runtime.file import large_constants

ENTRY, PROGRAM, BLOB = ".twc", ".tw", ".tww"
STAGED = ".tilewright-staged-"
_STALE_SECONDS = 3600.0  # a staged file this old was left by a process that died
_KEEP = 0.8  # of the capacity after a clean-up, so that not every put cleans up
_PATIENCE_SECONDS = 2.0  # of who publishes; removing blobs takes a fraction of that
_LOOK_SECONDS = 0.01


def publish(folder: Path, name: str, chunks: Iterable[bytes | memoryview], *, sync: bool) -> None:
    """Write a file that appears in one step, or not at all."""
    handle, staged = tempfile.mkstemp(prefix=STAGED, dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(staged, folder / name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        raise


@contextlib.contextmanager
def publishing(folder: Path) -> Generator[None]:
    """Blobs stay meanwhile. BlockingIOError if somebody is busy removing some, for too long."""
    end = time.monotonic() + _PATIENCE_SECONDS
    with _opened(folder) as handle:
        while not _is_locked(handle, fcntl.LOCK_SH):
            if time.monotonic() > end:
                raise BlockingIOError(errno.EAGAIN, "another process is cleaning up")
            time.sleep(_LOOK_SECONDS)
        yield


@contextlib.contextmanager
def _opened(folder: Path) -> Generator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)  # and with it the lock


def _is_locked(handle: int, kind: int) -> bool:
    """Take a lock, if it is free. True as well where there are none."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class _File(NamedTuple):
    used: float
    size: int
    path: str


def clean_up(folder: Path, capacity: int) -> int:
    """Remove leftovers, and if over capacity the entries used longest ago, with blobs that no program names any more.
    Returns the bytes that remain.
    """
    with _opened(folder) as handle:
        may_remove_blobs = _is_locked(handle, fcntl.LOCK_EX)
        entries, blobs = _scan(folder)
        programs = [e for e in entries if e.path.endswith(PROGRAM)] if blobs else []
        named = {p.path: large_constants(p.path) & blobs.keys() for p in programs}
        users = Counter(digest for digests in named.values() for digest in digests)
        total = sum(e.size for e in entries) + sum(b.size for b in blobs.values())

        def remove_unused(digests: Iterable[str]) -> int:
            unused = [blobs[d] for d in digests if not users[d]]
            if may_remove_blobs:
                _remove(unused)
            return sum(b.size for b in unused)  # if not now, then the next time

        total -= remove_unused(blobs)
        if total <= capacity:
            return total
        for entry in sorted(entries):
            if total <= capacity * _KEEP:
                break
            _remove([entry])
            total -= entry.size
            digests = named.get(entry.path, set())
            users.subtract(digests)
            total -= remove_unused(digests)
        return total


def remove_entries(folder: Path, before: float) -> tuple[int, int]:
    """Remove entries and programs that were last used before this time, and blobs that no program names any more. How
    many files went, and their bytes. Blobs stay for as long as somebody publishes a program.
    """
    with _opened(folder) as handle:
        may_remove_blobs = _waited_for(handle)
        entries, blobs = _scan(folder)
        gone = [e for e in entries if e.used <= before]
        _remove(gone)
        if may_remove_blobs:
            kept = [e.path for e in entries if e.used > before and e.path.endswith(PROGRAM)]
            named = {digest for path in kept for digest in large_constants(path)}
            unnamed = [b for digest, b in blobs.items() if digest not in named]
            _remove(unnamed)
            gone += unnamed
        return len(gone), sum(f.size for f in gone)


def _waited_for(handle: int) -> bool:
    """Take the exclusive lock, and be patient about it."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while not _is_locked(handle, fcntl.LOCK_EX):
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _scan(folder: Path) -> tuple[list[_File], dict[str, _File]]:
    """The entries, and the blobs by their digests. What a dead process has staged goes."""
    entries: list[_File] = []
    blobs: dict[str, _File] = {}
    now = time.time()
    with os.scandir(folder) as files:
        for file in files:
            with contextlib.suppress(OSError):  # another process may have removed it
                info = file.stat(follow_symlinks=False)
                found = _File(info.st_mtime, info.st_size, file.path)
                if file.name.endswith((ENTRY, PROGRAM)):
                    entries.append(found)
                elif file.name.endswith(BLOB):
                    blobs[file.name.removesuffix(BLOB)] = found
                elif file.name.startswith(STAGED) and now - info.st_mtime > _STALE_SECONDS:
                    os.unlink(file.path)
    return entries, blobs


def _remove(files: Iterable[_File]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(file.path)
