"""Actors of a cluster that do the same work, and the requests that are handed to them.

An actor is lost if its node is, if it fails, or if it does not answer for a long time. That costs the request that it
was at, which goes to another, and the actor itself: it is asked for nothing any more. Whoever handed out the requests
finds answers to all of them, or fewer if everybody is lost.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from tilewright.support.errors import Hint, UserError

_log = logging.getLogger("tilewright")
T = TypeVar("T")

PATIENCE = 600.0  # seconds for one request: processes of an actor are ended long before
_CHANCES = 3  # actors that a request may cost: it could be to blame
_RESUME = Hint(
    "what was measured is kept: tune with resume=True when the nodes are back",
    command="what was measured is kept: --resume when the nodes are back",
)


class NobodyLeftError(UserError):
    """All actors that do some work are lost."""


@dataclass(frozen=True, slots=True)
class NodeProblem:
    """The answer of an actor that cannot do what it was asked for."""

    message: str


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """An actor on a node. `seen` is for whoever talks to it: what it was told already."""

    actor: Any
    node: str  # for messages
    cores: int = 1
    is_here: bool = False  # on the node of this process
    seen: set[str] = field(default_factory=set[str])


Ask: TypeAlias = Callable[[Member], Any]  # a method of its actor, called: a reference to the answer


@dataclass(slots=True, eq=False)
class _Asked:
    member: Member
    number: int
    since: float


class Crew:
    """`does` says what its members do, `ray` is the module."""

    def __init__(self, ray: Any, does: str, patience: float = PATIENCE) -> None:
        self._ray, self._does, self._patience = ray, does, patience
        self.members: list[Member] = []
        self.lost: list[str] = []  # why, of each member that was

    def check(self) -> None:
        """NobodyLeftError if everybody is lost."""
        if not self.members:
            last = f"; the last: {self.lost[-1]}" if self.lost else ""
            raise NobodyLeftError(f"all nodes of the cluster that {self._does} are lost{last}", hint=_RESUME)

    def spread(self, requests: Sequence[T], ask: Callable[[Member, T], Any]) -> dict[int, Any]:
        """Hand each request to one of the members: the answers by number. There is none to a request that has cost
        several members, nor to those that were left when all were lost.
        """
        waiting, chances = deque(range(len(requests))), [_CHANCES] * len(requests)
        busy: dict[Any, _Asked] = {}
        found: dict[int, Any] = {}
        while True:
            at_work = {a.member for a in busy.values()}
            for member in [m for m in self.members if m not in at_work]:
                if not waiting:
                    break
                number = waiting.popleft()
                busy[ask(member, requests[number])] = _Asked(member, number, time.monotonic())
            if not busy:
                return found
            for asked, answer in self._answers(busy, self._patience):
                if not isinstance(answer, NodeProblem):
                    found[asked.number] = answer
                    continue
                self.lose(asked.member, answer.message)
                chances[asked.number] -= 1
                if chances[asked.number]:
                    waiting.appendleft(asked.number)

    def ask_all(self, ask: Ask, patience: float | None = None, late: str = "") -> dict[Member, Any]:
        """Ask all members the same: the answers of those who are left. `late` says what it means if one is."""
        patience = self._patience if patience is None else patience
        busy = {ask(m): _Asked(m, n, time.monotonic()) for n, m in enumerate(self.members)}
        found: dict[Member, Any] = {}
        while busy:
            for asked, answer in self._answers(busy, patience, late):
                if isinstance(answer, NodeProblem):
                    self.lose(asked.member, answer.message)
                else:
                    found[asked.member] = answer
        return found

    def _answers(
        self, busy: dict[Any, _Asked], patience: float, late: str = ""
    ) -> Iterator[tuple[_Asked, Any]]:
        """Wait for some, and take them out of `busy`."""
        left = min(a.since for a in busy.values()) + patience - time.monotonic()
        ready, _ = self._ray.wait(list(busy), num_returns=1, timeout=max(0.0, left))
        for reference in ready:
            yield busy.pop(reference), self._answer(reference)
        now = time.monotonic()
        for reference in [r for r, a in busy.items() if now - a.since >= patience]:
            why = f"it has not answered in {patience:g} s{f': {late}' if late else ''}"
            yield busy.pop(reference), NodeProblem(why)

    def _answer(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as e:
            return NodeProblem(_first_line(e))

    def lose(self, member: Member, why: str) -> None:
        """It is asked for nothing any more."""
        if member not in self.members:
            return
        self.dismiss(member)
        self.lost.append(f"{member.node}: {why}")
        _log.warning(
            "%s is lost: %s; %d of the nodes that %s are left",
            member.node,
            why,
            len(self.members),
            self._does,
        )

    def dismiss(self, member: Member) -> None:
        self.members.remove(member)
        self._ray.kill(member.actor)

    def close(self) -> None:
        for member in list(self.members):
            self.dismiss(member)


def _first_line(error: BaseException) -> str:
    """Ray's errors go on with what else may have happened, or with a traceback whose last line is the reason."""
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {cause}"
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
