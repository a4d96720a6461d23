"""`tilewright tune` killed at any moment, again and again, and what is left in its database each time."""

import contextlib
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto

from tilewright.tuning.program_tuner import BATCH

# The command, with words on the side: after each run that has measured, and before and after rows are written.
_COMMAND = """
import os, sys
log = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
from tilewright.search.database import Database
from tilewright.tuning.program_tuner import ProgramTuner
record, note = Database.record_inside, ProgramTuner._note
def noted_record(self, scope, *rows):
    os.write(log, b"begun %d\\n" % len(rows))
    record(self, scope, *rows)
    os.write(log, b"done %d\\n" % len(rows))
def noted_note(self, measured):  # of what was measured before, nothing is written
    os.write(log, b"measured %d\\n" % sum(bool(o.ratios) and s.is_new(p) for s, _, p, o in measured))
    note(self, measured)
Database.record_inside, ProgramTuner._note = noted_record, noted_note
from tilewright.cli.entry import main
main()
"""
_START_SECONDS = 3.0  # in which a process that is killed early is killed
_EARLY_SHARE = 0.2  # of the kills
_PATIENCE = 120.0  # seconds for a process to begin to measure


@dataclass(frozen=True, slots=True)
class Seen:
    """What the log has, and what the database has."""

    measured: int = 0
    begun: int = 0
    done: int = 0
    largest_run: int = 0  # measurements that were made together
    rows: int = 0
    measured_rows: int = 0
    noted_trials: int | None = None  # in the account; None if there is no tuning yet
    is_whole: bool = True
    repeated: int = 0  # rows of a point that another row has


@dataclass(frozen=True, slots=True)
class Kill:
    """What one kill has cost. `problems` is empty if all is as it should be."""

    is_early: bool
    is_resumed: bool  # did the process that was killed go on with the last one's tuning?
    measured: int  # before the kill, in all processes so far
    lost: int  # measurements that were made and are in no row
    lost_rows: int  # that were being written
    largest_run: int
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def problems(before: Seen, now: Seen, resumed: int) -> list[str]:
    """What is wrong after a kill: a broken file, rows that were written and are gone, more lost than a run has
    measured, a point that was measured twice, an account that does not fit. `resumed` is how many processes went on.
    """
    found: list[str] = []
    if not now.is_whole:
        found.append("the database is damaged")
    if not now.done <= now.rows <= now.begun:
        found.append(f"{now.rows} rows, but {now.done} were written and {now.begun} begun")
    lost = (now.measured - now.measured_rows) - (before.measured - before.measured_rows)
    if not 0 <= lost <= max(now.largest_run, 1):
        found.append(f"{lost} measurements lost, and {now.largest_run} in the largest run")
    if now.repeated:
        found.append(f"{now.repeated} points were measured twice")
    # The account is written after each batch, and so a batch behind, for each kill.
    noted = now.noted_trials or 0
    if not noted <= now.rows <= noted + BATCH * (1 + resumed):
        found.append(f"{noted} trials in the account, and {now.rows} rows")
    return found


class KilledTuning:
    """One database, and a process after the other that tunes the same model until it is killed."""

    def __init__(self, folder: Path, model: ModelProto, seed: int, latest: float) -> None:
        self.database, self.model, self.log = folder / "tuning.db", folder / "model.onnx", folder / "log"
        self.cache = folder / "cache"  # so that a process is soon at work
        self.model.write_bytes(model.SerializeToString())
        self.log.touch()
        self.rng, self.latest = random.Random(seed), latest
        self.resumed = 0
        self.used = 0.0  # seconds of the budget, as the last process was told

    def start(self, *options: str) -> subprocess.Popen[str]:
        command = ("tune", str(self.model), "--budget", "1h", "--db", str(self.database), *options)
        return subprocess.Popen(
            [sys.executable, "-c", _COMMAND, str(self.log), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TILEWRIGHT_CACHE": str(self.cache), "OMP_NUM_THREADS": "1"},
        )

    def kill_one(self) -> Kill:
        """Start a process and kill it: in one of five cases while it starts, otherwise while it measures."""
        before = self.seen()
        process = self.start(*(() if before.noted_trials is None else ("--resume",)))
        is_early = self.rng.random() < _EARLY_SHARE
        end = time.monotonic() + (self.rng.uniform(0.0, _START_SECONDS) if is_early else _PATIENCE)
        while self._said("begun") == before.begun and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        if not is_early:
            time.sleep(self.rng.uniform(0.0, self.latest))
        os.kill(process.pid, signal.SIGKILL)
        _, messages = process.communicate(timeout=60)
        found = [] if process.returncode == -signal.SIGKILL else [f"it ended by itself: {messages}"]
        is_resumed, wrong = self.check_resumed(messages, before)
        now = self.seen()
        found += [*wrong, *problems(before, now, self.resumed)]
        lost = (now.measured - now.measured_rows) - (before.measured - before.measured_rows)
        lost_rows = (now.begun - now.rows) - (before.begun - before.rows)
        return Kill(is_early, is_resumed, now.measured, lost, lost_rows, now.largest_run, tuple(found))

    def check_resumed(self, messages: str, before: Seen) -> tuple[bool, list[str]]:
        """Did the process go on, and with what the last one has left?"""
        said = re.search(r"resumed: (\d+) s of 3600 s are used, (\d+) trials were made", messages)
        if said is None:
            return False, []
        self.resumed += 1
        used, self.used = self.used, float(said[1])
        is_right = self.used >= used and int(said[2]) == before.noted_trials
        return True, [] if is_right else [f"resumed with {said[2]} trials of {before.noted_trials}"]

    def end(self) -> list[str]:
        """Let a last process come to its end, two trials later: what is wrong with that."""
        before = self.seen()
        resume = () if before.noted_trials is None else ("--resume",)
        process = self.start(*resume, "--trials", str((before.noted_trials or 0) + 2))
        out, messages = process.communicate(timeout=_PATIENCE)
        _, found = self.check_resumed(messages, before)
        if process.returncode or "2 trials in" not in out or self.seen().rows != before.rows + 2:
            found.append(f"the last process: {out}{messages}")
        return found

    def _said(self, word: str) -> int:
        return sum(self._counts(word))

    def _counts(self, word: str) -> list[int]:
        """The numbers after a word; a kill may have cut the last line short."""
        return [int(n) for n in re.findall(rf"^{word} (\d+)$", self.log.read_text(), re.MULTILINE)]

    def seen(self) -> Seen:
        runs = self._counts("measured")
        said = Seen(sum(runs), self._said("begun"), self._said("done"), max(runs, default=0))
        if not self.database.exists() or not self.database.stat().st_size:
            return said
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            is_whole = connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            rows = _rows(connection, "program_trials", "status, task, rule, decisions")
            tunings = _rows(connection, "tunings", "trials")
        points = [r[1:] for r in rows]
        return Seen(
            *(said.measured, said.begun, said.done, said.largest_run),
            *(len(rows), sum(r[0] != "build_error" for r in rows)),
            *(tunings[-1][0] if tunings else None, is_whole, len(points) - len(set(points))),
        )


def _rows(connection: sqlite3.Connection, table: str, columns: str) -> Sequence[Any]:
    """None if the process was killed before it had made the tables."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
        return []
    return connection.execute(f"SELECT {columns} FROM {table} ORDER BY id").fetchall()
