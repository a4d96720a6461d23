"""The disk cache: bytes by key, for object code and notes, and whole programs.

It never fails and never lies: whatever goes wrong is a miss. An entry is one file that carries the SHA-256 of its
contents; it is staged beside its place, synced, and published by one rename, so processes may share the folder. What
is in it becomes native code, so a folder that others can write to is not used, nor an entry that is theirs.

A program is a `.tw` file, which has checksums of its own: whoever reads it finds the damage, and `discard`s it. Its
large constants are files beside it, named by their contents, so that programs have them in common (`cache_folder`).

The folder is `$TILEWRIGHT_CACHE`, or `tilewright` in `$XDG_CACHE_HOME` or `~/.cache`; `TILEWRIGHT_CACHE=off` turns
caching off. Past `TILEWRIGHT_CACHE_MIB` (2048) the entries that were used longest ago go first.
"""

import contextlib
import errno
import hashlib
import logging
import os
import stat
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from tilewright.runtime.cache_folder import BLOB, ENTRY, PROGRAM, clean_up, publish, publishing
from tilewright.support.errors import InternalError, UserError
from tilewright.support.regular_file import open_regular
from tilewright.support.user_folders import user_folder

_log = logging.getLogger(__name__)

_MAGIC = b"tilewright cache 1\n"
_HEADER = len(_MAGIC) + hashlib.sha256().digest_size
_DEFAULT_MIB = 2048


class Cache:
    """`folder` None: caching is off. Safe to use from several threads and processes at once."""

    def __init__(self, folder: Path | None, capacity: int = _DEFAULT_MIB << 20) -> None:
        self._folder = folder
        self._capacity = capacity
        self._size: int | None = None  # an estimate; None until the first put looks
        self._reported: set[str] = set()

    @property
    def is_on(self) -> bool:
        return self._folder is not None

    @property
    def folder(self) -> Path | None:
        """Where it is, whether or not it exists."""
        return self._folder

    @property
    def capacity(self) -> int:
        return self._capacity

    def why_unused(self) -> str | None:
        """Why a folder that exists is not used; None if nothing speaks against it."""
        folder = self._folder
        return None if folder is None or not folder.exists() else _fault_of(folder, folder.stat())

    def get(self, key: str) -> bytes | None:
        """What was put under the key, or None."""
        folder = self._checked()
        if folder is None:
            return None
        path = folder / _file_name(key)
        try:
            descriptor, info = open_regular(path, os.O_NOFOLLOW)
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                data = file.read() if self._is_ours(path, info) else None
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell_once("read", f"cannot read the cache {folder}: {error.strerror}")
            return None
        if data is None:
            return None
        body = memoryview(data)[_HEADER:]
        if len(data) < _HEADER or data[:_HEADER] != _MAGIC + hashlib.sha256(body).digest():
            self._tell_once("damage", f"a damaged cache entry is ignored: {path}")
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now
        return bytes(body)

    def put(self, key: str, data: bytes, *, sync: bool = True) -> None:
        """Store, unless something is in the way. Without `sync` a power cut may damage the entry, which is a miss."""
        folder = self._checked(make=True)
        size = _HEADER + len(data)
        if folder is None or size > self._capacity:
            return
        try:
            publish(folder, _file_name(key), [_MAGIC + hashlib.sha256(data).digest(), data], sync=sync)
            self._account(folder, size)
        except OSError as error:
            self._tell_once("write", f"cannot write to the cache {folder}: {error.strerror}")

    def find_program(self, key: str) -> Path | None:
        """The file that was put under the key. It has not been looked at: its reader checks it."""
        folder = self._checked()
        if folder is None:
            return None
        path = folder / _file_name(key, PROGRAM)
        try:
            is_ours = self._is_ours(path, path.lstat())
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell_once("read", f"cannot read the cache {folder}: {error.strerror}")
            return None
        if not is_ours:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now
        return path

    def put_program(
        self,
        key: str,
        chunks: Iterable[bytes | memoryview],
        blobs: Mapping[str, memoryview] = MappingProxyType({}),
    ) -> None:
        """Store a `.tw` file, and first the large constants that it names, unless something is in the way."""
        folder = self._checked(make=True)
        if folder is None:
            return
        parts = list(chunks)
        size = sum(map(len, parts))
        if size + sum(map(len, blobs.values())) > self._capacity:
            return
        try:
            with publishing(folder):
                for digest, data in blobs.items():
                    name = _file_name(digest, BLOB)
                    if not self._is_there(folder / name, len(data)):
                        publish(folder, name, [data], sync=True)
                        size += len(data)
                publish(folder, _file_name(key, PROGRAM), parts, sync=True)
            self._account(folder, size)
        except OSError as error:
            self._tell_once("write", f"cannot write to the cache {folder}: {error.strerror}")
            with contextlib.suppress(OSError):
                self._size = clean_up(folder, self._capacity)  # blobs that were to be this program's

    def discard_program(self, key: str, why: str) -> None:
        """The file under the key is of no use."""
        folder = self._checked()
        if folder is not None:
            path = folder / _file_name(key, PROGRAM)
            self._tell_once("damage", f"a cached program is ignored: {path}: {why}")
            with contextlib.suppress(OSError):
                path.unlink()

    @contextlib.contextmanager
    def opened_blob(self, digest: str) -> Generator[int]:
        """A descriptor to read a large constant with. It has not been looked at. OSError if it is not there."""
        folder = self._checked()
        path = (folder or Path()) / _file_name(digest, BLOB)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, "the cache cannot be used", str(path))
        descriptor, info = open_regular(path, os.O_NOFOLLOW)
        try:
            if not self._is_ours(path, info):
                raise PermissionError(errno.EPERM, "a constant may be somebody else's", str(path))
            yield descriptor
        finally:
            os.close(descriptor)

    def discard_blob(self, digest: str) -> None:
        """A large constant is damaged: whoever makes a program with it has to write it again."""
        folder = self._checked()
        if folder is not None:
            path = folder / _file_name(digest, BLOB)
            self._tell_once("damage", f"a damaged constant in the cache is ignored: {path}")
            with contextlib.suppress(OSError):
                path.unlink()

    def _is_there(self, path: Path, size: int) -> bool:
        try:
            info = path.lstat()
        except OSError:
            return False
        return info.st_size == size and self._is_ours(path, info)

    def _account(self, folder: Path, added: int) -> None:
        if self._size is not None:
            self._size += added
        if self._size is None or self._size > self._capacity:
            self._size = clean_up(folder, self._capacity)

    def _checked(self, *, make: bool = False) -> Path | None:
        """The folder, if it exists and nobody else can write to it."""
        folder = self._folder
        if folder is None:
            return None
        try:
            if make and not folder.exists():
                folder.parent.mkdir(parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
            info = folder.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell_once("folder", f"the cache {folder} cannot be used: {error.strerror}")
            return None
        why = _fault_of(folder, info)
        if why is None:
            return folder
        self._tell_once("folder", f"the cache {folder} is not used: {why}")
        return None

    def _is_ours(self, path: Path, info: os.stat_result) -> bool:
        """Has nobody else had a hand in an entry? One that another user has put here is native code of theirs, even if
        the folder was closed to them since. The next entry of that name takes its place.
        """
        if not stat.S_ISREG(info.st_mode):
            why = "it is not a regular file"
        elif info.st_uid != os.geteuid():
            why = "it belongs to somebody else"
        elif info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            why = "others can write to it"
        else:
            return True
        self._tell_once("entry", f"an entry of the cache is ignored: {path}: {why}")
        return False

    def _tell_once(self, kind: str, text: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            _log.warning("%s", text)


NO_CACHE = Cache(None)


def _file_name(key: str, kind: str = ENTRY) -> str:
    if not 8 <= len(key) <= 128 or not set(key) <= set("0123456789abcdef"):
        raise InternalError(f"{key!r} is not a hexadecimal cache key")
    return key + kind


def _fault_of(folder: Path, info: os.stat_result) -> str | None:
    """What is in the folder becomes native code: why it cannot be trusted, or None."""
    if not stat.S_ISDIR(info.st_mode):
        return "it is not a folder"
    if info.st_uid != os.geteuid():
        return "it belongs to somebody else"
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to it (chmod 700 {folder})"
    return None


def default_cache() -> Cache:
    """The cache that the environment asks for."""
    setting = os.environ.get("TILEWRIGHT_CACHE", "")
    if setting.lower() == "off":
        return Cache(None)
    if setting:
        folder = Path(setting)
    else:
        caches = user_folder("XDG_CACHE_HOME", ".cache")
        if caches is None:
            return Cache(None)
        folder = caches / "tilewright"
    return Cache(folder, _capacity())


def _capacity() -> int:
    text = os.environ.get("TILEWRIGHT_CACHE_MIB", str(_DEFAULT_MIB))
    if not text.isdecimal():
        raise UserError(
            f"TILEWRIGHT_CACHE_MIB = {text!r} is not a whole number of MiB",
            hint="use TILEWRIGHT_CACHE=off to turn the cache off",
        )
    return int(text) << 20
