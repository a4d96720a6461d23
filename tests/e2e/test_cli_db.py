"""`tilewright db` as users meet it: nothing is lost on the way, nothing is added twice, and mistakes change nothing."""

import contextlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tilewright.cli.main import main
from tilewright.cli.status import ExitStatus
from tilewright.driver.tuned import tuning_scope
from tilewright.search.database import Choice, Database, Measurement
from tilewright.search.program_records import InsideTrial, ProgramRecord, TuningRecord
from tilewright.search.tuning_exchange import read_rows
from tilewright.target.target import native, x86_64

HERE = tuning_scope(native())
STALE = replace(HERE, rules="other rules")
ELSEWHERE = tuning_scope(x86_64(l1=7))


def call(*arguments: object, status: int = ExitStatus.OK) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result


def answer(*arguments: object) -> Any:
    return json.loads(call(*arguments, "--json").stdout)


def choice(rows: int, task: str = "task", threads: int = 1) -> Measurement:
    return Measurement(task, "choice", "tile", {"rows": rows}, "ok", 0.5, threads, "Split()\n")


def make(path: Path) -> Path:
    """A database with something in every table."""
    database = Database(path)
    database.record(HERE, Measurement("task", "default", "default", {}, "ok", 1.0))
    database.record(HERE, Measurement("task", "trial", "tile", {"rows": 4}, "ok", 0.5))
    database.record(
        HERE, Measurement("task", "trial", "tile", {"rows": 8}, "timeout", None, 1, "", "slow “ \n")
    )
    database.record(HERE, choice(4))
    database.record(STALE, choice(2, "old"))
    database.record(STALE, choice(2, threads=2))
    database.record(ELSEWHERE, choice(1))
    database.record_program(HERE, ProgramRecord("model", 2, "a trace", 0.5, 1.0))
    database.record_program(STALE, ProgramRecord("other", 2, "", 1.0, float("inf"), "timeout"))
    database.record_inside(HERE, InsideTrial("model", 2, "task", "tile", {"rows": 4}, 0.5, 1.0))
    database.record_tuning(HERE, TuningRecord("one", "model", 2, 60.0, 5.0, 7))
    database.close()
    return path


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return make(tmp_path / "tuning.db")


# ----------------------------------------------------------------------------------------------------------------- show


def test_show_counts_what_there_is(database: Path) -> None:
    found = answer("db", "show", "--db", database)
    assert found["rows"] == {"measurements": 7, "programs": 2, "program_trials": 1, "tunings": 1}
    here = [g for g in found["groups"] if g["this_machine"]]
    assert [g["threads"] for g in here] == [1, 2] and len(found["groups"]) == 3
    one, two = here
    assert (one["tasks"], one["trials"], one["failed_trials"]) == (2, 2, 1)
    assert (one["choices"], one["stale_choices"], one["better_than_default"]) == (2, 1, 2)
    assert (two["choices"], two["stale_choices"], two["programs"], two["stale_programs"]) == (1, 1, 2, 1)
    (tuning,) = found["tunings"]
    assert (tuning["used_seconds"], tuning["budget_seconds"], tuning["status"]) == (5.0, 60.0, "running")
    shown = call("db", "show", "--db", database)
    assert "7 measurements, 2 programs" in shown.stdout and "this machine" in shown.stdout
    assert "tile: rows 4" in shown.stdout and "stale" in shown.stdout and "5 s of 60 s" in shown.stderr


def test_show_has_what_counts(database: Path) -> None:
    for rows in (16, 8):
        Database(database).record(HERE, choice(rows))
    Database(database).record(STALE, choice(32))
    Database(database).record_program(HERE, ProgramRecord("model", 2, "", 1.0, 1.0))
    found = answer("db", "show", "--db", database)
    (chosen,) = [
        c for c in found["choices"] if c["task"] == "task" and c["threads"] == 1 and c["this_machine"]
    ]
    assert (chosen["decisions"], chosen["stale"]) == ({"rows": 8}, False)
    assert Database(database).choice(HERE, "task") == Choice("tile", {"rows": 8})
    assert [(p["model"], p["is_default"], p["stale"]) for p in found["programs"]] == [
        ("model", True, False),
        ("other", True, True),
    ]


def test_the_environment_names_the_database(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DB", str(database))
    assert answer("db", "show")["file"] == str(database)
    monkeypatch.setenv("TILEWRIGHT_DB", "off")
    assert "TILEWRIGHT_DB is off" in call("db", "show", status=ExitStatus.USER_ERROR).stderr


# --------------------------------------------------------------------------------------------- merge, there and back


def test_export_and_import_bring_every_row_back(database: Path, tmp_path: Path) -> None:
    text, other = tmp_path / "rows.txt", tmp_path / "new" / "other.db"
    assert answer("db", "export", text, "--db", database)["rows"]["measurements"] == 7
    assert json.loads(text.read_text().splitlines()[0]) == {"format": "tilewright tuning", "version": 2}
    assert answer("db", "import", text, "--db", other) == {
        "database": str(other),
        "added": {"measurements": 7, "programs": 2, "program_trials": 1, "tunings": 1},
        "known": 0,
    }
    assert read_rows(other) == read_rows(database)
    assert "11 were there already" in call("db", "import", text, "--db", other).stdout
    assert read_rows(other) == read_rows(database)
    assert Database(other).program(HERE, "model", 2) == Database(database).program(HERE, "model", 2)


def test_a_merge_is_a_union(database: Path, tmp_path: Path) -> None:
    other, third = tmp_path / "other.db", tmp_path / "third.db"
    Database(other).record(ELSEWHERE, choice(16))
    Database(other).record(HERE, choice(16, "another"))
    assert sum(answer("db", "merge", other, database, other, "--db", third)["added"].values()) == 13
    assert answer("db", "merge", database, other, "--db", third)["known"] == 13
    assert answer("db", "merge", third, "--db", database)["added"]["measurements"] == 2
    assert set(read_rows(third)) == set(read_rows(database)) == {*read_rows(other), *read_rows(database)}
    assert Database(third).choice(HERE, "task") == Choice("tile", {"rows": 4})
    assert Database(third).choice(ELSEWHERE, "task") == Choice("tile", {"rows": 16})
    assert Database(third).choice(HERE, "another") == Choice("tile", {"rows": 16})


def test_an_older_choice_does_not_count_because_it_was_merged_later(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    Database(old).record(HERE, choice(1))
    with contextlib.closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("UPDATE measurements SET date = '2026-01-01T00:00:00+00:00'")
    Database(new).record(HERE, choice(2))
    call("db", "merge", old, "--db", new)
    assert len(read_rows(new)) == 2
    assert Database(new).choice(HERE, "task") == Choice("tile", {"rows": 2})


def test_a_database_of_version_1_is_merged_and_stays_as_it_is(database: Path, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        for name in ("programs", "program_trials", "tunings"):
            connection.execute(f"DROP TABLE {name}")
        connection.execute("PRAGMA user_version = 1")
        connection.execute("PRAGMA journal_mode = DELETE")
    before = database.read_bytes()
    assert answer("db", "show", "--db", database)["version"] == 1
    assert answer("db", "merge", database, "--db", tmp_path / "other.db")["added"]["measurements"] == 7
    assert database.read_bytes() == before
    assert read_rows(tmp_path / "other.db") == read_rows(database)


def test_rows_that_are_being_written_are_seen(database: Path, tmp_path: Path) -> None:
    """The writer has not closed the file: its rows are in the log beside it."""
    writer = Database(database)
    writer.record(HERE, choice(64, "new"))
    call("db", "merge", database, "--db", tmp_path / "other.db")
    assert Database(tmp_path / "other.db").choice(HERE, "new") == Choice("tile", {"rows": 64})
    writer.close()


# ------------------------------------------------------------------------------------------------------------- mistakes


def damaged(path: Path) -> None:
    data = make(path).read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))


def foreign(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")


def later(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(make(path))) as connection:
        connection.execute("PRAGMA user_version = 99")


def bad_row(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(make(path))) as connection, connection:
        connection.execute("UPDATE measurements SET seconds = 'long' WHERE id = 3")


def text_file(path: Path) -> None:
    path.write_text('{"format": "tilewright tuning", "version": 2}\n' * 50)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "damaged": (damaged, "damaged"),
    "garbage": (lambda p: p.write_bytes(b"nonsense" * 999), "damaged, or no database"),
    "text": (text_file, "damaged, or no database"),
    "foreign": (foreign, "another program"),
    "later": (later, "another version of Tilewright (table 99)"),
    "empty": (lambda p: p.touch(), "the file is empty"),
    "folder": (lambda p: p.mkdir(), "it is no file"),
    "missing": (lambda p: None, "there is no such file"),
    "bad row": (bad_row, "seconds = 'long': this is no time"),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_cannot_be_merged(name: str, database: Path, tmp_path: Path) -> None:
    spoil, message = BAD[name]
    bad, good = tmp_path / "bad.db", make(tmp_path / "good.db")
    spoil(bad)
    if bad.is_file():
        bad.chmod(0o600)
    before, rows = bad.read_bytes() if bad.is_file() else None, read_rows(database)
    result = call("db", "merge", good, bad, "--db", database, status=ExitStatus.USER_ERROR)
    assert message in result.stderr and "bad.db" in result.stderr
    assert read_rows(database) == rows
    commands = [("export", tmp_path / "out.txt")] + ([("show",)] if name != "bad row" else [])
    for command in commands:
        text = call("db", *command, "--db", bad, status=ExitStatus.USER_ERROR).stderr
        assert message in text and "Traceback" not in text
    assert not (tmp_path / "out.txt").exists()
    assert (bad.read_bytes() if bad.is_file() else None) == before


@pytest.mark.parametrize("name", ["damaged", "garbage", "foreign", "later", "folder"])
def test_files_that_nothing_can_be_added_to(name: str, database: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.db"
    BAD[name][0](bad)
    if bad.is_file():
        bad.chmod(0o600)
    before = bad.read_bytes() if bad.is_file() else None
    result = call("db", "merge", database, "--db", bad, status=ExitStatus.USER_ERROR)
    assert "bad.db" in result.stderr
    assert (bad.read_bytes() if bad.is_file() else None) == before


def changed(line: int, change: Callable[[dict[str, Any]], object]) -> Callable[[list[str]], None]:
    def spoil(lines: list[str]) -> None:
        row = json.loads(lines[line - 1])
        change(row)
        lines[line - 1] = json.dumps(row)

    return spoil


def cut(lines: list[str]) -> None:
    lines[-1] = lines[-1][: len(lines[-1]) // 2]


FUTURE = (datetime.now(UTC) + timedelta(days=3)).isoformat(timespec="milliseconds")
BAD_TEXT: dict[str, tuple[Callable[[list[str]], object], int, str]] = {
    "empty": (lambda ls: ls.clear(), 1, "this is no text that `tilewright db export` has written"),
    "no header": (lambda ls: ls.pop(0), 1, "this is no text that"),
    "version": (changed(1, lambda r: r.update(version=99)), 1, "version 99 of the text is not known here"),
    "cut": (cut, 12, "the line is no JSON"),
    "list": (lambda ls: ls.__setitem__(2, "[1, 2]"), 3, "the line is no JSON object"),
    "deep": (lambda ls: ls.__setitem__(2, "[" * 100_000), 3, "the line is no JSON"),
    "table": (changed(4, lambda r: r.update(table="sqlite_master")), 4, "there is no table 'sqlite_master'"),
    "missing": (changed(5, lambda r: r.pop("task")), 5, "a row of measurements without task"),
    "unknown": (changed(5, lambda r: r.update(id=1)), 5, "a row of measurements with id"),
    "text": (changed(2, lambda r: r.update(task=7)), 2, "task = 7: this is no text"),
    "surrogate": (changed(2, lambda r: r.update(task="\ud800")), 2, "this is no text"),
    "time": (changed(3, lambda r: r.update(seconds=-1.0)), 3, "seconds = -1.0: this is no time"),
    "nan": (changed(3, lambda r: r.update(seconds=float("nan"))), 3, "seconds = nan: this is no time"),
    "huge": (changed(3, lambda r: r.update(seconds=10**400)), 3, "this is no time"),
    "threads": (changed(3, lambda r: r.update(threads=0)), 3, "threads = 0: this is no count"),
    "decisions": (changed(3, lambda r: r.update(decisions='{"n": 1.5}')), 3, "these are no decisions"),
    "far decision": (
        changed(3, lambda r: r.update(decisions=f'{{"n": {2**63}}}')),
        3,
        "these are no decisions",
    ),
    "date": (changed(4, lambda r: r.update(date="yesterday")), 4, "this is no date"),
    "month": (changed(4, lambda r: r.update(date="2026-13-01T00:00:00+00:00")), 4, "this is no date"),
    "future": (changed(4, lambda r: r.update(date=FUTURE)), 4, "the date is in the future"),
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_a_text_with_a_mistake_adds_nothing(name: str, database: Path, tmp_path: Path) -> None:
    spoil, line, message = BAD_TEXT[name]
    text, other = tmp_path / "rows.txt", tmp_path / "other.db"
    call("db", "export", text, "--db", database)
    lines = text.read_text().splitlines()
    spoil(lines)
    text.write_text("\n".join(lines))
    result = call("db", "import", text, "--db", other, status=ExitStatus.USER_ERROR)
    assert message in result.stderr and f"{text}, line {line}\n" in f"{result.stderr}\n", result.stderr
    assert not other.exists()


def test_texts_that_are_none(database: Path, tmp_path: Path) -> None:
    error = {"status": ExitStatus.USER_ERROR}
    assert "db merge" in call("db", "import", database, "--db", tmp_path / "b.db", **error).stderr
    assert "cannot read" in call("db", "import", tmp_path / "none", "--db", tmp_path / "b.db", **error).stderr
    (tmp_path / "latin").write_bytes('{"größe": 1}\n'.encode("latin-1"))
    found = call("db", "import", tmp_path / "latin", "--db", tmp_path / "b.db", **error).stderr
    assert "no JSON" in found and "line 1" in found


def test_export_replaces_nothing_unasked(database: Path, tmp_path: Path) -> None:
    text, before = tmp_path / "rows.txt", database.read_bytes()
    text.write_text("dear diary")
    error = {"status": ExitStatus.USER_ERROR}
    assert "--force" in call("db", "export", text, "--db", database, **error).stderr
    assert text.read_text() == "dear diary"
    call("db", "export", text, "--db", database, "--force")
    assert len(text.read_text().splitlines()) == 12
    assert (
        "the database itself" in call("db", "export", database, "--db", database, "--force", **error).stderr
    )
    assert database.read_bytes() == before
    assert "cannot write" in call("db", "export", tmp_path / "no" / "x", "--db", database, **error).stderr
    call("db", "merge", status=ExitStatus.USAGE)
