"""What was measured: one row per measurement, in one file of the user's.

    $TILEWRIGHT_DB, or tilewright/tuning.db in $XDG_DATA_HOME or ~/.local/share; TILEWRIGHT_DB=off turns it off

A row belongs to a *task* (the digest of an unscheduled Func up to renaming), a target and a number of threads. Its
purpose is `trial` (a candidate), `default` (what compilation does by itself) or `choice` (which of them compilation
takes from now on: the outcome of a comparison). Rows are only ever appended, each in a transaction of its own, so that
a process may be killed at any time and several may write at once.

A row also says with which rules (design spaces and steps) it was measured. With others it is *stale*: a choice is
names and numbers, which the rules of today apply or refuse, so it still counts where there is no fresh one; how long
something took does not.

The database never makes anything fail (`search/tuning_file.py`). What programs have besides kernels is in
`search/program_records.py`, what the tables are in `search/tuning_tables.py`.
"""

import datetime
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.search.program_records import InsideTrial, ProgramRecord, TuningRecord
from tilewright.search.tuning_file import TuningFile
from tilewright.search.tuning_tables import MEASUREMENTS, PROGRAM_TRIALS, PROGRAMS, TUNINGS, stored_decisions
from tilewright.support.user_folders import user_folder
from tilewright.version import __version__

if TYPE_CHECKING:  # a program that was compiled before is found without what spaces are made of
    from tilewright.families.space import KnobValues

DEFAULT_RULE = "default"  # the choice is to stay with what compilation does by itself
OK = "ok"

# A candidate that was found but not compared in turns with the default (the process was killed) must be this much
# better: more than measurements in passing differ.
_CLEARLY = 0.9
_VERSIONS = f"tilewright {__version__}"


@dataclass(frozen=True, slots=True)
class RecordScope:
    """What a compilation looks rows up by, besides their content: digests of the target, whose rows alone count, and of
    the rules, those of other ones being stale.
    """

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
    versions: str = _VERSIONS
    is_stale: bool = field(default=False, compare=False)  # measured with other rules; not stored


@dataclass(frozen=True, slots=True)
class Choice:
    """What a task is scheduled by."""

    rule: str
    decisions: "KnobValues"
    is_stale: bool = field(default=False, compare=False)  # made with other rules


def database_path() -> Path | None:
    """Where the environment wants it; None if nowhere."""
    setting = os.environ.get("TILEWRIGHT_DB", "")
    if setting.lower() == "off":
        return None
    if setting:
        return Path(setting)
    folder = user_folder("XDG_DATA_HOME", ".local/share")
    return None if folder is None else folder / "tilewright" / "tuning.db"


class Database(TuningFile):
    """`path` None: there is none. Use one object in one thread."""

    # ------------------------------------------------------------------------------------------------------- kernels

    def record(self, scope: RecordScope, m: Measurement) -> None:
        """Append one row; it is safe when this returns."""
        row = (
            *(m.task, scope.target, scope.rules, m.purpose, m.rule, decisions_text(m.decisions), m.trace),
            *(m.seconds, m.status, m.message, m.threads, _now(), m.versions),
        )
        self._do(MEASUREMENTS.insert, row, make=True)

    def measurements(self, scope: RecordScope, task: str, *, stale: bool = False) -> list[Measurement]:
        """All rows of a task, oldest first: those of the same rules, or with `stale` all."""
        rows = self._do(
            "SELECT purpose, rule, decisions, status, seconds, threads, trace, message, versions, rules != ?1"
            " FROM measurements WHERE task = ?2 AND target = ?3 AND (rules = ?1 OR ?4) ORDER BY id",
            (scope.rules, task, scope.target, stale),
        )
        return [
            Measurement(task, p, r, _decisions(d), *rest, is_stale=bool(is_stale))
            for p, r, d, *rest, is_stale in rows
        ]

    def choice(self, scope: RecordScope, task: str, threads: int = 1) -> Choice | None:
        """How to schedule the Func for this many threads; None: as compilation does by itself.

        What was found for other threads counts where nothing was for these; what is stale, where nothing is fresh. The
        last choice counts.
        """
        key = (scope.rules, task, scope.target, threads)
        rows = self._do(
            "SELECT rule, decisions, rules != ?1, threads FROM measurements"
            " WHERE task = ?2 AND target = ?3 AND purpose = 'choice'"
            " ORDER BY threads != ?4, rules != ?1, date DESC, id DESC LIMIT 1",
            key,
        )
        if (
            not rows or rows[0][3] != threads
        ):  # nobody has compared them; with the default of the same tuning at least
            rows += self._do(
                "SELECT rule, decisions, rules != ?1, threads FROM measurements AS m"
                " WHERE task = ?2 AND target = ?3 AND purpose = 'trial' AND status = 'ok'"
                f" AND seconds < {_CLEARLY} * (SELECT MIN(seconds) FROM measurements"
                " WHERE task = ?2 AND target = ?3 AND purpose = 'default' AND status = 'ok'"
                " AND threads = m.threads AND rules = m.rules)"
                " ORDER BY threads != ?4, rules != ?1, seconds LIMIT 1",
                key,
            )
        best = min(rows, key=lambda row: row[3] != threads, default=None)
        if best is None or best[0] == DEFAULT_RULE:
            return None
        rule, decisions, is_stale, _ = best
        return Choice(rule, _decisions(decisions), bool(is_stale))

    def choices(self, scope: RecordScope, tasks: Iterable[str], threads: int = 1) -> dict[str, Choice]:
        """Of those tasks that have one."""
        if not self.exists:
            return {}
        found = {t: self.choice(scope, t, threads) for t in set(tasks)}
        return {t: c for t, c in found.items() if c is not None}

    # ------------------------------------------------------------------------------------------------------ programs

    def record_program(self, scope: RecordScope, r: ProgramRecord) -> None:
        row = (
            *(r.model, scope.target, scope.rules, r.threads, r.trace),
            *(_finite(r.seconds), _finite(r.untuned_seconds), r.status, _now(), r.versions),
        )
        self._do(PROGRAMS.insert, row, make=True)

    def program(self, scope: RecordScope, model: str, threads: int) -> ProgramRecord | None:
        """The last of this model for this many threads, fresh rather than stale; None if there is none."""
        rows = self._do(
            f"SELECT {_PROGRAM}, rules != ?1 FROM programs WHERE target = ?2 AND model = ?3 AND threads = ?4"
            " ORDER BY rules != ?1, date DESC, id DESC LIMIT 1",
            (scope.rules, scope.target, model, threads),
        )
        return _program_record(rows[0]) if rows else None

    def programs(self, scope: RecordScope | None = None) -> list[ProgramRecord]:
        """All that were recorded, oldest first: for a target, or for all (none of these counts as stale then)."""
        target, rules = (scope.target, scope.rules) if scope is not None else (None, None)
        rows = self._do(
            f"SELECT {_PROGRAM}, rules != coalesce(?1, rules) FROM programs WHERE target = coalesce(?2, target)"
            " ORDER BY id",
            (rules, target),
        )
        return [_program_record(row) for row in rows]

    def record_inside(self, scope: RecordScope, *trials: InsideTrial) -> None:
        """Those of one run: all of them are there afterwards, or none."""
        values: list[object] = []
        for t in trials:
            values += (
                t.model,
                scope.target,
                scope.rules,
                t.threads,
                t.task,
                t.rule,
                decisions_text(t.decisions),
            )
            values += (_finite(t.seconds), _finite(t.default_seconds), t.status, t.message, _now(), _VERSIONS)
        if trials:
            self._do(PROGRAM_TRIALS.insert_all(len(trials)), values, make=True)

    def inside_trials(
        self, scope: RecordScope, model: str, threads: int, task: str, *, stale: bool = False
    ) -> list[InsideTrial]:
        """All of a task inside a model, oldest first: those of the same rules, or with `stale` all."""
        rows = self._do(
            "SELECT rule, decisions, seconds, default_seconds, status, message, rules != ?1 FROM program_trials"
            " WHERE model = ?2 AND target = ?3 AND threads = ?4 AND task = ?5 AND (rules = ?1 OR ?6) ORDER BY id",
            (scope.rules, model, scope.target, threads, task, stale),
        )
        return [
            InsideTrial(model, threads, task, r, _decisions(d), *rest, is_stale=bool(is_stale))
            for r, d, *rest, is_stale in rows
        ]

    # ------------------------------------------------------------------------------------------------------- tunings

    def record_tuning(self, scope: RecordScope, r: TuningRecord) -> None:
        row = (
            *(r.tuning, r.model, scope.target, scope.rules, r.threads, r.budget),
            *(r.used, r.trials, r.status, _now(), r.versions),
        )
        self._do(TUNINGS.insert, row, make=True)

    def last_tuning(self, scope: RecordScope, model: str, threads: int) -> TuningRecord | None:
        """How far the last tuning of a model was; None if there was none. It may have had other rules."""
        rows = self._do(
            "SELECT tuning, model, threads, budget, used, trials, status, versions FROM tunings"
            " WHERE model = ? AND target = ? AND threads = ? ORDER BY date DESC, id DESC LIMIT 1",
            (model, scope.target, threads),
        )
        return TuningRecord(*rows[0]) if rows else None


_PROGRAM = "model, threads, trace, seconds, untuned_seconds, status, versions"


def _program_record(row: tuple[Any, ...]) -> ProgramRecord:
    model, threads, trace, seconds, untuned, status, versions, is_stale = row
    seconds, untuned = (math.inf if s is None else s for s in (seconds, untuned))
    return ProgramRecord(model, threads, trace, seconds, untuned, status, versions, bool(is_stale))


def choices_digest(choices: Mapping[str, Choice]) -> str:
    """Of choices by task; empty if there is none."""
    lines = [
        f"{task} {c.rule} {decisions_text(c.decisions)}"
        for task, c in sorted(choices.items(), key=lambda item: item[0])
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""


def decisions_text(decisions: "KnobValues") -> str:
    """As it is stored."""
    return json.dumps(dict(decisions), sort_keys=True)


def _decisions(text: str) -> dict[str, int]:
    """What is stored; nothing, which no family has, if somebody else has written something else there."""
    return stored_decisions(text) or {}


def _finite(seconds: float | None) -> float | None:
    return seconds if seconds is not None and math.isfinite(seconds) else None


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def default_database() -> Database:
    """The database that the environment asks for."""
    return Database(database_path())
