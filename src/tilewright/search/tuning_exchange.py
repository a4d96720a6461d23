"""Rows of tuning databases on their way from one file to another: from other databases, as text, and from text.

The text has a JSON object a line. The first says what it is, each of the others is a row:

    {"format": "tilewright tuning", "version": 2}
    {"table": "measurements", "task": "…", "target": "…", …}

Everything that comes from elsewhere is checked, row by row, before anything is written; and all of it is written in one
transaction, or nothing is. A row that is there already is not added again, so that files may be merged in any order and
as often as one likes. Nothing is damaged by what is wrong: files are opened to be read only.
"""

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from tilewright.search.tuning_file import check_pages, connect_to, not_usable
from tilewright.search.tuning_tables import (
    COUNT,
    NUMBER,
    TABLES_VERSION,
    TUNING_TABLES,
    ForeignFileError,
    TableSpec,
    stored_decisions,
    tables_version,
)
from tilewright.support.errors import UserError

TUNING_FORMAT = "tilewright tuning"
_MOST = 2**31 - 1  # of a column of counts; given: more threads or trials than anybody has
_LONGEST = 1e12  # seconds; given: longer than anything has run
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3,6})?\+00:00")
_AHEAD = timedelta(days=1)  # that the clock of another machine may be; given


@dataclass(frozen=True, slots=True)
class TuningRow:
    """A row of a table, without its number: values in the order of the columns."""

    table: str
    values: tuple[str | int | float | None, ...]

    def as_dict(self) -> dict[str, Any]:
        return dict(zip(TUNING_TABLES[self.table].columns, self.values, strict=True))


# ------------------------------------------------------------------------------------------------------------ databases


@contextmanager
def reading(path: Path) -> Generator[sqlite3.Connection]:
    """A connection to a tuning database of any version, to read only. UserError if it is none, or damaged."""
    if not path.is_file():
        raise UserError(
            f"cannot read {path}: {'it is no file' if path.exists() else 'there is no such file'}",
            hint="`tilewright tune` makes a tuning database",
        )
    try:
        with closing(_open_to_read(path)) as connection:
            if tables_version(connection) == 0:
                raise UserError("the file is empty: it is no tuning database", where=str(path))
            check_pages(connection)
            yield connection
    except ForeignFileError as e:
        raise UserError(str(e), where=str(path)) from e
    except sqlite3.Error as e:
        raise not_usable(path, e) from e


def read_rows(path: Path) -> list[TuningRow]:
    """All rows of a database. UserError if it is none, if it is damaged, or if a row is not as it must be."""
    with reading(path) as connection:
        return [
            _checked(table, tuple(values), f"{path}, row {n} of {table.name}")
            for table in present_tables(connection)
            for n, *values in connection.execute(table.select, (0,))
        ]


def present_tables(connection: sqlite3.Connection) -> list[TableSpec]:
    """Those that the file has: one of an earlier version has fewer."""
    names = {n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [t for t in TUNING_TABLES.values() if t.name in names]


def add_rows(path: Path, rows: Iterable[TuningRow]) -> dict[str, int]:
    """Append those that are not there yet, and make the file if there is none: all, or none if there is an error.
    Returns how many each table has got.
    """
    added: Counter[str] = Counter()
    try:
        with closing(connect_to(path)) as connection:
            check_pages(connection)
            known = _KnownRows()
            known.read(connection)
            connection.execute("BEGIN IMMEDIATE")  # others that write wait from here on
            try:
                known.read(connection)
                for row in rows:
                    if known.add(row.table, row.values):
                        connection.execute(TUNING_TABLES[row.table].insert, row.values)
                        added[row.table] += 1
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
    except sqlite3.Error as e:
        raise not_usable(path, e) from e
    return {name: added[name] for name in TUNING_TABLES}


class _KnownRows:
    """Digests of the rows of a database."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()
        self._read = dict.fromkeys(TUNING_TABLES, 0)  # up to this number

    def add(self, table: str, values: Iterable[object]) -> bool:
        """Was it not known?"""
        before = len(self._digests)
        self._digests.add(sha256(repr((table, *values)).encode(errors="replace")).digest())
        return len(self._digests) > before

    def read(self, connection: sqlite3.Connection) -> None:
        """All that were written since the last time."""
        for name, table in TUNING_TABLES.items():
            for number, *values in connection.execute(table.select, (self._read[name],)):
                self.add(name, values)
                self._read[name] = number


def _open_to_read(path: Path) -> sqlite3.Connection:
    """Where nothing can be written beside the file, and nobody has left anything there, it is read as it is."""
    name = f"file:{quote(str(path.absolute()))}?mode=ro"
    connection = sqlite3.connect(name, uri=True)
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        log = Path(f"{path}-wal")
        if log.exists() and log.stat().st_size:
            raise
        return sqlite3.connect(f"{name}&immutable=1", uri=True)
    except BaseException:
        connection.close()
        raise
    return connection


# ----------------------------------------------------------------------------------------------------------------- text


def rows_text(rows: Iterable[TuningRow]) -> Iterator[str]:
    """Lines, each with its end."""
    yield json.dumps({"format": TUNING_FORMAT, "version": TABLES_VERSION}) + "\n"
    for row in rows:
        yield json.dumps({"table": row.table, **row.as_dict()}, ensure_ascii=False) + "\n"


def read_rows_text(path: Path) -> list[TuningRow]:
    """The rows of a text. UserError, with the number of the line, for the first that is not as it must be."""
    try:
        with path.open("rb") as file:
            first = file.readline()
            if first.startswith(b"SQLite format 3\0"):
                raise UserError(
                    "this is a database, and no text", where=str(path), hint="use `tilewright db merge`"
                )
            _check_header(first, path)
            return [_parsed(line, f"{path}, line {n}") for n, line in enumerate(file, 2) if line.strip()]
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from e


def _check_header(line: bytes, path: Path) -> None:
    where = f"{path}, line 1"
    head = _json_object(line, where) if line.strip() else {}
    if head.get("format") != TUNING_FORMAT:
        raise UserError("this is no text that `tilewright db export` has written", where=where)
    version = head.get("version")
    if version not in range(1, TABLES_VERSION + 1):
        raise UserError(
            f"version {version!r} of the text is not known here (up to {TABLES_VERSION} is)",
            where=where,
            hint="update Tilewright",
        )


def _parsed(line: bytes, where: str) -> TuningRow:
    found = _json_object(line, where)
    name = found.pop("table", None)
    table = TUNING_TABLES.get(name) if isinstance(name, str) else None
    if table is None:
        raise UserError(
            f"there is no table {name!r}", where=where, hint=f"there are: {', '.join(TUNING_TABLES)}"
        )
    missing, unknown = table.columns.keys() - found.keys(), found.keys() - table.columns.keys()
    if missing or unknown:
        said = [
            f"{what} {', '.join(sorted(s))}" for what, s in (("without", missing), ("with", unknown)) if s
        ]
        raise UserError(f"a row of {table.name} {' and '.join(said)}", where=where)
    return _checked(table, tuple(found[c] for c in table.columns), where)


def _json_object(line: bytes, where: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as e:
        raise UserError(f"the line is no JSON: {e}", where=where) from e
    if not isinstance(found, dict):
        raise UserError("the line is no JSON object", where=where)
    return cast("dict[str, Any]", found)


# ------------------------------------------------------------------------------------------------------------- checking


def _checked(table: TableSpec, values: tuple[object, ...], where: str) -> TuningRow:
    for (column, kind), value in zip(table.columns.items(), values, strict=True):
        problem = _problem(column, kind, value)
        if problem:
            raise UserError(f"{column} = {value!r:.80}: {problem}", where=where)
    numbers = [k == NUMBER for k in table.columns.values()]
    made = (
        float(cast("float", v)) if n and v is not None else v for n, v in zip(numbers, values, strict=True)
    )
    return TuningRow(table.name, cast("tuple[str | int | float | None, ...]", tuple(made)))


def _problem(column: str, kind: str, value: object) -> str:
    """What is wrong with a value; empty if it is as it must be."""
    if kind == NUMBER:
        if value is None:
            return ""
        is_time = isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value < _LONGEST
        return "" if is_time else "this is no time"
    if kind == COUNT:
        least = 1 if column == "threads" else 0
        is_count = isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST
        return "" if is_count else "this is no count"
    if not isinstance(value, str):
        return "this is no text"
    return _CHECKS[column](value) if column in _CHECKS else _text_problem(value)


def _text_problem(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return "this is no text"
    return ""


def _decisions_problem(text: str) -> str:
    return "these are no decisions" if stored_decisions(text) is None else ""


def _date_problem(text: str) -> str:
    """The last choice counts: one from the future would count for long."""
    try:
        date = datetime.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        date = None
    if date is None:
        return "this is no date"
    return "the date is in the future" if date > datetime.now(UTC) + _AHEAD else ""


_CHECKS: Mapping[str, Any] = {"decisions": _decisions_problem, "date": _date_problem}
