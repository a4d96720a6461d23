"""The database of measurements: what is in it survives, and nothing about it makes anything fail."""

import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
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

SCOPE = RecordScope("machine", "rules")

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
