"""The rule for Funcs with reductions along their rows: sums, softmax, normalisation, and what no other rule takes."""

from math import prod

import numpy as np

from tilewright.cost.parallel import ranked_seconds
from tilewright.cost.stream import pass_seconds
from tilewright.families.elementwise.cost import (
    block_bytes,
    scattered_seconds,
    spatial_seconds,
)
from tilewright.families.family import ScheduleRequest
from tilewright.families.reduce.cost import RowReduction, row_seconds
from tilewright.families.reduce.recipe import schedule_rows
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.ir.expr import Const, Load, Var, walk
from tilewright.schedule.draft import Draft
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, IterKind, blocks

_ACCUMULATORS = (1, 2, 4, 8)  # vectors of partial results that are tried; bound


class ReduceSpace(Space):
    family = "reduce"
    knobs = (Knob("accumulators", _ACCUMULATORS),)

    def __init__(self, start: Draft, reductions: list[Block], target: Target) -> None:
        self._start, self._target, self._machine = start, target, target.machine
        self._reductions = tuple(row_reduction(b) for b in reductions)
        self._beside = self._other_seconds(list(blocks(start.func.body)))

    def points(self) -> Points:
        return np.array(_ACCUMULATORS, dtype=np.int64)[:, None]

    def cost(self, points: Points) -> Costs:
        seconds = row_seconds(self._reductions, points[:, 0], self._target.lanes(4), self._machine)
        return ranked_seconds(seconds + self._beside, min(r.rows for r in self._reductions), self._machine)

    def _other_seconds(self, every: list[Block]) -> float:
        """What does not depend on the point: the blocks between reductions, operands that do not lie along rows, and
        what streams while none of that is done.
        """
        m, lanes, func = self._machine, self._target.lanes(4), self._start.func
        busy = sum(spatial_seconds(b, lanes, m, is_cut=False) for b in every if not b.is_reduction)
        busy += sum(scattered_seconds(b, m) for b in every if b.is_reduction)
        least = float(row_seconds(self._reductions, np.array(_ACCUMULATORS), lanes, m).min())
        streamed = pass_seconds(block_bytes(every, func.locals), m)
        return m.meeting_seconds + busy + max(streamed - busy - least, 0.0)

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        schedule_rows(s, decisions["accumulators"], self._target)
        return s


def reduce_space(request: ScheduleRequest) -> Space | None:
    start = request.plain
    if start is None:
        return None
    reductions = [b for b in blocks(start.func.body) if b.is_reduction]
    return ReduceSpace(start, reductions, request.target) if reductions else None


def row_reduction(block: Block) -> RowReduction:
    extents = {kind: prod(it.extent for it in block.iters if it.kind is kind) for kind in IterKind}
    nodes = [] if block.try_store is None else list(walk(block.store.value))
    loads = [e for e in nodes if isinstance(e, Load)]
    operations = [e for e in nodes if not isinstance(e, Load | Const | Var) and e.dtype.is_float]
    return RowReduction(
        extents[IterKind.SPATIAL], extents[IterKind.REDUCE], max(len(operations), 1), max(len(loads) - 1, 1)
    )
