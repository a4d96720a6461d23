"""Which points to measure next.

The cost form ranks a space before anything is measured, and what was measured corrects it where it was measured: the
cost of a neighbour is taken times what the parent took over what it was predicted to take. A batch is made of

    the cheapest points by cost that have not been measured yet,
    children of the best: one or two knobs changed, or the knobs of two parents mixed,
    a few points at random, because a model may be wrong everywhere.

No point is proposed twice. All is deterministic, given the seed and the measured times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.families.space import Costs, KnobValues, Points, Space

PointRow: TypeAlias = tuple[int, ...]

# Of the candidates of a batch, how many are found how; the rest are the cheapest by cost. Measured as they are
# (docs/results/tuning.md); others were not tried.
_RANDOM_SHARE = 0.1
_CHILDREN_SHARE = 0.5
_ELITE = 12  # candidates that have children
_BROOD = 8  # children that are predicted for each that is measured
_POOL_ROUNDS = 4  # times that children are drawn, for each that is wanted; bound


@dataclass(frozen=True, slots=True)
class Proposal:
    """A point of one of the spaces."""

    space: int
    row: PointRow


@dataclass(frozen=True, slots=True)
class _Measured:
    seconds: float
    proposal: Proposal
    cost: float


class Evolution:
    """Proposes points of `spaces`, and learns from the times that `tell` reports."""

    def __init__(self, spaces: Sequence[Space], seed: int = 0) -> None:
        self.spaces = tuple(s for s in spaces if s.knobs)  # where there is something to choose
        self._rng = np.random.default_rng(seed)
        self._seen: set[Proposal] = set()
        self._elite: list[_Measured] = []
        self.rank()

    def rank(self) -> None:
        """By the costs that the spaces have now."""
        self._ranked: list[tuple[Points, Costs]] = [s.ranked() for s in self.spaces]
        self._order = self._merge()
        self._next = 0  # in the order: what is before has been proposed
        self._elite = [replace(m, cost=self._cost(m.proposal)) for m in self._elite]

    def _cost(self, p: Proposal) -> float:
        return float(self.spaces[p.space].cost(np.array([p.row], np.int64))[0])

    def _merge(self) -> NDArray[np.int64]:
        """Rows (space, position in its ranking), cheapest first over all spaces."""
        if not self.spaces:
            return np.zeros((0, 2), np.int64)
        costs = np.concatenate([c for _, c in self._ranked])
        owners = np.concatenate([np.full(len(c), n) for n, (_, c) in enumerate(self._ranked)])
        places = np.concatenate([np.arange(len(c)) for _, c in self._ranked])
        return np.stack((owners, places), axis=1)[np.argsort(costs, kind="stable")]

    def _ranked_at(self, n: int) -> Proposal:
        space, at = (int(v) for v in self._order[n])
        return Proposal(space, _row(self._ranked[space][0][at]))

    @property
    def size(self) -> int:
        """Points that were ranked."""
        return len(self._order)

    @property
    def best(self) -> tuple[Proposal, float] | None:
        return (self._elite[0].proposal, self._elite[0].seconds) if self._elite else None

    def winners(self, count: int) -> list[Proposal]:
        """The best measured so far."""
        return [m.proposal for m in self._elite[:count]]

    def decisions(self, p: Proposal) -> dict[str, int]:
        return self.spaces[p.space].decisions(np.array(p.row, np.int64))

    def rule(self, p: Proposal) -> str:
        return self.spaces[p.space].family

    def find(self, rule: str, decisions: KnobValues) -> Proposal | None:
        """The point that is stored under these names, if it is still one."""
        for n, s in enumerate(self.spaces):
            if s.family == rule and {k.name for k in s.knobs} == set(decisions):
                return Proposal(n, tuple(decisions[k.name] for k in s.knobs))
        return None

    def tell(self, p: Proposal, seconds: float) -> None:
        """The measured time of a point; infinite if the candidate failed. The last report of a point counts."""
        self._seen.add(p)
        self._elite = [m for m in self._elite if m.proposal != p]
        if not np.isfinite(seconds) or (len(self._elite) == _ELITE and seconds >= self._elite[-1].seconds):
            return
        self._elite.append(_Measured(seconds, p, self._cost(p)))
        self._elite.sort(key=lambda m: m.seconds)
        del self._elite[_ELITE:]

    # -------------------------------------------------------------------------------------------------- proposals

    def propose(self, count: int) -> list[Proposal]:
        """Up to `count` points that were never proposed; fewer when there are no more."""
        chosen: list[Proposal] = []
        if self._elite:
            chosen += self._children(round(count * _CHILDREN_SHARE))
            chosen += self._random(round(count * _RANDOM_SHARE))
        while len(chosen) < count and self._next < len(self._order):
            self._take(self._ranked_at(self._next), chosen)
            self._next += 1
        if len(chosen) < count:
            chosen += self._children(count - len(chosen))
        return chosen

    def _take(self, p: Proposal, chosen: list[Proposal]) -> None:
        if p not in self._seen:
            self._seen.add(p)
            chosen.append(p)

    def _random(self, count: int) -> list[Proposal]:
        chosen: list[Proposal] = []
        if self._next < len(self._order):
            for n in self._rng.integers(self._next, len(self._order), count):
                self._take(self._ranked_at(int(n)), chosen)
        return chosen

    def _children(self, count: int) -> list[Proposal]:
        """The most promising of many children of the elite."""
        pool: dict[Proposal, _Measured] = {}
        for _ in range(_POOL_ROUNDS * _BROOD * count):
            if not self._elite or len(pool) >= _BROOD * count:
                break
            # The better, the more often: the best of two drawn evenly.
            parent = self._elite[int(self._rng.integers(0, len(self._elite), 2).min())]
            child = Proposal(parent.proposal.space, self._vary(parent.proposal))
            if child not in self._seen:
                pool.setdefault(child, parent)
        estimates = [(e, n) for n, e in enumerate(self._estimate(pool)) if np.isfinite(e)]
        children = list(pool)
        chosen = [children[n] for _, n in sorted(estimates)[:count]]
        self._seen.update(chosen)
        return chosen

    def _estimate(self, pool: dict[Proposal, _Measured]) -> list[float]:
        """Seconds: predicted, corrected by how wrong the prediction of the parent was."""
        out = [float("inf")] * len(pool)
        members = list(pool.items())
        for n, space in enumerate(self.spaces):
            places = [i for i, p in enumerate(pool) if p.space == n]
            if not places:
                continue
            costs = space.cost(np.array([members[i][0].row for i in places], np.int64))
            for i, cost in zip(places, costs, strict=True):
                parent = members[i][1]
                ratio = parent.seconds / parent.cost if 0 < parent.cost < np.inf else 0.0
                if np.isfinite(cost):
                    out[i] = float(cost) * ratio if ratio else parent.seconds
        return out

    def _vary(self, p: Proposal) -> PointRow:
        row = list(p.row)
        mates = [m.proposal.row for m in self._elite if m.proposal.space == p.space and m.proposal != p]
        if mates and self._rng.random() < 0.3:
            mate = mates[int(self._rng.integers(len(mates)))]
            row = [a if self._rng.random() < 0.5 else b for a, b in zip(row, mate, strict=True)]
        knobs = self.spaces[p.space].knobs
        open_knobs = [n for n, k in enumerate(knobs) if len(k.choices) > 1]
        if not open_knobs:
            return tuple(row)
        for n in self._rng.choice(
            open_knobs, size=min(len(open_knobs), int(self._rng.integers(1, 3))), replace=False
        ):
            row[int(n)] = self._other(knobs[int(n)].choices, row[int(n)])
        return tuple(row)

    def _other(self, choices: tuple[int, ...], value: int) -> int:
        """Another choice: a neighbour half of the time, if choices have an order to speak of."""
        if value in choices and self._rng.random() < 0.5:
            at = choices.index(value) + (1 if self._rng.random() < 0.5 else -1)
            if 0 <= at < len(choices):
                return choices[at]
        others = [c for c in choices if c != value]
        return others[int(self._rng.integers(len(others)))]


def _row(point: NDArray[np.int64]) -> PointRow:
    return tuple(int(v) for v in point)
