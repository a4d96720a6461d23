"""A trace with sampling steps as a design space.

A knob is an open decision of the trace, `decision0`, `decision1`… in the order of its sampling steps. The value of a
knob is a position in the list of choices that its step has in the program when it is reached. So points are plain
numbers that apply to every Func equal up to renaming, and a search may change any of them; what a changed decision
makes impossible further on, `build` refuses.

Nothing is known about the cost of such a program before it is built: all points cost the same, and what is ranked
first is what was drawn first.
"""

from dataclasses import replace

import numpy as np

from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.schedule.decisions import OpenDecision, choices, draw_trace, sampling_steps
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.trace import Trace
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func, single


class TraceSpace(Space):
    """The programs that `trace` makes of `func` with all ways to decide it; decisions taken already stay.

    `points()` are up to `count` distinct ones, drawn with `seed`. ScheduleError if the trace applies in no way.
    """

    family = "trace"

    def __init__(
        self,
        func: Func,
        trace: Trace,
        target: Target,
        constants: frozenset[str] = frozenset(),
        *,
        count: int = 64,
        seed: int = 0,
    ) -> None:
        self.func, self.trace, self.target, self.constants = func, trace, target, constants
        self._module = single(func)
        self._open = tuple(n for n in sampling_steps(trace) if _is_open(trace, n))
        self._points, sizes = self._draw(count, np.random.default_rng(seed))
        self.knobs = tuple(Knob(f"decision{n}", tuple(range(size))) for n, size in enumerate(sizes))

    def points(self) -> Points:
        return self._points

    def cost(self, points: Points) -> Costs:
        return np.zeros(len(points))

    def build(self, decisions: KnobValues) -> Schedule:
        s = Schedule(self._module)
        for n, step in enumerate(self.trace):
            if n in self._open and isinstance(step, OpenDecision):
                knob = f"decision{self._open.index(n)}"
                legal = choices(s.module, step)
                if not 0 <= decisions[knob] < len(legal):
                    raise ScheduleError(
                        f"{step}: {knob} is {decisions[knob]}, but there are {len(legal)} choices here"
                    )
                step = replace(step, decision=legal[decisions[knob]])
            s.apply(step)
        return s

    def _draw(self, count: int, rng: np.random.Generator) -> tuple[Points, list[int]]:
        """Distinct points in the order in which they were drawn, and the largest number of choices that each knob
        was seen to have.
        """
        found: dict[tuple[int, ...], None] = {}
        sizes = [0] * len(self._open)
        in_vain = 0
        while (
            len(found) < count and in_vain < 2 * len(found) + 8
        ):  # a small space gives the same points again
            drawn = draw_trace(self._module, self.trace, rng)
            point: list[int] = []
            for n, number in enumerate(self._open):
                step, legal = drawn.trace[number], drawn.choices[number]
                assert isinstance(step, OpenDecision)
                sizes[n] = max(sizes[n], len(legal))
                point.append(legal.index(step.decision))
            in_vain = in_vain + 1 if tuple(point) in found else 0
            found[tuple(point)] = None
        return np.array(list(found), np.int64).reshape(len(found), len(self._open)), sizes


def _is_open(trace: Trace, n: int) -> bool:
    step = trace[n]
    return isinstance(step, OpenDecision) and step.decision is None
