"""What tuning has found, for compilation to use: a Func's choice in the database becomes its schedule.

A choice is the name of a rule and its decisions. If the rule no longer fits, or a step refuses, the Func is scheduled
as it would be without: a choice can make code slower or faster, never wrong.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tilewright.families.space import Space
from tilewright.keys import rules_digest, target_digest
from tilewright.schedule.schedule import Schedule
from tilewright.search.database import Choice, Database, Scope, choices_digest, default_database
from tilewright.search.default import spaces
from tilewright.support.errors import UserError
from tilewright.target.target import Target
from tilewright.tir.func import Func

_log = logging.getLogger("tilewright")

Spaces: TypeAlias = Callable[[Func, Target, frozenset[str]], Sequence[Space]]


def tuning_scope(target: Target) -> Scope:
    """The rows of the database that count for a target, with the rules as they are now."""
    return Scope(target_digest(target), rules_digest())


class Tuned:
    """The choices for one target. It remembers which were asked for."""

    def __init__(self, target: Target, database: Database | None = None, spaces: Spaces = spaces) -> None:
        self._target, self._spaces = target, spaces
        self._database = default_database() if database is None else database
        self._scope = tuning_scope(target) if self._database.exists else None
        self._found: dict[str, Choice] = {}
        self.used: set[str] = set()  # tasks whose choice became their schedule

    @property
    def digest(self) -> str:
        """Of all choices that were found; empty if there were none."""
        return choices_digest(self._found)

    def schedule(self, task: str, func: Func, constants: frozenset[str]) -> Schedule | None:
        """The schedule that was found to be the best for `func`, whose key is `task`; None if there is none."""
        if self._scope is None:
            return None
        choice = self._database.choice(self._scope, task)
        if choice is None:
            return None
        self._found[task] = choice
        try:
            space = next(
                (s for s in self._spaces(func, self._target, constants) if s.family == choice.rule), None
            )
            if space is None:
                return None
            schedule = space.build(choice.decisions)
        except (UserError, KeyError) as e:
            _log.debug("%s: what tuning found does not apply: %s", func.name, e)
            return None
        self.used.add(task)
        return schedule

    def close(self) -> None:
        self._database.close()
