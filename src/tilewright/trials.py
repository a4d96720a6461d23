"""Timing candidates in a process that may be ended at any time (`tilewright.trial`).

Whatever a candidate does, `run` returns: with its times, or with the way in which it failed. The process is kept from
one candidate to the next; after a crash or a kill a new one is started and the experiment set up again.
"""

import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tilewright.child import Child, ChildDied, describe_exit
from tilewright.support.errors import UserError
from tilewright.support.frames import pack, unpack
from tilewright.trial import Candidate, Experiment, Status

_log = logging.getLogger("tilewright")

_START_SECONDS = 60.0  # to start a process and to set up an experiment, on a busy machine
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

    status: Status
    seconds: float = float("inf")
    message: str = ""


class Trials:
    """One experiment at a time. Use it as a context manager: its process ends with it."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._setup: bytes = b""

    def __enter__(self) -> "Trials":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            child.kill()

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Begin to start the process, so that it is there when it is needed."""
        if self._child is None:
            self._child = Child("tilewright.trial")

    def prepare(self, experiment: Experiment, expected: Sequence[bytes] = ()) -> None:
        """Run what follows on these tensors."""
        self._setup = experiment.packet(expected)
        self._set_up()

    def _set_up(self) -> Child:
        self.start()
        assert self._child is not None
        try:
            self._child.send(self._setup)
            answer = self._child.receive(_START_SECONDS)
        except ChildDied as e:
            self.close()
            raise UserError(f"the process for measurements cannot be started: {e}") from None
        if answer is None:
            self.close()
            raise UserError("the process for measurements has not become ready", hint="is the machine busy?")
        head, _ = unpack(answer)
        if head["status"] != Status.OK.value:
            raise UserError(f"the tensors of a kernel cannot be set up for measurements: {head['message']}")
        return self._child

    def run(self, candidate: Candidate, *, runs: int, slow: float, timeout: float) -> Outcome:
        """`slow`: a first run that takes longer is the only one."""
        head = {"do": "time", "runs": runs, "slow": min(slow, 1e9), "candidate": candidate.head()}
        outcome, said, _ = self._ask(pack(head, candidate.objects), timeout)
        return Outcome(Status.OK, min(said["seconds"])) if outcome is None else outcome

    def outputs(self, candidate: Candidate, timeout: float) -> tuple[Outcome, list[bytes]]:
        """Run once, without comparing: what it makes is to be the reference."""
        head = {"do": "outputs", "candidate": candidate.head()}
        outcome, said, results = self._ask(pack(head, candidate.objects), timeout)
        return (Outcome(Status.OK, said["seconds"][0]), results) if outcome is None else (outcome, [])

    def compare(
        self, candidates: Sequence[Candidate], *, rounds: int, runs: int, timeout: float
    ) -> list[list[float]] | Outcome:
        """Samples of each in rounds that stand side by side; or how that failed."""
        head = {
            "do": "compare",
            "rounds": rounds,
            "runs": runs,
            "candidates": [c.head() for c in candidates],
        }
        blobs = [o for c in candidates for o in c.objects]
        outcome, said, _ = self._ask(pack(head, blobs), timeout)
        return said["seconds"] if outcome is None else outcome

    def _ask(self, body: bytes, timeout: float) -> tuple[Outcome | None, dict[str, Any], list[bytes]]:
        """The failure, or None and what was answered."""
        child = self._set_up() if self._child is None else self._child
        try:
            child.send(body)
            answer = child.receive(timeout)
        except ChildDied as e:
            self.close()
            return _death(e.code), {}, []
        except BaseException:  # Ctrl-C: the answer that is still to come must not be taken for the next one's
            self.close()
            raise
        if answer is None:
            self.close()
            return Outcome(Status.TIMEOUT, message=f"it ran for more than {timeout:.3g} s"), {}, []
        head, blobs = unpack(answer)
        status = Status(head["status"])
        if status is Status.OK:
            return None, head, blobs
        return Outcome(status, message=head.get("message", "")), head, blobs


def _death(code: int) -> Outcome:
    text = describe_exit(code)
    status = Status.RUN_ERROR if code >= 0 or -code in _CRASHES else Status.KILLED
    return Outcome(status, message=text)
