"""What tuning has found, for compilation to use: a Func's choice in the database becomes its schedule.

A choice is the name of a family and the values of its knobs. If the family no longer fits, or a step refuses, the Func
is scheduled as it would be without: a choice can make code slower or faster, never wrong. So one that was made with
other rules (a stale one) is used too, until it is tuned again.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from tilewright.driver.keys import rules_digest, target_digest
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.machine import default_threads
from tilewright.search.database import Choice, Database, RecordScope, choices_digest, default_database
from tilewright.support.arrays import Shapes
from tilewright.support.errors import MultipleProgramsError, UserError
from tilewright.target.target import Target

if TYPE_CHECKING:  # a program that was compiled before is found without what traces are made of
    from tilewright.driver.trace import ProgramTrace

_log = logging.getLogger("tilewright")
T = TypeVar("T")


def tuning_scope(target: Target) -> RecordScope:
    """The rows of the database that count for a target; those of other rules than today's are stale."""
    return RecordScope(target_digest(target), rules_digest())


def tuned_digest(target: Target, tasks: Iterable[str]) -> str:
    """Of the choices for all of these; empty if there are none."""
    found = Tuned(target)
    for task in tasks:
        found.choice(task)
    found.close()
    return found.digest


def tuned_model_key(digest: str, shapes: Shapes | None, accuracy: Accuracy) -> str:
    """Of a program in the database: by what of the model its decisions depend on. `digest` is of the model's bytes."""
    given = sorted((name, tuple(map(int, shape))) for name, shape in (shapes or {}).items())
    return hashlib.sha256(f"{digest}\n{given}\n{accuracy}".encode()).hexdigest()


def tuned_trace(
    target: Target, digest: str, shapes: Shapes | None, accuracy: Accuracy, threads: int
) -> "ProgramTrace | None":
    """What tuning has found for the whole program of a model that runs with `threads` threads, if anything."""
    database = default_database()
    if not digest or not database.exists:
        return None
    key = tuned_model_key(digest, shapes, accuracy)
    record = database.program(tuning_scope(target), key, threads)
    database.close()
    if record is None or not record.trace:
        return None
    try:
        found: ProgramTrace = import_module("tilewright.driver.trace").ProgramTrace.parse(record.trace)
        return found
    except UserError as e:  # of another version
        _log.info("what tuning found for the program is not understood any more: %s", e.message)
        return None


def as_tuned(
    target: Target,
    digest: str,
    shapes: Shapes | None,
    accuracy: Accuracy,
    threads: int | None,
    compiled: "Callable[[ProgramTrace | None], T]",
) -> T:
    """What is compiled with the decisions that tuning has found, or without any where there are none that apply."""
    found = tuned_trace(target, digest, shapes, accuracy, default_threads() if threads is None else threads)
    if found is None:
        return compiled(None)
    try:
        made = compiled(found)
    except MultipleProgramsError:
        raise
    except UserError as e:
        _log.warning("what tuning found for the program does not apply any more: %s", e.message)
        return compiled(None)
    _log.info("tuned: the whole program, from the database")
    return made


class Tuned:
    """The choices for one target, and the threads that it ranks for. It remembers which were asked for."""

    def __init__(self, target: Target, database: Database | None = None) -> None:
        self._database = default_database() if database is None else database
        self._scope = tuning_scope(target) if self._database.exists else None
        self._threads = target.machine.threads
        self._found: dict[str, Choice] = {}

    @property
    def digest(self) -> str:
        """Of all choices that were found; empty if there were none."""
        return choices_digest(self._found)

    def choice(self, task: str) -> Choice | None:
        """What was found to be the best for the Func of this key; None if nothing was."""
        if self._scope is None:
            return None
        choice = self._database.choice(self._scope, task, self._threads)
        if choice is not None:
            self._found[task] = choice
        return choice

    def close(self) -> None:
        self._database.close()
