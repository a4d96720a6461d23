"""Building candidates on all cores at once, in processes that may be ended at any time (`tilewright.candidate`).

A batch is handed out point by point, and all of it is waited for: nothing is built while candidates are timed. A
process that dies or takes too long costs the point that it was at.
"""

import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeAlias

from tilewright.candidate import Task
from tilewright.child import Child, ChildDied
from tilewright.families.space import Decisions
from tilewright.support.frames import pack, unpack
from tilewright.trial import Candidate, Status

Point: TypeAlias = tuple[str, Decisions]  # the name of a rule, and its knobs

_TIMEOUT = 30.0  # seconds for a candidate: they take less than a tenth of one
_START_SECONDS = 60.0  # to start a process, on a busy machine
_AHEAD = 2  # points that a process holds: the next is there when it has finished one


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A candidate, or why there is none."""

    status: Status
    candidate: Candidate | None = None
    trace: str = ""
    message: str = ""


@dataclass(slots=True, eq=False)
class _Seat:
    child: Child
    known: set[str] = field(default_factory=set[str])  # tasks that it was told of
    points: deque[int] = field(default_factory=deque[int])
    since: float = 0.0
    has_answered: bool = False


class Candidates:
    """Up to `limit` processes. Use it as a context manager: they end with it."""

    def __init__(self, limit: int, timeout: float = _TIMEOUT) -> None:
        self._limit, self._timeout = max(1, limit), timeout
        self._seats: list[_Seat] = []

    def __enter__(self) -> "Candidates":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        while self._seats:
            self._seats.pop().child.kill()

    @property
    def pids(self) -> list[int]:
        return [s.child.pid for s in self._seats]

    def start(self) -> None:
        """Begin to start the processes, so that they are there when they are needed."""
        while len(self._seats) < self._limit:
            self._seats.append(_Seat(Child("tilewright.candidate")))

    def build(self, task: Task, points: Sequence[Point]) -> list[Built]:
        """One for each of `points`."""
        done: dict[int, Built] = {}
        waiting = deque(range(len(points)))
        try:
            while len(done) < len(points):
                self.start()
                for seat in list(self._seats):
                    self._hand_out(seat, task, points, waiting, done)
                busy = [s for s in self._seats if s.points]
                if busy:
                    select.select([s.child.source for s in busy], [], [], 0.5)
                for seat in busy:
                    self._collect(seat, waiting, done)
        except BaseException:  # Ctrl-C: answers that are still to come must not be taken for later ones
            self.close()
            raise
        return [done[n] for n in range(len(points))]

    def _hand_out(
        self, seat: _Seat, task: Task, points: Sequence[Point], waiting: deque[int], done: dict[int, Built]
    ) -> None:
        try:
            if waiting and task.key not in seat.known:
                seat.child.send(task.packet())
                seat.known.add(task.key)
            while waiting and len(seat.points) < _AHEAD:
                rule, decisions = points[waiting[0]]
                seat.child.send(pack({"task": task.key, "rule": rule, "decisions": dict(decisions)}))
                if not seat.points:
                    seat.since = time.monotonic()
                seat.points.append(waiting.popleft())
        except ChildDied as e:
            self._lose(seat, waiting, done, Built(Status.BUILD_ERROR, message=str(e)))

    def _collect(self, seat: _Seat, waiting: deque[int], done: dict[int, Built]) -> None:
        try:
            while seat.points and (answer := seat.child.try_receive()) is not None:
                done[seat.points.popleft()] = _built(answer)
                seat.since = time.monotonic()
                seat.has_answered = True
        except ChildDied as e:
            self._lose(seat, waiting, done, Built(Status.BUILD_ERROR, message=str(e)))
            return
        limit = self._timeout if seat.has_answered else self._timeout + _START_SECONDS
        if seat.points and time.monotonic() - seat.since > limit:
            late = Built(Status.TIMEOUT, message=f"it was not built in {self._timeout:g} s")
            self._lose(seat, waiting, done, late)

    def _lose(self, seat: _Seat, waiting: deque[int], done: dict[int, Built], why: Built) -> None:
        """The point it was at has failed; what it had not begun goes back."""
        self._seats.remove(seat)
        seat.child.kill()
        if seat.points:
            done[seat.points.popleft()] = why
        elif waiting:  # not even told of the task: give up on a point, so that this ends
            done[waiting.popleft()] = why
        waiting.extendleft(reversed(seat.points))


def _built(answer: bytes) -> Built:
    head, blobs = unpack(answer)
    status = Status(head["status"])
    if status is not Status.OK:
        return Built(status, message=head["message"])
    return Built(status, Candidate.of(head["candidate"], blobs), head["trace"])
