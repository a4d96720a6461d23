"""Opening files that somebody else names: regular ones only, and without ever waiting.

Opening a pipe waits for a writer, and a device may have no end. So what is no regular file is refused, and not read.
"""

import errno
import os
import stat

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> tuple[int, os.stat_result]:
    """A descriptor to read a regular file with, and what is known of the file; OSError if it cannot be read, or is
    something else.
    """
    # Without O_NONBLOCK, opening a pipe waits for a writer; for regular files it makes no difference.
    flags |= os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags)
    except ValueError as e:  # a zero byte in the path
        raise OSError(errno.EINVAL, str(e), os.fspath(path)) from None
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        os.close(descriptor)
        raise _irregular(path, info)
    return descriptor, info


def _irregular(path: str | os.PathLike[str], info: os.stat_result) -> OSError:
    kind = next((name for is_kind, name in _KINDS if is_kind(info.st_mode)), "something else")
    return OSError(errno.EINVAL, f"it is not a regular file, but {kind}", os.fspath(path))
