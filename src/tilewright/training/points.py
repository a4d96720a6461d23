"""Which schedules of a kernel a corpus has: a third the cheapest by cost, a third children of the best so far, and a
third chosen from a pool that covers all families.

The pool holds points at random of each space, also of families that lose, half of them drawn evenly over ranks and half
towards the cheap end, where schedules that are hard to tell apart are. Who chooses from it is a parameter: a model may
take those on which it is in doubt. Without one, those that are farthest from each other in their features are taken.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from tilewright.learned.candidates import KernelCandidates
from tilewright.learned.features import FEATURES, SpaceFeatures, kernel_features
from tilewright.search.evolve import Evolution, Proposal
from tilewright.search.grain import OWN, GrainSpace
from tilewright.support.arrays import FloatArray
from tilewright.training.sampler import grained_rows
from tilewright.tuning.candidate import Task
from tilewright.tuning.candidates import Point

# Of a pool, how many to take and which are taken already, by number: the numbers of those to take.
Choose: TypeAlias = Callable[[KernelCandidates, int, Sequence[int]], Sequence[int]]

_POOL = 8  # points for each that is chosen; bound
_SLOW = 16.0  # times the cost of the cheapest, given: what is predicted to take longer tells little, and takes long


def farthest_points(pool: KernelCandidates, count: int, taken: Sequence[int]) -> list[int]:
    """Those that are farthest from all that are taken, one after the other."""
    chosen: list[int] = []
    if not len(pool.features):
        return chosen
    rows = _scaled(pool.features)
    near = np.full(len(rows), np.inf)
    for n in taken:
        near = np.minimum(near, ((rows - rows[n]) ** 2).sum(axis=1))
    near[list(taken)] = -1.0
    while len(chosen) < count:
        n = int(near.argmax())
        if near[n] < 0:
            break
        chosen.append(n)
        near = np.minimum(near, ((rows - rows[n]) ** 2).sum(axis=1))
        near[[*taken, *chosen]] = -1.0
    return chosen


def _scaled(features: FloatArray) -> FloatArray:
    """Columns that tell points apart, each with the same spread."""
    spread = features.std(axis=0)
    return features[:, spread > 0] / spread[spread > 0]


class _PointSource(Evolution):
    """Proposes points in the three ways, one by one."""

    def cheapest(self, count: int) -> list[Proposal]:
        """By cost, of those that were never proposed."""
        chosen: list[Proposal] = []
        while len(chosen) < count and self._next < len(self._order):
            self._take(self._ranked_at(self._next), chosen)
            self._next += 1
        return chosen

    def children(self, count: int) -> list[Proposal]:
        """Of the best that were measured; fewer than `count` if these have no more."""
        return self._children(count)

    def take(self, proposals: Sequence[Proposal]) -> None:
        """They are proposed."""
        self._seen.update(proposals)

    def cheapest_of(self, space: int) -> float:
        """The least cost of its points."""
        return float(np.min(self._ranked[space][1], initial=np.inf))

    def pool(self, count: int) -> list[Proposal]:
        """About as many points of all spaces that were not proposed, in no order. The cheapest of each is among them,
        whatever it costs.
        """
        found: dict[Proposal, None] = {}
        limit = _SLOW * min(map(self.cheapest_of, range(len(self.spaces))), default=np.inf)
        each = -(-count // max(1, len(self.spaces)))
        for n, (points, costs) in enumerate(self._ranked):
            size = max(1, int(np.searchsorted(costs, limit, side="right")))
            evenly = self._rng.integers(0, size, each - each // 2)
            cheap = (size ** self._rng.random(each // 2)).astype(np.int64) - 1
            for at in dict.fromkeys([0, *map(int, evenly), *map(int, cheap)]):
                if at < len(points):
                    p = Proposal(n, tuple(int(v) for v in points[at]))
                    if p not in self._seen:
                        found[p] = None
        return list(found)


class KernelPoints:
    """The points of one task. `known` has the ratios of those that were measured before, by family and decisions;
    infinite ratios are of what failed.
    """

    def __init__(self, task: Task, known: Mapping[tuple[str, str], float], seed: int) -> None:
        found = task.design_spaces()
        # One thread runs all parts anyway.
        self._plain = [s for s in found if s.knobs]
        offered = self._plain if task.threads == 1 else [GrainSpace(s) for s in self._plain]
        self._task = task
        self._source = _PointSource(offered, seed)
        self._alone = [s.family for s in found if not s.knobs and (s.family, "{}") not in known]
        self._kernel: dict[str, float] | None = None
        for (family, text), ratio in known.items():
            p = self._source.find(family, json.loads(text))
            if p is not None:
                self._source.tell(p, ratio)

    @property
    def size(self) -> int:
        """Points that were ranked."""
        return self._source.size

    def first(self, count: int, choose: Choose) -> list[Point]:
        """The cheapest, and as many from the pool; and what families offer that have one schedule."""
        alone, self._alone = self._alone[:count], self._alone[count:]
        left = count - len(alone)
        cheap = self._source.cheapest(left - left // 2)
        drawn = self._source.pool(_POOL * (left // 2))
        fresh: list[Proposal] = []
        if drawn:
            chosen = choose(self._candidates([*cheap, *drawn]), left // 2, range(len(cheap)))
            fresh = [drawn[n - len(cheap)] for n in chosen]
        self._source.take(fresh)
        fill = self._source.cheapest(left - len(cheap) - len(fresh))
        return [*((f, {}) for f in alone), *map(self._point, (*cheap, *fresh, *fill))]

    def next(self, count: int) -> list[Point]:
        """Children of the best, and the cheapest where there are too few of them."""
        found = self._source.children(count)
        found += self._source.cheapest(count - len(found))
        return [self._point(p) for p in found]

    def tell(self, point: Point, ratio: float) -> None:
        """Of a point that was measured; infinite if it failed."""
        p = self._source.find(*point) if point[1] else None
        if p is not None:
            self._source.tell(p, ratio)

    def cost(self, point: Point) -> float:
        """Predicted seconds."""
        p = self._source.find(*point) if point[1] else None
        if p is None:
            return 0.0
        return float(self._source.spaces[p.space].cost(np.array([p.row], np.int64))[0])

    def _point(self, p: Proposal) -> Point:
        return self._source.rule(p), self._source.decisions(p)

    def _candidates(self, proposals: Sequence[Proposal]) -> KernelCandidates:
        task, source = self._task, self._source
        if self._kernel is None:
            self._kernel = kernel_features(task.func, task.target.for_threads(task.threads), task.constants)
        features = np.zeros((len(proposals), len(FEATURES)))
        every = np.zeros(len(proposals))
        for n in range(len(source.spaces)):
            at = [i for i, p in enumerate(proposals) if p.space == n]
            if not at:
                continue
            rows = np.array([proposals[i].row for i in at], np.int64)
            plain = self._plain[n]
            points, rest = rows[:, : len(plain.knobs)], rows[:, len(plain.knobs) :]
            grains = rest[:, 0] if rest.shape[1] else np.full(len(at), OWN)
            every[at] = plain.cost(points)
            own = SpaceFeatures(self._kernel, plain, source.cheapest_of(n))
            features[at] = grained_rows(own, points, every[at], grains)
        return KernelCandidates(features, every)
