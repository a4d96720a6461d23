"""The cheapest labels of many variables, where some pairs have a cost that depends on both.

    cost = Σ alone[v][x(v)] + Σ pairs[u, v][x(u)][x(v)]            x(v) is one of the labels 0, 1, … of v

Every variable may have a number of labels of its own; what cannot be costs `inf`. Variables that can have one label
only become costs of those around them. Of what is connected then, variables are eliminated one by one: each is replaced
by a table of what it costs at best, for all labels of those that it meets. That is exact, and quick as long as tables
stay small, as in chains, trees and residuals.

Where they do not, labels are improved from several starts by moves that never make them worse: each variable keeps its
label or takes a proposed one, all at once, by a cut (`search/cut.py`); or all but a few variables, which keep theirs,
are eliminated. It ends where no move gains.

Costs are whole numbers inside, so that equal ones are equal. Of equally cheap labels those are taken of which most are
as in `start`: always by elimination, and by moves as far as they get there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf, prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.search.cut import cheapest_of_whole

UnaryCosts: TypeAlias = Sequence[Sequence[float]]
PairCosts: TypeAlias = Mapping[tuple[int, int], Sequence[Sequence[float]]]
_Whole: TypeAlias = NDArray[np.int64]
_Real: TypeAlias = NDArray[np.float64]

_UNIT = 1e-12  # seconds, given: costs are whole numbers of it, as those of a cut are
_LARGEST = 2.0**60  # of units in a sum, given: twice as much is still an int64
_TABLE = 1 << 16  # elements, bound: of a table that a variable is replaced by
_HELD_TABLES = 1 << 10, 1 << 14  # elements, bound: of such a table if some variables keep their labels
_HELD_TIMES = 4  # times in a row that this may gain nothing, with other variables each time; bound


def total(choice: Sequence[int], alone: UnaryCosts, pairs: PairCosts) -> float:
    """What a choice costs."""
    own = sum(costs[x] for costs, x in zip(alone, choice, strict=True))
    return own + sum(table[choice[u]][choice[v]] for (u, v), table in pairs.items())


def assign(alone: UnaryCosts, pairs: PairCosts, start: Sequence[int] | None = None) -> list[int]:
    """A label for each variable: the cheapest where elimination is quick, else the best that moves lead to, which is no
    worse than `start` (label 0 of all unless given). Where nothing can be, the result cannot be either.
    """
    return _labels(alone, pairs, start, _TABLE, is_exact=False) or []


def try_exact(
    alone: UnaryCosts, pairs: PairCosts, start: Sequence[int] | None = None, table: int = _TABLE
) -> list[int] | None:
    """The cheapest labels by elimination, unless that needs a table of more elements."""
    return _labels(alone, pairs, start, table, is_exact=True)


def by_moves(alone: UnaryCosts, pairs: PairCosts, start: Sequence[int] | None = None) -> list[int]:
    """Labels by moves of cuts alone, even where elimination would be quick."""
    return _labels(alone, pairs, start, 0, is_exact=False) or []


def _labels(
    alone: UnaryCosts, pairs: PairCosts, start: Sequence[int] | None, table: int, *, is_exact: bool
) -> list[int] | None:
    x = [0] * len(alone) if start is None else list(start)
    _check(alone, pairs, x)
    for part in _parts(alone, pairs, x):
        order, held = _order(part, table) if table else ([], part.variables)
        if held and is_exact:
            return None
        found = _improved(part, table) if held else _eliminated(part, order, {})
        for v, labels, n in zip(part.variables, part.labels, found, strict=True):
            x[v] = labels[n]
    return x


def _check(alone: UnaryCosts, pairs: PairCosts, start: Sequence[int]) -> None:
    for v, (costs, x) in enumerate(zip(alone, start, strict=True)):
        if not 0 <= x < len(costs):
            raise ValueError(f"variable {v} has {len(costs)} labels, and starts with label {x}")
    for (u, v), rows in pairs.items():
        if len(rows) != len(alone[u]) or any(len(row) != len(alone[v]) for row in rows):
            raise ValueError(f"variables {u} and {v} have other labels than the table of their costs")
    every = (c for costs in (*alone, *(row for rows in pairs.values() for row in rows)) for c in costs)
    if not all(c > -inf for c in every):
        raise ValueError("a cost is no number, or minus infinity")


# --------------------------------------------------------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Connected variables with two labels or more, and what these cost in whole numbers of at least 0."""

    variables: list[int]  # as the caller numbers them
    labels: list[list[int]]  # of each variable, as the caller numbers them
    own: list[_Whole]
    pairs: dict[tuple[int, int], _Whole]
    start: list[int]
    never: int  # what cannot be: more than all that can be together

    def cost(self, x: Sequence[int]) -> int:
        """Of labels. As often as they cannot be, it is `never` more, so that moves lead away from that."""
        own = sum(int(costs[n]) for costs, n in zip(self.own, x, strict=True))
        return own + sum(int(t[x[u], x[v]]) for (u, v), t in self.pairs.items())

    def near(self) -> list[set[int]]:
        """Of each variable, those that it has a pair with."""
        found: list[set[int]] = [set() for _ in self.own]
        for u, v in self.pairs:
            found[u].add(v)
            found[v].add(u)
        return found


def _parts(alone: UnaryCosts, pairs: PairCosts, x: list[int]) -> list[_Part]:
    """What is left to choose; `x` has the start, and gets the labels of variables that can have one only."""
    own: list[_Real] = [np.array(costs, np.float64) for costs in alone]
    tables: list[dict[int, _Real]] = [{} for _ in alone]  # each pair from both sides
    for (u, v), rows in pairs.items():
        table = np.array(rows, np.float64)
        if u == v:
            own[u] = own[u] + table.diagonal()
            continue
        tables[u][v] = tables[u][v] + table if v in tables[u] else table
        tables[v][u] = tables[u][v].T
    labels = [list(range(len(costs))) for costs in alone]
    queue, is_left = list(range(len(alone)))[::-1], [True] * len(alone)
    while queue:
        v = queue.pop()
        can = [n for n, cost in enumerate(own[v].tolist()) if cost < inf]
        if not can:  # then the others do as well as they can around its start
            can = [labels[v].index(x[v])] if x[v] in labels[v] else [0]
        if is_left[v] and len(can) < len(labels[v]):
            labels[v], own[v] = [labels[v][n] for n in can], own[v][can]
            for w in tables[v]:
                tables[v][w] = tables[v][w][can]
                tables[w][v] = tables[v][w].T
        if is_left[v] and len(labels[v]) == 1:
            is_left[v], x[v] = False, labels[v][0]
            for w, table in tables[v].items():
                own[w] = own[w] + table[0]
                del tables[w][v]
                queue.append(w)
    return [_whole(part, labels, own, tables, x) for part in _connected(is_left, tables)]


def _connected(is_left: Sequence[bool], tables: Sequence[Mapping[int, _Real]]) -> list[list[int]]:
    found: list[list[int]] = []
    seen = [not left for left in is_left]
    for v in range(len(seen)):
        if seen[v]:
            continue
        seen[v], part = True, [v]
        for u in part:
            for w in tables[u]:
                if not seen[w]:
                    seen[w] = True
                    part.append(w)
        found.append(sorted(part))
    return found


def _whole(
    variables: list[int],
    labels: Sequence[list[int]],
    own: Sequence[_Real],
    tables: Sequence[Mapping[int, _Real]],
    start: Sequence[int],
) -> _Part:
    """A unit of cost outweighs that all labels are as in the start."""
    number = {v: n for n, v in enumerate(variables)}
    ties = len(variables) + 1
    terms = [*(own[v] for v in variables), *(t for v in variables for w, t in tables[v].items() if v < w)]
    least = [min((c for c in t.ravel().tolist() if c < inf), default=0.0) for t in terms]
    most = [max((c for c in t.ravel().tolist() if c < inf), default=0.0) for t in terms]
    spans = [high - low for low, high in zip(least, most, strict=True)]
    unit = max(_UNIT, sum(spans) * ties / _LARGEST)
    never = (sum(round(span / unit) for span in spans) + 1) * ties
    whole: list[_Whole] = []
    for t, low in zip(terms, least, strict=True):
        can = np.isfinite(t)
        whole.append(
            np.where(can, np.rint((np.where(can, t, low) - low) / unit).astype(np.int64) * ties, never)
        )
    at = [labels[v].index(start[v]) if start[v] in labels[v] else -1 for v in variables]
    for n, costs in enumerate(whole[: len(variables)]):
        costs[np.arange(len(costs)) != at[n]] += 1
    keys = [(number[v], number[w]) for v in variables for w in tables[v] if v < w]
    return _Part(
        variables,
        [labels[v] for v in variables],
        [np.minimum(costs, never) for costs in whole[: len(variables)]],
        dict(zip(keys, whole[len(variables) :], strict=True)),
        [n if n >= 0 else int(own[v].argmin()) for n, v in zip(at, variables, strict=True)],
        never,
    )


# --------------------------------------------------------------------------------------------------------- elimination


def _order(part: _Part, limit: int, times_held: Sequence[int] = ()) -> tuple[list[int], list[int]]:
    """The order in which to eliminate variables, smallest tables first, and the variables that must keep their labels
    so that no table has more elements: those with most neighbours, of those that did so the fewest times before.
    """
    near, sizes = part.near(), [len(costs) for costs in part.own]
    often = times_held or [0] * len(sizes)

    def size(v: int) -> int:
        return sizes[v] * prod(sizes[w] for w in near[v])

    now = [size(v) for v in range(len(sizes))]
    heap = [(n, v) for v, n in enumerate(now)]
    heapify(heap)
    order: list[int] = []
    held: list[int] = []
    left = set(range(len(sizes)))
    while left:
        n, v = heappop(heap)
        if v not in left or n != now[v]:
            continue
        around = near[v]
        if n <= limit:
            order.append(v)
            for w in around:
                near[w] |= around
                near[w] -= {v, w}
        else:
            heappush(heap, (n, v))
            v = min(left, key=lambda w: (often[w], -len(near[w]), w))
            around = near[v]
            held.append(v)
            for w in around:
                near[w].discard(v)
        left.discard(v)
        for w in around:
            now[w] = size(w)
            heappush(heap, (now[w], w))
    return order, held


def _eliminated(part: _Part, order: Sequence[int], held: Mapping[int, int]) -> list[int]:
    """The cheapest labels of the variables in `order` if the others have those that they are `held` at."""
    own, at = list(part.own), {v: n for n, v in enumerate(order)}
    # Of each variable, tables that are added when it is eliminated. The axes of a table are in the reverse order of
    # elimination, so that they are in the same order in all tables, and the next to go is the last.
    due: dict[int, list[tuple[list[int], _Whole]]] = {v: [] for v in order}
    for (u, v), table in part.pairs.items():
        if u in held or v in held:
            if v in at:
                own[v] = np.minimum(own[v] + table[held[u]], part.never)
            elif u in at:
                own[u] = np.minimum(own[u] + table[:, held[v]], part.never)
        elif at[u] > at[v]:
            due[v].append(([u, v], table))
        else:
            due[u].append(([v, u], table.T))
    chosen: list[tuple[list[int], NDArray[np.integer]]] = []
    for v in order:
        met = sorted({w for scope, _ in due[v] for w in scope if w != v}, key=lambda w: -at[w])
        whole = np.zeros([len(own[w]) for w in (*met, v)], np.int64) + own[v]
        for scope, table in due.pop(v):
            inside = set(scope)
            whole += table.reshape([len(own[w]) if w in inside else 1 for w in (*met, v)])
            np.minimum(whole, part.never, out=whole)  # so that no sum is too large for its type
        chosen.append((met, whole.argmin(axis=-1).astype(np.min_scalar_type(len(own[v])))))  # many, so small
        if met:
            due[met[-1]].append((met, whole.min(axis=-1)))
    x = [held.get(v, 0) for v in range(len(own))]
    for v, (met, best) in zip(reversed(order), reversed(chosen), strict=True):
        x[v] = int(best[tuple(x[w] for w in met)])
    return x


# --------------------------------------------------------------------------------------------------------------- moves


def _improved(part: _Part, table: int) -> list[int]:
    """The best that cuts lead to from the start, from the best label of each variable alone, and from the best label of
    all alike. If tables are allowed, the best of what elimination and cuts in turns make of that and of the second, by
    small tables first: large ones hold few variables, which is better near the end.
    """
    moves = _Moves(part)
    alone = [int(costs.argmin()) for costs in part.own]
    alike = min((moves.proposed(alone, label) for label in moves.every), key=part.cost)
    x = min((moves.descend(s) for s in (part.start, alone, alike)), key=part.cost)
    if table:
        x, y = (_settled(part, moves, s, _HELD_TABLES[0]) for s in (x, alone))
        x = min(x, y, moves.fused(x, y), key=part.cost)
        for size in _HELD_TABLES[1:]:
            x = _settled(part, moves, x, size)
    return x


def _settled(part: _Part, moves: "_Moves", x: list[int], table: int) -> list[int]:
    """By elimination of a part and cuts, in turns."""
    while True:
        y = _relabelled(part, x, table)
        if y == x:
            return x
        x = moves.descend(y)


def _relabelled(part: _Part, x: list[int], table: int) -> list[int]:
    """Better labels by elimination of all variables but a few, other ones each time, until that gains nothing."""
    cost, times_held, idle = part.cost(x), [0] * len(x), 0
    while idle < _HELD_TIMES:
        order, held = _order(part, table, times_held)
        for v in held:
            times_held[v] += 1
        y = _eliminated(part, order, {v: x[v] for v in held})
        less = part.cost(y)
        idle += 1
        if less < cost:
            x, cost, idle = y, less, 0
    return x


class _Moves:
    """Moves by cuts: all variables at once keep their labels or take those proposed."""

    def __init__(self, part: _Part) -> None:
        self._part = part
        self._own: list[list[int]] = [costs.tolist() for costs in part.own]
        self._pairs: list[tuple[int, int, list[list[int]]]] = [
            (u, v, t.tolist()) for (u, v), t in part.pairs.items()
        ]
        self.every = sorted({label for labels in part.labels for label in labels})

    def descend(self, x: list[int]) -> list[int]:
        """Propose each label to all (an α-expansion), in turns, until none gains."""
        cost, idle, turn = self._part.cost(x), 0, 0
        while idle < len(self.every):
            y = self.fused(x, self.proposed(x, self.every[turn % len(self.every)]))
            less = self._part.cost(y)
            idle, turn = idle + 1, turn + 1
            if less < cost:
                x, cost, idle = y, less, 1  # the same again would not gain
        return x

    def proposed(self, x: Sequence[int], label: int) -> list[int]:
        """The label where it can be."""
        every = zip(x, self._part.labels, strict=True)
        return [labels.index(label) if label in labels else n for n, labels in every]

    def fused(self, x: Sequence[int], y: Sequence[int]) -> list[int]:
        """The best of one and the other, variable by variable; exact where no pair is cheaper apart than together."""
        moving = [v for v in range(len(x)) if x[v] != y[v]]
        number = {v: n for n, v in enumerate(moving)}
        more = [self._own[v][y[v]] - self._own[v][x[v]] for v in moving]
        pairs: list[tuple[int, int, int, int, int, int]] = []
        for u, v, t in self._pairs:
            m, n = number.get(u), number.get(v)
            if m is not None and n is not None:
                kept, taken = t[x[u]], t[y[u]]
                pairs.append((m, n, kept[x[v]], kept[y[v]], taken[x[v]], taken[y[v]]))
            elif m is not None:
                more[m] += t[y[u]][x[v]] - t[x[u]][x[v]]
            elif n is not None:
                more[n] += t[x[u]][y[v]] - t[x[u]][x[v]]
        found = list(x)
        for v, is_taken in zip(moving, cheapest_of_whole(more, pairs), strict=True):
            if is_taken:
                found[v] = y[v]
        return found
