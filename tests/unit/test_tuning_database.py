"""The database of measurements: what is in it survives, and nothing about it makes anything fail."""

import contextlib
import logging
import math
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.search.database import (
    Choice,
    Database,
    Measurement,
    RecordScope,
    choices_digest,
    database_path,
)
from tilewright.search.program_records import InsideTrial, ProgramRecord, TuningRecord
from tilewright.support.errors import UserError

SCOPE = RecordScope("machine", "rules")
STALE = RecordScope("machine", "other rules")

WRITER = """
import sys, itertools
from pathlib import Path
from tilewright.search.database import Database, Measurement, RecordScope
database, name, count = Database(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
for n in itertools.islice(itertools.count(), count or None):
    database.record(RecordScope("machine", "rules"), Measurement("task", "trial", name, {"n": n}, "ok", 1.0 + n))
    print(n, flush=True)
"""


def measured(
    seconds: float, *, purpose: str = "trial", rule: str = "tile", task: str = "task", rows: int = 4
) -> Measurement:
    return Measurement(task, purpose, rule, {"rows": rows}, "ok", seconds)


def writer(path: Path, name: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], stdout=subprocess.PIPE
    )


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tuning.db"
    database = Database(path)
    row = Measurement(
        "task", "trial", "tile", {"rows": 4, "columns": 16}, "timeout", None, 2, "Split()\n", "slow"
    )
    database.record(SCOPE, row)
    database.record(SCOPE, measured(0.5))
    database.close()
    assert Database(path).measurements(SCOPE, "task") == [row, measured(0.5)]
    assert Database(path).measurements(SCOPE, "other") == []
    assert Database(path).measurements(RecordScope("machine", "other rules"), "task") == []
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_program_comes_back_as_it_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    first = ProgramRecord("model", 1, "trace\n", 0.5, 1.0, "ok", "versions")
    last = replace(first, trace="", seconds=math.inf, status="timeout")
    for r in (first, replace(first, threads=2), replace(first, model="other"), last):
        Database(path).record_program(SCOPE, r)
    assert Database(path).program(SCOPE, "model", 1) == last
    assert Database(path).program(SCOPE, "model", 2) == replace(first, threads=2)
    assert Database(path).program(SCOPE, "model", 3) is None
    assert Database(path).program(RecordScope("elsewhere", "rules"), "model", 1) is None
    assert len(Database(path).programs()) == len(Database(path).programs(SCOPE)) == 4
    assert Database(path).programs(RecordScope("elsewhere", "rules")) == []


def test_a_stale_program_counts_where_none_is_fresh(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.db")
    fresh, stale = ProgramRecord("model", 1, "a", 0.5, 1.0), ProgramRecord("model", 1, "b", 0.4, 1.0)
    database.record_program(STALE, stale)
    found = database.program(SCOPE, "model", 1)
    assert found is not None and found == stale and found.is_stale
    database.record_program(SCOPE, fresh)
    database.record_program(STALE, stale)
    found = database.program(SCOPE, "model", 1)
    assert found is not None and found == fresh and not found.is_stale
    assert [r.is_stale for r in database.programs(SCOPE)] == [True, False, True]


def test_trials_inside_a_program_come_back(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.db")
    ok = InsideTrial("model", 2, "task", "tile", {"rows": 4}, 0.5, 0.6)
    failed = InsideTrial("model", 2, "task", "tile", {"rows": 8}, None, 0.6, "timeout", "slow")
    database.record_inside(SCOPE, ok)
    database.record_inside(STALE, replace(ok, seconds=0.1))
    database.record_inside(SCOPE, replace(failed, seconds=math.inf))
    for other in (replace(ok, model="m"), replace(ok, threads=1), replace(ok, task="t")):
        database.record_inside(SCOPE, other)
    assert database.inside_trials(SCOPE, "model", 2, "task") == [ok, failed]
    every = database.inside_trials(SCOPE, "model", 2, "task", stale=True)
    assert [t.is_stale for t in every] == [False, True, False]


def test_the_last_row_of_a_tuning_says_how_far_it_is(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.db")
    r = TuningRecord("one", "model", 1, 60.0, 5.0, 7)
    assert database.last_tuning(SCOPE, "model", 1) is None
    database.record_tuning(SCOPE, r)
    database.record_tuning(STALE, replace(r, used=9.0))
    assert database.last_tuning(SCOPE, "model", 1) == replace(r, used=9.0)
    assert database.last_tuning(SCOPE, "model", 2) is None


V1 = """
CREATE TABLE measurements (
    id INTEGER PRIMARY KEY,
    task TEXT NOT NULL, target TEXT NOT NULL, rules TEXT NOT NULL,
    purpose TEXT NOT NULL, rule TEXT NOT NULL, decisions TEXT NOT NULL, trace TEXT NOT NULL,
    seconds REAL, status TEXT NOT NULL, message TEXT NOT NULL,
    threads INTEGER NOT NULL, date TEXT NOT NULL, versions TEXT NOT NULL
);
CREATE INDEX measurements_key ON measurements (task, target, rules, purpose);
INSERT INTO measurements VALUES
    (1, 'task', 'machine', 'rules', 'default', 'default', '{}', '', 1.0, 'ok', '', 1, '2026-01-01T00:00:00+00:00', 'v'),
    (2, 'task', 'machine', 'rules', 'trial', 'tile', '{"rows": 4}', 't', 0.5, 'ok', '', 1, '2026-01-01T00:00:01+00:00',
        'v'),
    (3, 'task', 'machine', 'rules', 'choice', 'tile', '{"rows": 4}', 't', 0.5, 'ok', '', 1,
        '2026-01-01T00:00:02+00:00', 'v');
PRAGMA user_version = 1;
"""


@pytest.mark.parametrize("version", [1, 0])
def test_a_file_of_version_1_keeps_its_rows(tmp_path: Path, version: int) -> None:
    """Version 0: made by a process that was killed before it had written the version."""
    path = tmp_path / "tuning.db"
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.executescript(V1)
        old.execute(f"PRAGMA user_version = {version}")
    path.chmod(0o600)
    database = Database(path)
    assert [m.purpose for m in database.measurements(SCOPE, "task")] == ["default", "trial", "choice"]
    assert database.choice(SCOPE, "task") == Choice("tile", {"rows": 4})
    database.record_program(SCOPE, ProgramRecord("model", 1, "", 1.0, 1.0))
    database.close()
    with contextlib.closing(sqlite3.connect(path)) as new:
        assert new.execute("PRAGMA user_version").fetchone() == (2,)
        assert new.execute("SELECT count(*) FROM measurements").fetchone() == (3,)
        assert new.execute("SELECT count(*) FROM programs").fetchone() == (1,)


@pytest.mark.parametrize("version", [0, 1, 2, 7])
def test_a_database_of_another_program_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    path = tmp_path / "tuning.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript(f"CREATE TABLE bookmarks (url TEXT); PRAGMA user_version = {version};")
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(UserError, match="another program"):
        Database(path).check()
    Database(path).record(SCOPE, measured(1.0))
    assert "another program" in caplog.text
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["tuning.db"]


def test_reading_makes_no_file(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.db")
    assert database.choice(SCOPE, "task") is None
    assert database.choices(SCOPE, ["task"]) == {}
    assert list(tmp_path.iterdir()) == []


def test_the_last_choice_counts(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.db")
    database.record(SCOPE, measured(0.5, purpose="choice", rows=2))
    first = choices_digest(database.choices(SCOPE, ["task", "other"]))
    assert database.choice(SCOPE, "task") == Choice("tile", {"rows": 2})
    database.record(SCOPE, measured(0.4, purpose="choice", rows=8))
    assert database.choice(SCOPE, "task") == Choice("tile", {"rows": 8})
    assert "" != first != choices_digest(database.choices(SCOPE, ["task", "other"]))
    database.record(SCOPE, measured(0.3, purpose="choice", rule="default"))
    assert database.choice(SCOPE, "task") is None
    assert database.choices(SCOPE, ["task"]) == {}


def test_a_choice_for_the_same_threads_comes_first_and_then_a_fresh_one(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.db")

    def found(threads: int) -> tuple[int, bool]:
        c = database.choice(SCOPE, "task", threads)
        assert c is not None
        return c.decisions["rows"], c.is_stale

    database.record(STALE, replace(measured(0.5, purpose="choice", rows=1), threads=2))
    assert found(1) == found(2) == (1, True)
    database.record(SCOPE, replace(measured(0.5, purpose="choice", rows=2), threads=3))
    assert (found(1), found(2), found(3)) == ((2, False), (1, True), (2, False))
    database.record(SCOPE, replace(measured(0.5, purpose="choice", rows=4), threads=2))
    database.record(STALE, replace(measured(0.5, purpose="choice", rows=8), threads=2))
    assert found(2) == (4, False)
    assert database.choices(SCOPE, ["task"], 3) == {"task": Choice("tile", {"rows": 2})}
    # Found in passing for one thread, by a tuning that was killed: before what was chosen for others.
    database.record(SCOPE, measured(1.0, purpose="default", rule="default"))
    database.record(SCOPE, measured(0.5, rows=16))
    database.record(STALE, measured(0.1, rows=32))  # next to no default of the same rules
    assert (found(1), found(2)) == ((16, False), (4, False))


def test_decisions_of_somebody_else_fit_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    for text in ("[1", "[1]", "7"):
        Database(path).record(SCOPE, measured(0.5, purpose="choice"))
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("UPDATE measurements SET decisions = ?", (text,))
        assert Database(path).choice(SCOPE, "task") == Choice("tile", {})


def test_without_a_comparison_a_candidate_must_be_clearly_better(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.db")
    database.record(SCOPE, measured(1.0, purpose="default", rule="default"))
    database.record(SCOPE, measured(0.95, rows=2))
    assert database.choice(SCOPE, "task") is None
    database.record(SCOPE, Measurement("task", "trial", "tile", {"rows": 1}, "wrong_result", 0.1))
    assert database.choice(SCOPE, "task") is None
    database.record(SCOPE, Measurement("task", "trial", "tile", {"rows": 3}, "ok", 0.4, threads=2))
    assert database.choice(SCOPE, "task") is None  # on more threads than the default
    database.record(SCOPE, measured(0.5, rows=8))
    assert database.choice(SCOPE, "task") == Choice("tile", {"rows": 8})


def test_a_kill_loses_at_most_the_row_that_was_being_written(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    process = writer(path, "writer", 0)
    assert process.stdout is not None
    seen = [int(process.stdout.readline()) for _ in range(50)]
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split()
    process.wait()
    process.stdout.close()
    acknowledged = len(seen) + len(rest)
    rows = Database(path).measurements(SCOPE, "task")
    assert [r.decisions["n"] for r in rows] == list(range(len(rows)))
    assert acknowledged - 1 <= len(rows) <= acknowledged + 1  # the last line may be cut in two
    Database(path).record(SCOPE, measured(1.0))
    assert len(Database(path).measurements(SCOPE, "task")) == len(rows) + 1


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    processes = [writer(path, name, 100) for name in ("one", "two")]
    for p in processes:
        out, _ = p.communicate(timeout=60)
        assert p.returncode == 0 and len(out.split()) == 100
    rows = Database(path).measurements(SCOPE, "task")
    for name in ("one", "two"):
        assert [r.decisions["n"] for r in rows if r.rule == name] == list(range(100))


@pytest.mark.parametrize("damage", ["garbage", "truncated", "page"])
def test_a_damaged_file_is_moved_aside_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = tmp_path / "tuning.db"
    database = Database(path)
    for n in range(200):
        database.record(SCOPE, measured(1.0 + n))
    database.close()
    data = path.read_bytes()
    path.write_bytes(
        {
            "garbage": b"nonsense" * 1000,
            "truncated": data[: len(data) // 2],
            "page": data[:4096] + b"\xff" * 8192,
        }[damage]
    )
    database = Database(path)
    with caplog.at_level(logging.WARNING):
        assert database.measurements(SCOPE, "task") == []
        database.record(SCOPE, measured(2.0))
        assert database.measurements(SCOPE, "task") == [measured(2.0)]
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "damaged" in caplog.text
    assert any(".damaged-" in p.name for p in tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "file"
    folder.write_text("not a folder")
    database = Database(folder / "tuning.db")
    database.record(SCOPE, measured(1.0))
    database.record(SCOPE, measured(1.0))
    assert database.measurements(SCOPE, "task") == []
    assert len(caplog.records) == 1


def test_the_table_of_another_version_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tuning.db"
    Database(path).record(SCOPE, measured(1.0))
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    assert Database(path).measurements(SCOPE, "task") == []
    assert "another version" in caplog.text and path.exists()


def test_a_file_that_others_can_write_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tuning.db"
    Database(path).record(SCOPE, measured(1.0))
    path.chmod(0o666)
    assert Database(path).measurements(SCOPE, "task") == []
    assert "chmod 600" in caplog.text


def test_the_environment_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_DB", "off")
    assert database_path() is None
    Database(database_path()).record(SCOPE, measured(1.0))
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "mine.db"))
    assert database_path() == tmp_path / "mine.db"
    monkeypatch.delenv("TILEWRIGHT_DB")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert database_path() == tmp_path / "tilewright" / "tuning.db"


def test_a_row_takes_little_time(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.db")
    database.record(SCOPE, measured(1.0))
    start = time.process_time()
    for _ in range(100):
        database.record(SCOPE, measured(1.0))
    assert time.process_time() - start < 0.5
