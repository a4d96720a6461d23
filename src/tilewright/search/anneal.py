"""Simulated annealing over design spaces: several walkers that step to a neighbour, and stay there if it is quicker, or
with some luck if it is not much slower.

Walkers begin at the cheapest points by cost. A neighbour is a point that nobody has proposed yet and that differs in as
few knobs as possible. How much slower a step may lead shrinks with every point that was measured.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.families.space import Points, Space
from tilewright.search.evolve import Proposal

_WALKERS = 8  # points that walk at once, given
_FIRST_TEMPERATURE = (
    0.2  # in logarithms of times, given: a step to what takes 1.2 times as long is taken often
)
_COOLING = 0.98  # of the temperature, for each point that was measured; given


class Annealing:
    """A `Strategy` (`search/strategy.py`)."""

    def __init__(self, spaces: Sequence[Space], seed: int = 0) -> None:
        self.spaces = tuple(s for s in spaces if s.knobs)  # where there is something to choose
        self._rng = np.random.default_rng(seed)
        self._temperature = _FIRST_TEMPERATURE
        ranked = [s.ranked() for s in self.spaces]
        self._points: list[Points] = [points for points, _ in ranked]
        self._is_open: list[NDArray[np.bool_]] = [np.ones(len(points), np.bool_) for points in self._points]
        costs = [(float(c), n, at) for n, (_, found) in enumerate(ranked) for at, c in enumerate(found)]
        self._starts = [(n, at) for _, n, at in sorted(costs)]
        self._walkers: list[tuple[Proposal, float] | None] = [None] * _WALKERS
        self._walker_of: dict[Proposal, int] = {}
        self._turn = 0
        self._best: tuple[Proposal, float] | None = None

    @property
    def size(self) -> int:
        return len(self._starts)

    @property
    def best(self) -> tuple[Proposal, float] | None:
        return self._best

    def propose(self, count: int) -> list[Proposal]:
        """Up to `count` points that were never proposed, one walker after the other; fewer if there are no more."""
        chosen: list[Proposal] = []
        while len(chosen) < count:
            walker = self._turn % _WALKERS
            found = self._step(walker)
            if found is None:
                break
            self._turn += 1
            self._walker_of[found] = walker
            chosen.append(found)
        return chosen

    def tell(self, p: Proposal, seconds: float) -> None:
        """The measured time of a point; infinite if the candidate failed."""
        self._close(p)
        if not np.isfinite(seconds):
            return
        if self._best is None or seconds < self._best[1]:
            self._best = p, seconds
        walker = self._walker_of.get(p, 0)
        now = self._walkers[walker]
        if now is None or self._rng.random() < self._chance(seconds, now[1]):
            self._walkers[walker] = p, seconds
        self._temperature *= _COOLING

    def _chance(self, seconds: float, now: float) -> float:
        worse = float(np.log(seconds / now)) if now > 0 < seconds else 0.0
        return 1.0 if worse <= 0 else float(np.exp(-worse / self._temperature))

    def _step(self, walker: int) -> Proposal | None:
        at = self._walkers[walker]
        found = None if at is None else self._neighbour(at[0])
        if found is None:
            found = self._start()
        if found is not None:
            self._close(found)
        return found

    def _neighbour(self, p: Proposal) -> Proposal | None:
        """One of the open points of the same space that differ in the fewest knobs."""
        points, is_open = self._points[p.space], self._is_open[p.space]
        if not is_open.any():
            return None
        differing = (points != np.array(p.row, np.int64)).sum(axis=1)
        nearest = np.flatnonzero(is_open & (differing == differing[is_open].min()))
        return self._proposal(p.space, int(self._rng.choice(nearest)))

    def _start(self) -> Proposal | None:
        """The cheapest that is open."""
        for n, at in self._starts:
            if self._is_open[n][at]:
                return self._proposal(n, at)
        return None

    def _proposal(self, space: int, at: int) -> Proposal:
        return Proposal(space, tuple(int(v) for v in self._points[space][at]))

    def _close(self, p: Proposal) -> None:
        same = (self._points[p.space] == np.array(p.row, np.int64)).all(axis=1)
        self._is_open[p.space][same] = False
