"""The account of a tuning in the database: its budget and what of it is used, so that another process can go on.

A row is appended whenever something was measured. A process that is killed leaves the last: `resume` reads it. What was
measured is in rows of its own, and found by the content of kernels.
"""

import json
import uuid
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from tilewright.search.database import Database, RecordScope, default_database
from tilewright.search.program_records import DONE, RUNNING, TuningRecord
from tilewright.support.budget import DEFAULT_BUDGET, parse_budget
from tilewright.support.errors import Hint, UserError

_LARGER = Hint("give a larger budget", command="give a larger --budget")
_WITHOUT = Hint("tune without resume", command="leave out --resume")


def open_tuning_database(where: Database | str | Path | None, *, must_exist: bool = False) -> Database:
    """That of the environment, or the one given. A file that was named must be usable, or there is a UserError; one of
    the environment that is not is reported, and done without.
    """
    if where is None or isinstance(where, Database):
        database = default_database() if where is None else where
    else:
        database = Database(Path(where))
    if must_exist and not database.exists:
        place = "off (TILEWRIGHT_DB)" if database.path is None else f"not there: {database.path}"
        raise UserError(f"there is nothing to resume: the tuning database is {place}", hint=_WITHOUT)
    if where is not None:
        database.check()
    return database


class TuningAccount:
    """Of the tuning of these tasks (calls of each, by its key). `begin` or `resume` first."""

    def __init__(
        self, database: Database, scope: RecordScope, tasks: Mapping[str, int], threads: int
    ) -> None:
        self._database, self._scope, self._threads = database, scope, threads
        self._model = sha256(json.dumps(sorted(tasks.items())).encode()).hexdigest()
        self._tuning = uuid.uuid4().hex
        self.budget = 0.0  # seconds, of the whole tuning
        self.used = 0.0  # seconds of it, by processes before this one
        self.trials = 0  # that these have made

    @property
    def left(self) -> float:
        """Seconds that this process has."""
        return self.budget - self.used

    def begin(self, budget: float | None) -> None:
        self.budget = parse_budget(DEFAULT_BUDGET) if budget is None else budget

    def resume(self, budget: float | None, trials: int | None) -> None:
        """Go on with the last tuning of the same. UserError if there is none, or nothing is left of it."""
        last = self._database.last_tuning(self._scope, self._model, self._threads)
        if last is None:
            raise UserError(
                "there is nothing to resume: no tuning of these kernels, for this machine and"
                f" {self._threads} thread{'s' if self._threads > 1 else ''}, is in the database",
                where=str(self._database.path),
                hint=_WITHOUT,
            )
        if last.status == DONE:
            raise UserError(
                f"there is nothing to resume: the last tuning has ended ({last.used:.0f} s of {last.budget:.0f} s)",
                where=str(self._database.path),
                hint=_WITHOUT,
            )
        self._tuning, self.used, self.trials = last.tuning, last.used, last.trials
        self.budget = last.budget if budget is None else budget
        if self.left <= 0:
            raise UserError(
                f"there is nothing to resume: {self.used:.0f} s of {self.budget:.0f} s are used", hint=_LARGER
            )
        if trials is not None and self.trials >= trials:
            raise UserError(
                f"there is nothing to resume: {self.trials} of {trials} trials were made",
                hint=Hint("allow more trials", command="give a larger --trials"),
            )

    def note(self, elapsed: float, trials: int, status: str = RUNNING) -> None:
        """This process has spent `elapsed` seconds, and made `trials`."""
        record = TuningRecord(
            self._tuning,
            self._model,
            self._threads,
            self.budget,
            self.used + elapsed,
            self.trials + trials,
            status,
        )
        self._database.record_tuning(self._scope, record)
