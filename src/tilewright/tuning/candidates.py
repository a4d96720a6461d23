"""Building candidates on all cores at once, in processes that may be ended at any time (`tilewright.tuning.candidate`).

A batch is handed out point by point, and all of it is waited for: nothing is built while candidates are timed. A
process that dies or takes too long costs the point that it was at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.families.space import KnobValues
from tilewright.support.closing import Closing
from tilewright.support.frames import pack
from tilewright.support.pool import Pool, PoolRequest, ProcessLate, module_command
from tilewright.tuning.candidate import Task
from tilewright.tuning.trial import Candidate, TrialStatus

Point: TypeAlias = tuple[str, KnobValues]  # the name of a rule, and its knobs

_TIMEOUT = 30.0  # seconds for a candidate: they take less than a tenth of one


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A candidate, or why there is none."""

    status: TrialStatus
    candidate: Candidate | None = None
    trace: str = ""
    message: str = ""


class Candidates(Closing):
    """Up to `limit` processes. Use it as a context manager: they end with it."""

    def __init__(self, limit: int, timeout: float = _TIMEOUT) -> None:
        self._pool, self._timeout = (
            Pool(module_command("tilewright.tuning.candidate"), max(1, limit)),
            timeout,
        )
        self._tasks: dict[str, bytes] = {}

    def close(self) -> None:
        self._pool.close()

    @property
    def pids(self) -> list[int]:
        return self._pool.pids

    def start(self) -> None:
        """Begin to start the processes, so that they are there when they are needed."""
        self._pool.start(self._pool.limit)

    def wait_until_ready(self) -> None:
        self._pool.wait_until_ready()

    def build(self, task: Task, points: Sequence[Point]) -> list[Built]:
        """One for each of `points`."""
        return self.build_all([(task, p) for p in points])

    def build_all(self, wanted: Sequence[tuple[Task, Point]]) -> list[Built]:
        """The same of several tasks."""
        for task, _ in wanted:
            if task.key not in self._tasks:
                self._tasks[task.key] = task.packet()
        return self.build_packets([(task.key, self._tasks[task.key], point) for task, point in wanted])

    def build_packets(self, wanted: Sequence[tuple[str, bytes, Point]]) -> list[Built]:
        """The same of tasks that are given by their keys and packets."""
        self.start()
        requests: list[PoolRequest] = []
        for key, packet, (rule, decisions) in wanted:
            body = pack({"task": key, "rule": rule, "decisions": dict(decisions)})
            requests.append(self._pool.submit(body, self._timeout, packet))
        self._pool.wait(*requests)
        return [self._built(r) for r in requests]

    def _built(self, request: PoolRequest) -> Built:
        if isinstance(request.failure, ProcessLate):
            return Built(TrialStatus.TIMEOUT, message=f"it was not built in {self._timeout:g} s")
        if request.answer is None:
            return Built(TrialStatus.BUILD_ERROR, message=str(request.failure))
        head, blobs = request.answer
        status = TrialStatus(head["status"])
        if status is not TrialStatus.OK:
            return Built(status, message=head["message"])
        return Built(status, Candidate.of(head["candidate"], blobs), head["trace"])
