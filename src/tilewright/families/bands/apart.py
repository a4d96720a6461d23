"""The rule for depthwise convolutions with a contraction before or after them that no band can be made of: each part as
if it were alone.

It is behind the rule for bands. Funcs are joined before they are scheduled, and a step may refuse what the cost of
bands took for granted; then the Func costs what its parts would, and not what a rule makes of it that knows nothing
of contractions.
"""

from math import inf

import numpy as np

from tilewright.cost.parallel import even_terms, evenly
from tilewright.cost.terms import Ledger, Terms, added, scaled, spread_terms
from tilewright.cost.work import block_seconds
from tilewright.families.bands.cost import apart_cycles
from tilewright.families.bands.match import BandChain, try_band_chain
from tilewright.families.bands.space import try_form
from tilewright.families.extract import extract_nests
from tilewright.families.family import ScheduleRequest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.window.recipe import is_lane_reduction
from tilewright.families.window.tiles import LaneTiles
from tilewright.schedule.draft import Draft


class ApartSpace(Space):
    family = "apart"

    def __init__(self, start: Draft, chain: BandChain, request: ScheduleRequest) -> None:
        self._start, self._alone, self._target = start, request.alone, request.target
        self._parts, self._form = chain.parts(start.func), try_form(chain)
        self.knobs = (Knob("parts", (len(self._parts),)),)
        depthwise = chain.depthwise
        self._windows = (
            LaneTiles(depthwise, request.target).best()[1]
            if is_lane_reduction(depthwise)
            else block_seconds(depthwise, request.target.lanes(4), request.target.machine)
        )

    def points(self) -> Points:
        return np.array([[len(self._parts)]], dtype=np.int64)

    def cost(self, points: Points) -> Costs:
        """As for bands; infinite where nothing is known of the parts, which is dearer than any band."""
        if self._form is None:
            return np.full(len(points), inf)
        m = self._target.machine
        seconds = apart_cycles(self._form, self._target) / m.hertz + self._windows
        return np.full(len(points), evenly(seconds, m))

    def terms(self, points: Points) -> Terms:
        if self._form is None:
            return {}
        m, told = self._target.machine, Ledger()
        apart_cycles(self._form, self._target, told)
        alone = added(scaled(told.terms, 1.0 / m.hertz), {"arithmetic": self._windows})
        return spread_terms(even_terms(alone, m), len(points))

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        for part in self._parts:
            for step in self._alone(extract_nests(s.func, set(part))).trace:
                s.apply(step)
        return s


def apart_space(request: ScheduleRequest) -> ApartSpace | None:
    """The space of a Func that is such a chain."""
    start = request.plain
    chain = None if start is None else try_band_chain(start.func)
    return None if start is None or chain is None else ApartSpace(start, chain, request)
