"""`tilewright tune` is killed at any moment, again and again: the database is whole, nothing that was measured is lost
but what was being written, and the next process goes on.
"""

import contextlib
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.models import mlp
from tilewright.cli.status import ExitStatus
from tilewright.tuning.program_tuner import BATCH

# The command, with words on the side: after each measurement, and before and after each row.
COMMAND = """
import os, sys
log = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
from tilewright.search.database import Database
from tilewright.tuning.program_tuner import ProgramTuner
record, note = Database.record_inside, ProgramTuner._note
def noted_record(self, scope, *rows):
    os.write(log, b"begun " * len(rows))
    record(self, scope, *rows)
    os.write(log, b"done " * len(rows))
def noted_note(self, measured):
    os.write(log, b"measured " * sum(bool(o.ratios) and s.is_new(p) for s, _, p, o in measured))
    note(self, measured)
Database.record_inside, ProgramTuner._note = noted_record, noted_note
from tilewright.cli.entry import main
main()
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the log has, and what the database has."""

    measured: int
    begun: int
    done: int
    rows: int = 0
    measured_rows: int = 0
    trials: int = 0  # in rows of their own
    noted_trials: int | None = None  # in the account; None if there is no tuning yet


class KilledTuning:
    """One database, and a process after the other that tunes the same model until it is killed."""

    def __init__(self, folder: Path, seed: int, latest: float) -> None:
        self.database, self.model, self.log = folder / "tuning.db", folder / "mlp.onnx", folder / "log"
        self.model.write_bytes(mlp((96, 192, 96)).SerializeToString())
        self.log.touch()
        self.rng, self.latest = random.Random(seed), latest
        self.lost = self.lost_rows = self.resumed = 0
        self.used = 0.0  # seconds of the budget, as the last process was told

    def start(self, *options: str) -> subprocess.Popen[str]:
        command = ("tune", str(self.model), "--budget", "1h", "--db", str(self.database), *options)
        return subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(self.log), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TILEWRIGHT_CACHE": "off", "OMP_NUM_THREADS": "1"},
        )

    def kill_one(self) -> None:
        """Start a process and kill it: in one of five cases while it starts, otherwise while it measures."""
        before = self.seen()
        process = self.start(*(() if before.noted_trials is None else ("--resume",)))
        is_early = self.rng.random() < 0.2
        end = time.monotonic() + (self.rng.uniform(0.0, 3.0) if is_early else 120.0)
        while self.words("begun") == before.begun and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        if not is_early:
            time.sleep(self.rng.uniform(0.0, self.latest))
        os.kill(process.pid, signal.SIGKILL)
        _, messages = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, messages
        self.check_resumed(messages, before)
        self.check()

    def check_resumed(self, messages: str, before: Seen) -> None:
        said = re.search(r"resumed: (\d+) s of 3600 s are used, (\d+) trials were made", messages)
        if said is None:
            assert "resumed" not in messages
            return
        assert int(said[1]) >= self.used and int(said[2]) == before.noted_trials
        self.used = int(said[1])
        self.resumed += 1

    def check(self) -> None:
        """The file is whole; all rows whose writing ended are there, and a kill loses what one run of the program has
        measured at most: a batch, all of it or nothing.
        """
        now = self.seen()
        assert now.done <= now.rows <= now.begun
        lost, lost_rows = now.measured - now.measured_rows, now.begun - now.rows
        assert 0 <= lost - self.lost <= BATCH and 0 <= lost_rows - self.lost_rows <= BATCH
        self.lost, self.lost_rows = lost, lost_rows
        assert now.noted_trials is not None or now.trials == 0
        # The account is written after each batch, and so a batch behind, for each kill.
        assert (now.noted_trials or 0) <= now.trials <= (now.noted_trials or 0) + BATCH * (1 + self.resumed)

    def words(self, word: str) -> int:
        return self.log.read_text().split().count(word)

    def seen(self) -> Seen:
        said = Seen(self.words("measured"), self.words("begun"), self.words("done"))
        if not self.database.exists() or not self.database.stat().st_size:
            assert said.begun == 0
            return said
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            rows = self.rows(connection, "program_trials", "status, task, rule, decisions")
            tunings = self.rows(connection, "tunings", "trials")
        measured = [r for r in rows if r[0] != "build_error"]
        trials = [r[1:] for r in rows]
        assert len(trials) == len(set(trials))  # what was measured before a kill is not measured again
        noted = tunings[-1][0] if tunings else None
        return Seen(said.measured, said.begun, said.done, len(rows), len(measured), len(trials), noted)

    @staticmethod
    def rows(connection: sqlite3.Connection, table: str, columns: str) -> list[Any]:
        """None if the process was killed before it had made the tables."""
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            return []
        return connection.execute(f"SELECT {columns} FROM {table} ORDER BY id").fetchall()

    def end(self) -> None:
        """Let a last process come to its end."""
        before = self.seen()
        noted = before.noted_trials or 0
        process = self.start(
            *(("--resume",) if before.noted_trials is not None else ()), "--trials", str(noted + 2)
        )
        out, messages = process.communicate(timeout=120)
        assert process.returncode == ExitStatus.OK, messages
        self.check_resumed(messages, before)
        self.check()
        assert "2 trials in" in out and self.seen().trials == before.trials + 2
        process = self.start("--resume")
        _, messages = process.communicate(timeout=120)
        assert process.returncode == ExitStatus.USER_ERROR and "the last tuning has ended" in messages


def kill_again_and_again(folder: Path, kills: int, latest: float) -> KilledTuning:
    killed = KilledTuning(folder, seed=kills, latest=latest)
    nothing = killed.start("--resume")
    _, messages = nothing.communicate(timeout=120)
    assert nothing.returncode == ExitStatus.USER_ERROR and "there is nothing to resume" in messages
    assert not killed.database.exists()
    for _ in range(kills):
        killed.kill_one()
    killed.end()
    return killed


def test_a_tuning_that_is_killed_goes_on(tmp_path: Path) -> None:
    assert kill_again_and_again(tmp_path, 3, latest=0.5).resumed


@pytest.mark.slow
def test_a_tuning_that_is_killed_fifty_times_goes_on(tmp_path: Path) -> None:
    killed = kill_again_and_again(tmp_path, 50, latest=2.5)
    seen = killed.seen()
    print(
        f"{seen.measured} measurements, {seen.trials} trials, {seen.rows} rows, {killed.resumed} times resumed,"
    )
    print(
        f"{killed.lost} measurements and {killed.lost_rows} rows that were begun are lost, {killed.used:.0f} s used"
    )
    assert killed.resumed > 25 and killed.lost <= 50
