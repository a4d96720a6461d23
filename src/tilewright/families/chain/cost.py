"""The time of a chain of contractions, a block of rows at a time, in closed form.

    cycles = the contractions, block of rows by block of rows
           + copying the columns of each into panels, once
           + what happens to rows in between, from where they are kept
           + what happens to each row once more for every block of keys, where these are taken up in blocks

`contraction_seconds` has the first. A block of rows that is kept near costs less to come back to, and one of few rows
reads the columns more often.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from tilewright.cost.caches import from_l2, per_byte
from tilewright.cost.layouts import COPIED, copy_cycles
from tilewright.cost.stream import stream_term
from tilewright.cost.terms import Ledger
from tilewright.families.stream.cost import KeptPlace, RowPlan, StreamCost
from tilewright.gir.flow_graph import FlowGraph
from tilewright.target.machine import Machine
from tilewright.target.target import Target

_VECTORS = (1, 2, 4, 8)  # vectors of a step along a row that are tried; bound
# Swept (docs/results/constants.md).
_STREAMED = 16.0  # times what a byte costs a register tile: from afar, where there is little else to do
_SCALE_CYCLES = (
    100.0  # cycles for a row: the largest score of a block of keys, by what the row is scaled then, its sum
)
_TRANSPOSE = 0.7  # cycles to copy an element transposed, as copies of `benchmarks.predicted` take


@dataclass(frozen=True)
class RowsBetween:
    """The rows between contractions, or behind the only one: their elements, and what happens to them, if anything."""

    elements: int
    bytes_each: int
    graph: FlowGraph | None
    target: Target

    def seconds(self, kept_bytes: int, told: Ledger | None = None) -> float:
        """Where `kept_bytes` of rows are there at a time. `told` is told what they are made of."""
        m = self.target.machine
        # What comes row by row from the second cache comes in time.
        again = _STREAMED * max(per_byte(m, np.array([float(kept_bytes)]))[0] - from_l2(m), 0.0)
        computed, sweeps = self._near
        passes = 2 + sweeps  # a contraction writes them, and another one reads what is made of them
        moved = self.elements * passes * self.bytes_each * again / m.hertz
        if told is not None:
            told.add("beside", computed)
            told.add(stream_term(kept_bytes, m), moved)
        return computed + moved

    @cached_property
    def _near(self) -> tuple[float, int]:
        """Seconds of all rows if they are near, and how often they are gone over: however many there are at a time."""
        if self.graph is None:
            return 0.0, 0
        cost, plan = quickest_rows(self.graph, self.target.lanes(self.bytes_each), self.target.machine)
        return cost.computing_seconds(plan), cost.sweeps(plan.keep)


def quickest_rows(graph: FlowGraph, lanes: int, m: Machine) -> tuple[StreamCost, RowPlan]:
    """How rows that are near are gone over."""
    cost = StreamCost(graph, lanes, m)
    every = (
        RowPlan(lanes * n, keep) for n, keep in product(_VECTORS, (KeptPlace.NOWHERE, KeptPlace.IN_SCRATCH))
    )
    return cost, min(every, key=cost.computing_seconds)


def panels_seconds(elements: int, bytes_each: int, is_transposed: bool, m: Machine) -> float:
    """Copying the columns of a contraction into panels."""
    return copy_cycles(elements, bytes_each, m, _TRANSPOSE if is_transposed else COPIED) / m.hertz


def scaling_seconds(rows: int, blocks: int, m: Machine) -> float:
    """What is done once for each block of keys to every row, where keys are taken up in blocks."""
    return rows * blocks * _SCALE_CYCLES / m.hertz


# Cycles that a byte of values costs more where strips of columns go over more rows than the second cache holds.
# Measured on 8 heads with 8 rows, 4096 keys and 128 columns: strips took 1.95 ms of CPU time, and 1.77 ms in chunks of
# 512 keys, while costs without this said 0.78 and 0.90 ms.
_STRIPS = 0.05


def strips_seconds(nbytes: int, m: Machine) -> float:
    return nbytes * _STRIPS / m.hertz
