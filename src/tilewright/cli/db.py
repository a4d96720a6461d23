"""`tilewright db`: what is in the tuning database, and how it gets from one file to another."""

import os
import sqlite3
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tilewright.cli.output import milliseconds, note, print_json, print_table
from tilewright.driver.tuned import tuning_scope
from tilewright.search.database import DEFAULT_RULE, RecordScope, database_path
from tilewright.search.program_records import DONE
from tilewright.search.tuning_exchange import (
    TuningRow,
    add_rows,
    present_tables,
    read_rows,
    read_rows_text,
    reading,
    rows_text,
)
from tilewright.search.tuning_tables import TUNING_TABLES, stored_decisions, tables_version
from tilewright.support.errors import UserError
from tilewright.target.target import native

_SHORT = 12  # digits of a digest that people are shown


def show_database(db: Path | None, as_json: bool) -> None:
    where = _database(db)
    with reading(where) as connection:
        found = _Contents.of(connection, tuning_scope(native()))
    if as_json:
        print_json({"file": str(where), **found.as_json()})
        return
    click.echo(f"{where}: {_counted(found.rows)}")
    if found.groups:
        click.echo()
        print_table(_GROUP_COLUMNS, [_group_cells(g) for g in found.groups])
    if found.choices:
        click.echo()
        print_table(_CHOICE_COLUMNS, [_choice_cells(c) for c in found.choices])
    if found.programs:
        click.echo()
        print_table(_PROGRAM_COLUMNS, [_program_cells(p) for p in found.programs])
    for t in found.tunings:
        if t["status"] != DONE:
            note(
                f"tuning of {t['model'][:_SHORT]} for {t['threads']} threads: {t['status']} after"
                f" {t['used_seconds']:.0f} s of {t['budget_seconds']:.0f} s"
            )


def merge_databases(files: tuple[Path, ...], db: Path | None, as_json: bool) -> None:
    rows = {file: read_rows(file) for file in dict.fromkeys(files)}  # all are read before anything is written
    _add(_database(db), [r for found in rows.values() for r in found], as_json)


def import_rows(file: Path, db: Path | None, as_json: bool) -> None:
    _add(_database(db), read_rows_text(file), as_json)


def export_database(file: Path, db: Path | None, force: bool, as_json: bool) -> None:
    where = _database(db)
    rows = read_rows(where)
    if file.exists() and (not force or file.samefile(where)):
        is_own = file.samefile(where)
        raise UserError(
            "this is the database itself" if is_own else "the file exists",
            where=str(file),
            hint="name another file" if is_own else "name another file, or replace it with --force",
        )
    _write(file, rows_text(rows))
    counts = {name: sum(r.table == name for r in rows) for name in TUNING_TABLES}
    if as_json:
        print_json({"database": str(where), "file": str(file), "rows": counts})
    else:
        click.echo(f"{file}: {_counted(counts)}")


def _database(db: Path | None) -> Path:
    where = database_path() if db is None else db
    if where is None:
        raise UserError("there is no tuning database: TILEWRIGHT_DB is off", hint="name one with --db FILE")
    return where


def _add(where: Path, rows: list[TuningRow], as_json: bool) -> None:
    added = add_rows(where, rows)
    known = len(rows) - sum(added.values())
    if as_json:
        print_json({"database": str(where), "added": added, "known": known})
    else:
        click.echo(f"{where}: added {_counted(added)}; {known} were there already")


def _write(file: Path, lines: Iterable[str]) -> None:
    """The whole file, or none of it."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.writelines(lines)
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as e:
        raise UserError(f"cannot write {file}: {e.strerror or e}") from e


# ------------------------------------------------------------------------------------------------------------- contents

_GROUPS = """
SELECT target, threads, count(DISTINCT task), sum(purpose = 'trial'), sum(purpose = 'trial' AND status != 'ok')
FROM measurements GROUP BY target, threads ORDER BY target, threads
"""
_CHOICES = """
SELECT target, threads, task, rule, decisions, seconds, date, rules FROM measurements AS m
WHERE purpose = 'choice' AND NOT EXISTS (
    SELECT 1 FROM measurements WHERE task = m.task AND target = m.target AND purpose = 'choice'
    AND threads = m.threads AND ((rules = ?1) - (m.rules = ?1), date, id) > (0, m.date, m.id)
) ORDER BY target, threads, seconds DESC, task
"""
_PROGRAMS = """
SELECT target, threads, model, trace, seconds, untuned_seconds, status, date, rules FROM programs AS m
WHERE NOT EXISTS (
    SELECT 1 FROM programs WHERE model = m.model AND target = m.target AND threads = m.threads
    AND ((rules = ?1) - (m.rules = ?1), date, id) > (0, m.date, m.id)
) ORDER BY target, threads, seconds DESC, model
"""
_TUNINGS = """
SELECT target, threads, model, budget, used, trials, status, date FROM tunings AS m
WHERE NOT EXISTS (
    SELECT 1 FROM tunings WHERE model = m.model AND target = m.target AND threads = m.threads
    AND (date, id) > (m.date, m.id)
) ORDER BY target, threads, date
"""


@dataclass(frozen=True, slots=True)
class _Contents:
    """What counts: the last of each. As JSON has it."""

    version: int
    rows: dict[str, int]
    groups: list[dict[str, Any]]  # by target and threads
    choices: list[dict[str, Any]]
    programs: list[dict[str, Any]]
    tunings: list[dict[str, Any]]

    @classmethod
    def of(cls, connection: sqlite3.Connection, scope: RecordScope) -> "_Contents":
        names = [t.name for t in present_tables(connection)]
        counts = {n: connection.execute(f"SELECT count(*) FROM {n}").fetchone()[0] for n in names}
        has_programs = "programs" in names
        choices: list[dict[str, Any]] = [
            {
                **_place(target, threads, scope),
                "task": task,
                "rule": rule,
                "decisions": stored_decisions(decisions) or {},
                "seconds": seconds,
                "stale": rules != scope.rules,
                "date": date,
            }
            for target, threads, task, rule, decisions, seconds, date, rules in connection.execute(
                _CHOICES, (scope.rules,)
            )
        ]
        programs: list[dict[str, Any]] = [
            {
                **_place(target, threads, scope),
                "model": model,
                "is_default": not trace,
                "seconds": seconds,
                "untuned_seconds": untuned,
                "status": status,
                "stale": rules != scope.rules,
                "date": date,
            }
            for target, threads, model, trace, seconds, untuned, status, date, rules in (
                connection.execute(_PROGRAMS, (scope.rules,)) if has_programs else ()
            )
        ]
        tunings: list[dict[str, Any]] = [
            {
                **_place(target, threads, scope),
                "model": model,
                "budget_seconds": budget,
                "used_seconds": used,
                "trials": trials,
                "status": status,
                "date": date,
            }
            for target, threads, model, budget, used, trials, status, date in (
                connection.execute(_TUNINGS) if has_programs else ()
            )
        ]
        measured = {(t, n): counted for t, n, *counted in connection.execute(_GROUPS)}
        places = {(p["target"], p["threads"]) for p in (*programs, *tunings)} | measured.keys()
        groups = [
            _group(_place(t, n, scope), measured.get((t, n), [0, 0, 0]), choices, programs)
            for t, n in sorted(places)
        ]
        return cls(tables_version(connection), counts, groups, choices, programs, tunings)

    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "rows": {name: self.rows.get(name, 0) for name in TUNING_TABLES},
            "groups": self.groups,
            "choices": self.choices,
            "programs": self.programs,
            "tunings": self.tunings,
        }


def _place(target: str, threads: int, scope: RecordScope) -> dict[str, Any]:
    return {"target": target, "this_machine": target == scope.target, "threads": threads}


def _group(
    place: dict[str, Any], counted: list[int], choices: list[dict[str, Any]], programs: list[dict[str, Any]]
) -> dict[str, Any]:
    def here(row: dict[str, Any]) -> bool:
        return (row["target"], row["threads"]) == (place["target"], place["threads"])

    tasks, trials, failed = counted
    chosen, made = [c for c in choices if here(c)], [p for p in programs if here(p)]
    return {
        **place,
        "tasks": tasks,
        "trials": trials,
        "failed_trials": failed,
        "choices": len(chosen),
        "better_than_default": sum(c["rule"] != DEFAULT_RULE for c in chosen),
        "stale_choices": sum(c["stale"] for c in chosen),
        "programs": len(made),
        "stale_programs": sum(p["stale"] for p in made),
    }


# --------------------------------------------------------------------------------------------------------------- tables

_GROUP_COLUMNS = (
    *("target", "threads", "kernels", "trials", "failed", "choices", "better", "stale"),
    *("programs", "stale programs"),
)
_CHOICE_COLUMNS = ("kernel", "target", "threads", "time", "choice", "state", "date")
_PROGRAM_COLUMNS = ("program", "target", "threads", "time", "untuned", "choice", "state", "date")


def _counted(rows: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in rows.items())


def _machine(row: dict[str, Any]) -> str:
    return "this machine" if row["this_machine"] else row["target"][:_SHORT]


def _state(row: dict[str, Any]) -> str:
    return "stale" if row["stale"] else "fresh"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else milliseconds(seconds)


def _group_cells(g: dict[str, Any]) -> tuple[str | int, ...]:
    counts = ("tasks", "trials", "failed_trials", "choices", "better_than_default", "stale_choices")
    return (_machine(g), g["threads"], *(g[c] for c in (*counts, "programs", "stale_programs")))


def _choice_cells(c: dict[str, Any]) -> tuple[str | int, ...]:
    decisions = ", ".join(f"{k} {v}" for k, v in c["decisions"].items())
    chosen = f"{c['rule']}: {decisions}" if decisions else c["rule"]
    return (c["task"][:_SHORT], _machine(c), c["threads"], _time(c["seconds"]), chosen, _state(c), c["date"])


def _program_cells(p: dict[str, Any]) -> tuple[str | int, ...]:
    chosen = "default" if p["is_default"] else "tuned"
    times = (_time(p["seconds"]), _time(p["untuned_seconds"]))
    return (p["model"][:_SHORT], _machine(p), p["threads"], *times, chosen, _state(p), p["date"])
