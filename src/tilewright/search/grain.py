"""The parallel grain of a kernel as a knob of any space: how many iterations of its parallel loops make a part.

    Kernel(calls=('relu_1',), family='gemm', rows=6, vectors=2, …, grain=4)

Parts decide how evenly a team shares a kernel, and what a worker finds in its caches; with one part, one worker runs it
and the others wait. Families choose parts so that any team has enough of them. For a team that is known, fewer may be
better: the tuner offers it grains, while the default has none.
"""

import numpy as np

from tilewright.cost.terms import added, spread_terms, summed
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space, Terms
from tilewright.schedule.find import top_level
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.coarsen import Coarsen
from tilewright.support.errors import ScheduleError
from tilewright.tir.stmt import For, LoopKind

GRAIN = "grain"
OWN = 0  # iterations of a part: as the family makes it; given
ONE_PART = -1  # iterations: all of them, so that one worker runs it; given
_GRAINS = (OWN, 2, 4, 8, ONE_PART)  # iterations of a part; bound
_DOUBT = 1.02  # times the cost of a point, given: what a grain gains is not estimated, so a family's own comes first


class GrainSpace(Space):
    """The points of a space, each with several grains."""

    def __init__(self, inner: Space) -> None:
        self.family, self._inner = inner.family, inner
        self.knobs = (*inner.knobs, Knob(GRAIN, _GRAINS))

    @property
    def packing(self) -> tuple[str, ...]:
        return self._inner.packing

    def points(self) -> Points:
        inner = self._inner.points()
        grains = np.repeat(np.array(_GRAINS, np.int64), len(inner))
        return np.concatenate([np.tile(inner, (len(_GRAINS), 1)), grains[:, None]], axis=1)

    def cost(self, points: Points) -> Costs:
        """Of what one worker runs alone, the others do nothing meanwhile."""
        return self._inner.cost(points[:, :-1]) * np.where(points[:, -1] == OWN, 1.0, _DOUBT)

    def terms(self, points: Points) -> Terms:
        inner = self._inner.terms(points[:, :-1])
        doubt = np.where(points[:, -1] == OWN, 0.0, (_DOUBT - 1.0) * summed(inner))
        return spread_terms(added(inner, {"team": doubt}), len(points)) if inner else {}

    def build(self, decisions: KnobValues) -> Schedule:
        return build_with_grain(self._inner, decisions)


def without_grain(decisions: KnobValues) -> dict[str, int]:
    """The knobs of the family alone."""
    return {name: value for name, value in decisions.items() if name != GRAIN}


def build_with_grain(space: Space, decisions: KnobValues) -> Schedule:
    """The schedule of a point of a family, with a grain if there is one among the decisions. ScheduleError if no loop
    can have it.
    """
    s = space.build(without_grain(decisions))
    grain = decisions.get(GRAIN, OWN)
    if grain == OWN:
        return s
    sizes = {n.var.name: n.extent if grain == ONE_PART else grain for n in _parallel_loops(s)}
    fitting = [
        n.var.name for n in _parallel_loops(s) if sizes[n.var.name] > 1 and n.extent % sizes[n.var.name] == 0
    ]
    if not fitting:
        raise ScheduleError(f"no parallel loop of {s.func.name} has a grain of {grain}")
    for name in fitting:
        s.apply(Coarsen(name, sizes[name]))
    return s


def _parallel_loops(s: Schedule) -> list[For]:
    return [n for n in top_level(s.func) if isinstance(n, For) and n.kind is LoopKind.PARALLEL]
