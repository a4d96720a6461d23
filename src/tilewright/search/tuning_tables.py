"""The tables of the tuning database: what a row has, and how a file of an earlier version becomes one of this version.

    measurements    kernels on their own: trials, defaults and choices
    programs        whole programs: the trace that is the best for a model
    program_trials  kernels as they were timed inside a program
    tunings         how far each tuning is: its budget, and what of it is used

Rows are only ever appended. The version is in the file (`PRAGMA user_version`):

    1   measurements alone
    2   all four; an index by content, without the digest of the rules
"""

import json
import sqlite3
from dataclasses import dataclass
from typing import Any, cast

TABLES_VERSION = 2
_READABLE = (1, TABLES_VERSION)

_LARGEST = 2**63  # of what a decision can be; given: points are arrays of i64

TEXT, COUNT, NUMBER = "TEXT NOT NULL", "INTEGER NOT NULL", "REAL"  # a NUMBER may be absent


class ForeignFileError(Exception):
    """A database of somebody else, or of a version that we do not know. It is left alone."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table: columns with their types, and those by which rows are looked up."""

    name: str
    columns: dict[str, str]
    lookup: tuple[str, ...]

    @property
    def create(self) -> tuple[str, str]:
        """Statements that make the table and its index, if they are not there."""
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        return (
            f"CREATE TABLE IF NOT EXISTS {self.name} (id INTEGER PRIMARY KEY, {columns})",
            f"CREATE INDEX IF NOT EXISTS {self.name}_content ON {self.name} ({', '.join(self.lookup)})",
        )

    @property
    def insert(self) -> str:
        """Appends a row: values in the order of the columns."""
        return self.insert_all(1)

    def insert_all(self, count: int) -> str:
        """Appends `count` rows at once: all of them are there afterwards, or none."""
        row = f"({', '.join('?' * len(self.columns))})"
        return f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES {', '.join([row] * count)}"

    @property
    def select(self) -> str:
        """Rows with their numbers, oldest first, after the one of a number."""
        return f"SELECT id, {', '.join(self.columns)} FROM {self.name} WHERE id > ? ORDER BY id"


MEASUREMENTS = TableSpec(
    "measurements",
    {
        **{"task": TEXT, "target": TEXT, "rules": TEXT, "purpose": TEXT, "rule": TEXT, "decisions": TEXT},
        **{"trace": TEXT, "seconds": NUMBER, "status": TEXT, "message": TEXT, "threads": COUNT},
        **{"date": TEXT, "versions": TEXT},
    },
    ("task", "target", "purpose", "status", "threads", "rules", "seconds"),
)
PROGRAMS = TableSpec(
    "programs",
    {
        **{"model": TEXT, "target": TEXT, "rules": TEXT, "threads": COUNT, "trace": TEXT},
        **{"seconds": NUMBER, "untuned_seconds": NUMBER, "status": TEXT, "date": TEXT, "versions": TEXT},
    },
    ("model", "target", "threads"),
)
PROGRAM_TRIALS = TableSpec(
    "program_trials",
    {
        **{"model": TEXT, "target": TEXT, "rules": TEXT, "threads": COUNT, "task": TEXT, "rule": TEXT},
        **{"decisions": TEXT, "seconds": NUMBER, "default_seconds": NUMBER, "status": TEXT, "message": TEXT},
        **{"date": TEXT, "versions": TEXT},
    },
    ("model", "target", "threads", "task"),
)
TUNINGS = TableSpec(
    "tunings",
    {
        **{"tuning": TEXT, "model": TEXT, "target": TEXT, "rules": TEXT, "threads": COUNT, "budget": NUMBER},
        **{"used": NUMBER, "trials": COUNT, "status": TEXT, "date": TEXT, "versions": TEXT},
    },
    ("model", "target", "threads"),
)
TUNING_TABLES = {t.name: t for t in (MEASUREMENTS, PROGRAMS, PROGRAM_TRIALS, TUNINGS)}


def stored_decisions(text: str) -> dict[str, int] | None:
    """The values of knobs in a column `decisions`; None if somebody else has written something else there."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    values = cast("dict[str, object]", found)
    good = {k: v for k, v in values.items() if type(v) is int and -_LARGEST <= v < _LARGEST}
    return good if len(good) == len(values) else None


def tables_version(connection: sqlite3.Connection) -> int:
    """Of the file; 0 if it is empty. ForeignFileError if its tables are not ours."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0 and not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        return 0
    columns = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({MEASUREMENTS.name})")}
    if columns != {"id", *MEASUREMENTS.columns}:
        raise ForeignFileError("it is a database of another program")
    if (
        version == 0
    ):  # the process that made it was killed before it was done; all of its tables are made again
        return 1
    if version not in _READABLE:
        raise ForeignFileError(f"it was written by another version of Tilewright (table {version})")
    return version


def prepare_tables(connection: sqlite3.Connection) -> None:
    """Make what the file lacks, in one transaction: one of an earlier version keeps all of its rows."""
    if tables_version(connection) == TABLES_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if tables_version(connection) != TABLES_VERSION:  # no other process was quicker
            connection.execute("DROP INDEX IF EXISTS measurements_key")  # of version 1, with the rules
            for table in TUNING_TABLES.values():
                for statement in table.create:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {TABLES_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
