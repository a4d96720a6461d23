"""What was measured: one row per measurement, in one file of the user's.

    $TILEWRIGHT_DB, or tilewright/tuning.db in $XDG_DATA_HOME or ~/.local/share; TILEWRIGHT_DB=off turns it off

A row belongs to a *task* (the digest of an unscheduled Func up to renaming), a target and a state of the scheduling
rules. Its purpose is `trial` (a candidate), `default` (what compilation does by itself) or `choice` (which of them
compilation takes from now on: the outcome of a comparison). Rows are only ever appended, each in a transaction of its
own, so that a process may be killed at any time and several may write at once.

The database never makes anything fail. A file that is damaged is moved aside with one warning; where nothing can be
read or written, nothing was measured.
"""

import contextlib
import datetime
import hashlib
import json
import logging
import os
import sqlite3
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.support.user_folders import user_folder
from tilewright.version import __version__

if TYPE_CHECKING:  # a program that was compiled before is found without what spaces are made of
    from tilewright.families.space import KnobValues

_log = logging.getLogger("tilewright")

DEFAULT_RULE = "default"  # the choice is to stay with what compilation does by itself
OK = "ok"

_VERSION = 1  # of the table
_BUSY_MS = 10_000
# A candidate that was found but not compared in turns with the default (the process was killed) must be this much
# better: more than measurements in passing differ.
_CLEARLY = 0.9

_TABLE = """
CREATE TABLE IF NOT EXISTS measurements (
    id INTEGER PRIMARY KEY,
    task TEXT NOT NULL, target TEXT NOT NULL, rules TEXT NOT NULL,
    purpose TEXT NOT NULL, rule TEXT NOT NULL, decisions TEXT NOT NULL, trace TEXT NOT NULL,
    seconds REAL, status TEXT NOT NULL, message TEXT NOT NULL,
    threads INTEGER NOT NULL, date TEXT NOT NULL, versions TEXT NOT NULL
)
"""
_INDEX = "CREATE INDEX IF NOT EXISTS measurements_key ON measurements (task, target, rules, purpose)"
_INSERT = """
INSERT INTO measurements
    (task, target, rules, purpose, rule, decisions, trace, seconds, status, message, threads, date, versions)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


@dataclass(frozen=True, slots=True)
class RecordScope:
    """What rows must have in common with a compilation to count in it: digests of the target and of the rules."""

    target: str
    rules: str


@dataclass(frozen=True, slots=True)
class Measurement:
    task: str
    purpose: str  # trial, default or choice
    rule: str
    decisions: "KnobValues"
    status: str = OK
    seconds: float | None = None
    threads: int = 1
    trace: str = ""
    message: str = ""
    versions: str = f"tilewright {__version__}"


@dataclass(frozen=True, slots=True)
class Choice:
    """What a task is scheduled by."""

    rule: str
    decisions: "KnobValues"


def database_path() -> Path | None:
    """Where the environment wants it; None if nowhere."""
    setting = os.environ.get("TILEWRIGHT_DB", "")
    if setting.lower() == "off":
        return None
    if setting:
        return Path(setting)
    folder = user_folder("XDG_DATA_HOME", ".local/share")
    return None if folder is None else folder / "tilewright" / "tuning.db"


class Database:
    """`path` None: there is none. Use one object in one thread."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._reported = False

    @property
    def exists(self) -> bool:
        return self._path is not None and self._path.exists()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def record(self, scope: RecordScope, m: Measurement) -> None:
        """Append one row; it is safe when this returns."""
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        row = (
            *(m.task, scope.target, scope.rules, m.purpose, m.rule, _text(m.decisions), m.trace),
            *(m.seconds, m.status, m.message, m.threads, date, m.versions),
        )
        self._do(_INSERT, row, make=True)

    def measurements(self, scope: RecordScope, task: str) -> list[Measurement]:
        """All rows of a task, oldest first."""
        rows = self._do(
            "SELECT purpose, rule, decisions, status, seconds, threads, trace, message, versions FROM measurements"
            " WHERE task = ? AND target = ? AND rules = ? ORDER BY id",
            (task, scope.target, scope.rules),
        )
        return [Measurement(task, p, r, json.loads(d), *rest) for p, r, d, *rest in rows]

    def choice(self, scope: RecordScope, task: str) -> Choice | None:
        """How to schedule the Func; None: as compilation does by itself."""
        key = (task, scope.target, scope.rules)
        decided = self._do(
            "SELECT rule, decisions FROM measurements"
            " WHERE task = ? AND target = ? AND rules = ? AND purpose = 'choice' ORDER BY id DESC LIMIT 1",
            key,
        )
        if not decided:  # nobody has compared them; of the same threads at least
            decided = self._do(
                "SELECT rule, decisions FROM measurements AS m"
                " WHERE task = ? AND target = ? AND rules = ? AND purpose = 'trial' AND status = 'ok'"
                f" AND seconds < {_CLEARLY} * (SELECT MIN(seconds) FROM measurements"
                " WHERE task = ? AND target = ? AND rules = ? AND purpose = 'default' AND status = 'ok'"
                " AND threads = m.threads) ORDER BY seconds LIMIT 1",
                (*key, *key),
            )
        if not decided or decided[0][0] == DEFAULT_RULE:
            return None
        rule, decisions = decided[0]
        return Choice(rule, json.loads(decisions))

    def choices(self, scope: RecordScope, tasks: Iterable[str]) -> dict[str, Choice]:
        """Of those tasks that have one."""
        if not self.exists:
            return {}
        found = {t: self.choice(scope, t) for t in set(tasks)}
        return {t: c for t, c in found.items() if c is not None}

    # -------------------------------------------------------------------------------------------------------- sqlite

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
        why = _make_file(self._path)
        if why:
            self._give_up(why)
            return None
        connection = sqlite3.connect(self._path, timeout=_BUSY_MS / 1000, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(
                "PRAGMA synchronous = NORMAL"
            )  # a kill loses nothing; a power cut the last rows
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                connection.close()
                self._give_up(f"it was written by another version of Tilewright (table {version})")
                return None
            connection.execute(_TABLE)
            connection.execute(_INDEX)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

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


def choices_digest(choices: Mapping[str, Choice]) -> str:
    """Of choices by task; empty if there is none."""
    lines = [
        f"{task} {c.rule} {_text(c.decisions)}"
        for task, c in sorted(choices.items(), key=lambda item: item[0])
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""


def _text(decisions: "KnobValues") -> str:
    return json.dumps(dict(decisions), sort_keys=True)


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


def default_database() -> Database:
    """The database that the environment asks for."""
    return Database(database_path())
