"""Where the boxes of a graph are drawn: in rows by how far they are from the inputs, in an order with few crossings.

    row of a box      one below all that it reads
    order in a row    by the mean place of its neighbours, swept down and up
    place in a row    as near to that mean as its neighbours let it

A line that passes rows has a place of its own in each of them, so that it goes beside boxes and not through them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

WIDTH, HEIGHT = 196.0, 46.0  # of a box
GAP_X, GAP_Y = 18.0, 34.0
_LANE = 8.0  # the width of a line that passes by
_SWEEPS = 6
_MOST_LANES = 6000  # more lines than anybody follows: they are drawn straight

PagePoint: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """The upper left corners of boxes, and the points that lines go through: from (box, box that it reads)."""

    boxes: tuple[PagePoint, ...]
    lines: Mapping[tuple[int, int], tuple[PagePoint, ...]]
    width: float
    height: float


@dataclass(slots=True)
class _Place:
    """A box, or where a line passes a row."""

    row: int
    width: float
    above: list[int]
    below: list[int]
    x: float = 0.0  # of its middle


def lay_out_graph(reads: Sequence[Sequence[int]]) -> DrawnGraph:
    """Of boxes that read others; a box stands behind all that it reads."""
    rows = _rows(reads)
    places = [_Place(row, WIDTH, [], []) for row in rows]
    edges = {(n, source) for n, sources in enumerate(reads) for source in sources if source != n}
    far = sum(rows[n] - rows[s] - 1 for n, s in edges)
    chains: dict[tuple[int, int], list[int]] = {}
    for n, source in sorted(edges):
        chain = [source]
        if far <= _MOST_LANES:
            for row in range(rows[source] + 1, rows[n]):
                places.append(_Place(row, _LANE, [], []))
                chain.append(len(places) - 1)
        chain.append(n)
        for a, b in pairwise(chain):
            places[a].below.append(b)
            places[b].above.append(a)
        chains[n, source] = chain
    order = _ordered(places)
    _set_places(places, order)
    left = min((p.x - p.width / 2 for p in places), default=0.0)
    right = max((p.x + p.width / 2 for p in places), default=0.0)
    corners = [(p.x - left - WIDTH / 2 + GAP_X, _top(p.row)) for p in places[: len(reads)]]

    def through(chain: Sequence[int]) -> tuple[PagePoint, ...]:
        first, *middle, last = chain
        points = [(places[first].x - left + GAP_X, _top(places[first].row) + HEIGHT)]
        for n in middle:
            x, y = places[n].x - left + GAP_X, _top(places[n].row)
            points += [(x, y), (x, y + HEIGHT)]
        return (*points, (places[last].x - left + GAP_X, _top(places[last].row)))

    lines = {edge: through(chain) for edge, chain in chains.items()}
    height = _top(max(rows, default=0)) + HEIGHT + GAP_Y / 2
    return DrawnGraph(tuple(corners), lines, right - left + 2 * GAP_X, height)


def _top(row: int) -> float:
    return GAP_Y / 2 + row * (HEIGHT + GAP_Y)


def _rows(reads: Sequence[Sequence[int]]) -> list[int]:
    rows: list[int] = []
    for n, sources in enumerate(reads):
        rows.append(1 + max((rows[s] for s in sources if s < n), default=-1))
    return rows


def _ordered(places: Sequence[_Place]) -> list[list[int]]:
    """The places of each row, in order."""
    order: list[list[int]] = [[] for _ in range(1 + max((p.row for p in places), default=-1))]
    for n, p in enumerate(places):
        order[p.row].append(n)
    at = {n: float(i) for row in order for i, n in enumerate(row)}

    def settle(row: list[int], neighbours: Callable[[_Place], list[int]]) -> None:
        def mean(n: int) -> float:
            near = neighbours(places[n])
            return sum(at[m] for m in near) / len(near) if near else at[n]

        row.sort(key=mean)
        for i, n in enumerate(row):
            at[n] = float(i)

    for _ in range(_SWEEPS):
        for row in order[1:]:
            settle(row, lambda p: p.above)
        for row in reversed(order[:-1]):
            settle(row, lambda p: p.below)
    return order


def _set_places(places: Sequence[_Place], order: Sequence[list[int]]) -> None:
    for row in order:
        x = 0.0
        for n in row:
            places[n].x = x + places[n].width / 2
            x += places[n].width + GAP_X
    for sweep in range(_SWEEPS):
        is_down = sweep % 2 == 0
        for row in order if is_down else reversed(order):
            wanted = [_wanted(places, places[n], is_down) for n in row]
            _spread(places, row, wanted)


def _wanted(places: Sequence[_Place], p: _Place, is_down: bool) -> float:
    near = (p.above or p.below) if is_down else (p.below or p.above)
    return sum(places[m].x for m in near) / len(near) if near else p.x


def _spread(places: Sequence[_Place], row: Sequence[int], wanted: Sequence[float]) -> None:
    """Between what all want when pushed to the right and when pushed to the left."""
    rightwards, leftwards = [*wanted], [*wanted]
    for i in range(1, len(row)):
        rightwards[i] = max(wanted[i], rightwards[i - 1] + _apart(places, row[i - 1], row[i]))
    for i in reversed(range(len(row) - 1)):
        leftwards[i] = min(wanted[i], leftwards[i + 1] - _apart(places, row[i], row[i + 1]))
    for n, a, b in zip(row, rightwards, leftwards, strict=True):
        places[n].x = (a + b) / 2


def _apart(places: Sequence[_Place], a: int, b: int) -> float:
    return (places[a].width + places[b].width) / 2 + GAP_X
