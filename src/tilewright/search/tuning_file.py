"""The file of the tuning database: opened when it is first needed, by its owner alone, and never a reason to fail.

A file that is damaged is moved aside with one warning; where nothing can be read or written, nothing was measured. Who
names a file is told instead: `check` raises what would otherwise be a warning.
"""

import contextlib
import datetime
import logging
import os
import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.search.tuning_tables import ForeignFileError, prepare_tables, tables_version
from tilewright.support.errors import UserError

_log = logging.getLogger("tilewright")

_BUSY_S = 10.0  # seconds to wait for another process that writes; given


class TuningFile:
    """`path` None: there is none. Use one object in one thread."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._reported = False

    @property
    def path(self) -> Path | None:
        """None if it is not used."""
        return self._path

    @property
    def exists(self) -> bool:
        return self._path is not None and self._path.exists()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def check(self) -> None:
        """Open the file, and make it if it is not there. UserError if it cannot be used; it is left as it is."""
        if self._path is None or self._connection is not None:
            return
        try:
            with contextlib.closing(connect_to(self._path)) as connection:
                check_pages(connection)
        except sqlite3.Error as e:
            raise not_usable(self._path, e) from e

    def _do(self, sql: str, values: Sequence[object], *, make: bool = False) -> list[Any]:
        """Run one statement; no rows where that is not possible. What is damaged is moved aside, and one more try
        made.
        """
        for _ in range(2):
            try:
                connection = self._open(make)
                return [] if connection is None else connection.execute(sql, values).fetchall()
            except sqlite3.OperationalError as e:  # locked for too long, read-only, disk full
                self._give_up(str(e))
                return []
            except sqlite3.DatabaseError as e:
                self._move_aside(str(e))
        return []

    def _open(self, make: bool) -> sqlite3.Connection | None:
        if self._connection is not None or self._path is None:
            return self._connection
        if not make and not self._path.exists():
            return None
        try:
            self._connection = connect_to(self._path)
        except UserError as e:
            self._give_up(e.message)
        return self._connection

    def _give_up(self, why: str) -> None:
        self._tell(f"the tuning database {self._path} is not used: {why}")
        self.close()
        self._path = None

    def _move_aside(self, why: str) -> None:
        self.close()
        assert self._path is not None
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
        aside = self._path.with_name(f"{self._path.name}.damaged-{stamp}-{os.getpid()}")
        self._tell(f"the tuning database {self._path} is damaged ({why}); it was moved to {aside.name}")
        for ending in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.replace(f"{self._path}{ending}", f"{aside}{ending}")

    def _tell(self, text: str) -> None:
        if not self._reported:
            self._reported = True
            _log.warning("%s", text)


def connect_to(path: Path) -> sqlite3.Connection:
    """A connection to the file, with tables of this version; each statement is a transaction of its own. UserError if
    the file must not be used, sqlite3.Error if it cannot be.
    """
    why = _make_file(path)
    if why:
        raise UserError(why, where=str(path))
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    try:
        tables_version(connection)  # nothing is changed in a file of somebody else
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a kill loses nothing; a power cut the last rows
        prepare_tables(connection)
    except ForeignFileError as e:
        connection.close()
        raise UserError(str(e), where=str(path), hint="name another file") from e
    except BaseException:
        connection.close()
        raise
    return connection


def check_pages(connection: sqlite3.Connection) -> None:
    """sqlite3.DatabaseError if a page of the file is damaged, also one that was not read yet."""
    found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(found)


def not_usable(path: Path, e: sqlite3.Error) -> UserError:
    """What to tell of a file that SQLite refuses. Most others than OperationalError say that it is damaged."""
    is_damaged = not isinstance(e, sqlite3.OperationalError)
    return UserError(
        f"the file is {'damaged, or no database' if is_damaged else 'not usable'}: {e}",
        where=str(path),
        hint="name another file, or move this one away" if is_damaged else None,
    )


def _make_file(path: Path) -> str:
    """Make the file, and its folder, for this user alone. Returns why it cannot be used; empty if it can."""
    try:
        if not path.parent.exists():
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            info = os.fstat(handle)
        finally:
            os.close(handle)
    except OSError as e:
        return e.strerror or str(e)
    if info.st_uid != os.geteuid():
        return "it belongs to somebody else"
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to it (chmod 600 {path})"
    return ""
