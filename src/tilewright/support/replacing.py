"""Files that are replaced as a whole, or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def replacing(target: Path) -> Generator[int]:
    """A file descriptor whose contents become `target` if all goes well, in one step."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:200]}.", suffix=".partial", dir=target.parent)
    try:
        try:
            yield handle
            os.fchmod(handle, 0o666 & ~_umask())
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the new name survives a power cut
    finally:
        os.close(folder)


def _umask() -> int:
    """The process's umask, which can only be read by setting it: Linux shows it without."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o077


def write_all(file: int, data: bytes | memoryview) -> None:
    """To a file descriptor, which may take less at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
