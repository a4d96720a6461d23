"""The cheapest choice of one of two for each of many things, where some pairs have a cost that depends on both.

    cost = Σ alone[v][x(v)] + Σ pairs[u, v][x(u)][x(v)]            x(v) is 0 or 1

The choices are the two sides of a cut of a network whose edges weigh what it costs to be on different sides; the
cheapest cut is a largest flow. That is exact as long as no pair is cheaper apart than together on average; such a pair
counts as one that does not care whether it is apart. Of equally cheap choices the one with the most 1s is taken.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

Two: TypeAlias = tuple[float, float]
Table: TypeAlias = tuple[Two, Two]

_UNIT = 1e-12  # seconds, given: costs are whole numbers of it, so that equal costs are equal


def cheapest(alone: Sequence[Two], pairs: Mapping[tuple[int, int], Table]) -> list[int]:
    """The choice for each of the things, which are numbered as in `alone`. Costs are in seconds."""
    more = [_units(one) - _units(zero) for zero, one in alone]
    tables = (
        (u, v, _units(both_0), _units(only_v), _units(only_u), _units(both_1))
        for (u, v), ((both_0, only_v), (only_u, both_1)) in pairs.items()
    )
    return cheapest_of_whole(more, tables)


def cheapest_of_whole(more: Sequence[int], pairs: Iterable[tuple[int, int, int, int, int, int]]) -> list[int]:
    """The same of costs that are whole numbers: `more` is what 1 costs more than 0. Of a pair, there are both things
    and what it costs if both are 0, only the second is 1, only the first is 1, and both are 1.
    """
    count, prefers = len(more), list(more)
    network = _Network(count + 2)
    for u, v, a, b, c, d in pairs:
        apart = b + c - a - d
        # a + (c - a)·x(u) + (d - c)·x(v) + apart·(1 - x(u))·x(v)
        if apart < 0:  # shared by both, so that neither is preferred for being named first
            c -= apart // 2
            apart = 0
        prefers[u] += c - a
        prefers[v] += d - c
        network.add(v, u, apart)
    source, sink = count, count + 1
    for v, dearer in enumerate(prefers):
        if dearer > 0:
            network.add(v, sink, dearer)
        else:
            network.add(source, v, -dearer)
    network.fill(source, sink)
    zeros = network.reaching(sink)
    return [0 if v in zeros else 1 for v in range(count)]


def _units(cost: float) -> int:
    return round(cost / _UNIT)


class _Network:
    """Edges with the flow that they can still take. Edge n ^ 1 goes the other way along edge n."""

    def __init__(self, nodes: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(nodes)]
        self._to: list[int] = []
        self._left: list[int] = []

    def add(self, tail: int, head: int, capacity: int) -> None:
        if capacity <= 0:
            return
        for node, other, left in ((tail, head, capacity), (head, tail, 0)):
            self._edges[node].append(len(self._to))
            self._to.append(other)
            self._left.append(left)

    def fill(self, source: int, sink: int) -> None:
        """Send as much as can be sent, along shortest paths first."""
        while True:
            level = self._levels(source)
            if sink not in level:
                return
            self._block(source, sink, level)

    def _levels(self, source: int) -> dict[int, int]:
        """How many edges away from the source each node is that something can be sent to."""
        level, queue = {source: 0}, deque([source])
        while queue:
            node = queue.popleft()
            for e in self._edges[node]:
                if self._left[e] and self._to[e] not in level:
                    level[self._to[e]] = level[node] + 1
                    queue.append(self._to[e])
        return level

    def _block(self, source: int, sink: int, level: dict[int, int]) -> None:
        """Send along paths that go one level further with each edge, until there is none."""
        begin = [0] * len(self._edges)  # of each node, the first edge that may still lead on
        path: list[int] = []
        while True:
            node = self._to[path[-1]] if path else source
            if node == sink:
                sent = min(self._left[e] for e in path)
                for e in path:
                    self._left[e] -= sent
                    self._left[e ^ 1] += sent
                path.clear()
                continue
            edges = self._edges[node]
            while begin[node] < len(edges):
                e = edges[begin[node]]
                if self._left[e] and level.get(self._to[e]) == level[node] + 1:
                    break
                begin[node] += 1
            if begin[node] < len(edges):
                path.append(edges[begin[node]])
            elif path:
                begin[self._to[path.pop() ^ 1]] += 1
            else:
                return

    def reaching(self, sink: int) -> set[int]:
        """The nodes from which more could be sent to the sink, and the sink."""
        found, queue = {sink}, deque([sink])
        while queue:
            node = queue.popleft()
            for e in self._edges[node]:
                if self._left[e ^ 1] and self._to[e] not in found:
                    found.add(self._to[e])
                    queue.append(self._to[e])
        return found
