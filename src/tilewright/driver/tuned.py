"""What tuning has found, for compilation to use: a Func's choice in the database becomes its schedule.

A choice is the name of a family and the values of its knobs. If the family no longer fits, or a step refuses, the Func
is scheduled as it would be without: a choice can make code slower or faster, never wrong. So one that was made with
other rules (a stale one) is used too, until it is tuned again.
"""

from collections.abc import Iterable

from tilewright.driver.keys import rules_digest, target_digest
from tilewright.search.database import Choice, Database, RecordScope, choices_digest, default_database
from tilewright.target.target import Target


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
