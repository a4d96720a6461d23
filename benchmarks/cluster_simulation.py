"""Tuning on many nodes as a simulation of events: nodes that build and time, and one driver that does the rest.

The driver proposes candidates, sends them to builders, hands what was built to runners, and appends what they say to
the database. It does one thing at a time. What each takes is given (`Costs`).
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from random import Random


@unique
class Mode(Enum):
    """How batches follow each other, and how rows are appended."""

    AS_IS = "a batch for all nodes, a transaction a row"
    BATCHED = "a batch for all nodes, a transaction a batch"
    ALONE = "each node on its own, a transaction a row"
    ALONE_BATCHED = "each node on its own, a transaction an answer"

    @property
    def is_together(self) -> bool:
        return self in (Mode.AS_IS, Mode.BATCHED)

    @property
    def is_batched(self) -> bool:
        return self in (Mode.BATCHED, Mode.ALONE_BATCHED)


@dataclass(frozen=True, slots=True)
class Costs:
    """In seconds, as measured. `build` and `time` are samples: one candidate on one core, and one part on a runner. The
    others are the driver's.
    """

    part: int  # candidates that a runner times together
    build: Sequence[float]
    time: Sequence[float]
    propose: float  # a candidate
    send_build: float  # a message to a builder and its answer, with half a part
    send_part: float  # a message to a runner and its answer
    row: float  # in a transaction of its own
    transaction: float  # of many rows
    row_of_many: float  # in it

    def append(self, rows: int, is_batched: bool) -> float:
        return self.transaction + rows * self.row_of_many if is_batched else rows * self.row


@dataclass(frozen=True, slots=True)
class Simulated:
    """`runners` is the share of the time in which a runner times, `driver` the same of the driver, by what it does."""

    trials_a_second: float
    runners: float
    driver: dict[str, float]


@dataclass(slots=True)
class Clock:
    """What happens next."""

    now: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(
        default_factory=list[tuple[float, int, Callable[[], None]]]
    )
    _count: int = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, action))

    def run(self) -> None:
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()


@dataclass(slots=True)
class Driver:
    """Does one thing at a time."""

    clock: Clock
    busy: defaultdict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    _waiting: deque[tuple[str, float, Callable[[], None]]] = field(
        default_factory=deque[tuple[str, float, Callable[[], None]]]
    )
    _is_busy: bool = False

    def do(self, kind: str, seconds: float, then: Callable[[], None], *, is_next: bool = True) -> None:
        """What follows from what it does now comes next, answers of nodes in the order in which they arrive."""
        (self._waiting.appendleft if is_next else self._waiting.append)((kind, seconds, then))
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        if not self._waiting:
            self._is_busy = False
            return
        self._is_busy = True
        kind, seconds, then = self._waiting.popleft()
        self.busy[kind] += seconds

        def end() -> None:
            then()
            self._next()

        self.clock.after(seconds, end)


class _Run:
    """`batches` of each node."""

    def __init__(self, nodes: int, cores: int, costs: Costs, mode: Mode, batches: int, seed: int) -> None:
        self.nodes, self.cores, self.costs, self.mode = nodes, cores, costs, mode
        self.left = batches if mode.is_together else batches * nodes
        self.rng = Random(seed)
        self.clock = Clock()
        self.driver = Driver(self.clock)
        self.trials, self.timed = 0, 0.0

    def result(self) -> Simulated:
        if self.mode.is_together:
            self.begin_together()
        else:
            for _ in range(self.nodes):
                self.begin_alone()
        self.clock.run()
        seconds = self.clock.now
        driver = {kind: busy / seconds for kind, busy in self.driver.busy.items()}
        return Simulated(self.trials / seconds, self.timed / seconds / self.nodes, driver)

    def build_seconds(self, count: int) -> float:
        """Of so many candidates on the cores of a node: each takes the next."""
        free = [0.0] * self.cores
        for _ in range(count):
            heapq.heapreplace(free, free[0] + self.rng.choice(self.costs.build))
        return max(free)

    def time_seconds(self) -> float:
        seconds = self.rng.choice(self.costs.time)
        self.timed += seconds
        return seconds

    # A message is half of its cost before, and half of it after what it asks for.

    def ask(self, cost: float, seconds: Callable[[], float], then: Callable[[], None]) -> None:
        def answered() -> None:
            self.driver.do("messages", cost / 2, then, is_next=False)

        self.driver.do("messages", cost / 2, lambda: self.clock.after(seconds(), answered))

    # ---------------------------------------------------------------------------------------- a batch for all nodes

    def begin_together(self) -> None:
        if not self.left:
            return
        self.left -= 1
        self.driver.do("search", self.costs.propose * self.costs.part * self.nodes, self.build_together)

    def build_together(self) -> None:
        """Two chunks for each node, the second to whoever has answered the first."""
        first, second = self.costs.part - self.costs.part // 2, self.costs.part // 2
        chunks = deque([first] * self.nodes + [second] * self.nodes)
        unanswered = len(chunks)

        def hand_out() -> None:
            count = chunks.popleft()
            self.ask(self.costs.send_build, lambda: self.build_seconds(count), answered)

        def answered() -> None:
            nonlocal unanswered
            unanswered -= 1
            if chunks:
                hand_out()
            if not unanswered:
                self.time_together()

        for _ in range(self.nodes):
            hand_out()

    def time_together(self) -> None:
        unanswered = self.nodes

        def answered() -> None:
            nonlocal unanswered
            unanswered -= 1
            if not unanswered:
                self.append(self.costs.part * self.nodes, self.begin_together)

        for _ in range(self.nodes):
            self.ask(self.costs.send_part, self.time_seconds, answered)

    def append(self, rows: int, then: Callable[[], None]) -> None:
        self.trials += rows
        self.driver.do("database", self.costs.append(rows, self.mode.is_batched), then)

    # --------------------------------------------------------------------------------------- each node on its own

    def begin_alone(self) -> None:
        if not self.left:
            return
        self.left -= 1
        part, costs = self.costs.part, self.costs

        def build() -> None:
            self.ask(2 * costs.send_build, lambda: self.build_seconds(part), time)

        def time() -> None:
            self.ask(costs.send_part, self.time_seconds, lambda: self.append(part, self.begin_alone))

        self.driver.do("search", costs.propose * part, build)


def simulate(
    nodes: int, cores: int, costs: Costs, mode: Mode, *, batches: int = 8, seed: int = 0
) -> Simulated:
    """So many nodes, each of which takes part in so many batches."""
    return _Run(nodes, cores, costs, mode, batches, seed).result()
