"""Timing candidates in a process that may be ended at any time (`tilewright.tuning.trial`).

Whatever a candidate does, `run` returns: with its times, or with the way in which it failed. The process is kept from
one candidate to the next; after a crash or a kill a new one is started and the experiment set up again.
"""

import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.support.closing import Closing
from tilewright.support.errors import UserError
from tilewright.support.frames import pack
from tilewright.support.pool import Pool, PoolRequest, ProcessDied, ProcessLate, describe_exit, module_command
from tilewright.support.turns import Series
from tilewright.tuning.trial import Candidate, Experiment, TrialStatus

_log = logging.getLogger("tilewright")

_SETUP_SECONDS = 60.0  # to set up an experiment, on a busy machine
_CRASHES = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGSYS,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`seconds` is the quickest sample; `message` says what went wrong."""

    status: TrialStatus
    seconds: float = float("inf")
    message: str = ""


class Trials(Closing):
    """One experiment at a time. Use it as a context manager: its process ends with it."""

    def __init__(self) -> None:
        self._pool = Pool(module_command("tilewright.tuning.trial"))
        self._setup: bytes = b""
        self._prepared: list[int] = []  # the process that has the experiment

    def close(self) -> None:
        self._pool.close()

    @property
    def pid(self) -> int | None:
        return next(iter(self._pool.pids), None)

    def start(self) -> None:
        """Begin to start the process, so that it is there when it is needed."""
        self._pool.start(1)

    def prepare(self, experiment: Experiment, expected: Sequence[bytes] = ()) -> None:
        """Run what follows on these tensors."""
        self._setup = experiment.packet(expected)
        self._set_up()

    def _set_up(self) -> None:
        request = self._answered(self._setup, _SETUP_SECONDS)
        if isinstance(request.failure, ProcessLate):
            raise UserError("the process for measurements has not become ready", hint="is the machine busy?")
        if request.answer is None:
            raise UserError(f"the process for measurements cannot be started: {request.failure}")
        head, _ = request.answer
        if head["status"] != TrialStatus.OK.value:
            raise UserError(f"the tensors of a kernel cannot be set up for measurements: {head['message']}")
        self._prepared = self._pool.pids

    def _answered(self, body: bytes, timeout: float) -> PoolRequest:
        request = self._pool.submit(body, timeout)
        self._pool.wait(request)
        return request

    def run(self, candidate: Candidate, *, runs: int, slow: float, timeout: float) -> Outcome:
        """`slow`: a first run that takes longer is the only one."""
        head = {"do": "time", "runs": runs, "slow": min(slow, 1e9), "candidate": candidate.head()}
        outcome, said, _ = self._ask(pack(head, candidate.objects), timeout)
        return Outcome(TrialStatus.OK, min(said["seconds"])) if outcome is None else outcome

    def outputs(self, candidate: Candidate, timeout: float) -> tuple[Outcome, list[bytes]]:
        """Run once, without comparing: what it makes is to be the reference."""
        head = {"do": "outputs", "candidate": candidate.head()}
        outcome, said, results = self._ask(pack(head, candidate.objects), timeout)
        return (Outcome(TrialStatus.OK, said["seconds"][0]), results) if outcome is None else (outcome, [])

    def compare(
        self, candidates: Sequence[Candidate], *, rounds: int, runs: int, timeout: float
    ) -> list[Series] | Outcome:
        """The times of each in rounds that stand side by side; or how that failed."""
        head = {
            "do": "compare",
            "rounds": rounds,
            "runs": runs,
            "candidates": [c.head() for c in candidates],
        }
        blobs = [o for c in candidates for o in c.objects]
        outcome, said, _ = self._ask(pack(head, blobs), timeout)
        if outcome is not None:
            return outcome
        return [Series(tuple(map(tuple, rounds))) for rounds in said["rounds"]]

    def _ask(self, body: bytes, timeout: float) -> tuple[Outcome | None, dict[str, Any], list[bytes]]:
        """The failure, or None and what was answered."""
        if self._pool.pids != self._prepared or not self._prepared:
            self._set_up()
        request = self._answered(body, timeout)
        if isinstance(request.failure, ProcessLate):
            return Outcome(TrialStatus.TIMEOUT, message=f"it ran for more than {timeout:.3g} s"), {}, []
        if isinstance(request.failure, ProcessDied):
            return died(request.failure.code), {}, []
        if request.answer is None:
            return Outcome(TrialStatus.RUN_ERROR, message=str(request.failure)), {}, []
        head, blobs = request.answer
        status = TrialStatus(head["status"])
        if status is TrialStatus.OK:
            return None, head, blobs
        return Outcome(status, message=head.get("message", "")), head, blobs


def died(code: int) -> Outcome:
    """How a process that ended by itself has failed."""
    text = describe_exit(code)
    status = TrialStatus.RUN_ERROR if code >= 0 or -code in _CRASHES else TrialStatus.KILLED
    return Outcome(status, message=text)
