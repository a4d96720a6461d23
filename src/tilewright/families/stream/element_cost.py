"""The time of elements by their plan, in closed form: what their vectors compute, or what memory moves, whichever is
longer.
"""

from tilewright.cost.caches import l2_room, pass_room, result_room
from tilewright.cost.stream import pass_seconds, pass_term
from tilewright.cost.terms import Ledger
from tilewright.cost.work import instructions
from tilewright.gir.elements import ElementPlan, fused_axes
from tilewright.gir.from_nest import ElementNest
from tilewright.gir.pieces import steps_of
from tilewright.gir.tiles import find_transposed, square_blocks
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.target.machine import Machine

_LOOP = 1.0  # cycles of a step beside its arithmetic; counted: addresses and the loop
_DRAIN = (
    0.5  # of the cycles of one vector: what the next step waits for; measured, see `families/stream/cost.py`
)
_STEP_ACCESSES = (
    2.0  # loads that `fused_axes` counts for a vector, whatever it does; given by `gir/elements.py`
)
_SQUARE = 24.0  # cycles of a square of 8 vectors of 8 elements; counted: shuffles, one in a cycle
# Nanoseconds to come to the next run of elements that lie side by side, in blocks of transposed squares: of reads, and
# of stores, plain or past the caches. Measured on transposes of 1024 x 1024 plus a sum (third-level cache) and
# of 8192 x 8192 (memory), in blocks of 16 x 16, 16 x 64 and 64 x 16 elements, one core.
_RUN_NEAR = (3.0, 5.0, 5.0)
_RUN_FAR = (65.0, 52.0, 29.0)


class ElementCost:
    def __init__(self, nest: ElementNest, lanes: int, machine: Machine) -> None:
        piece = nest.piece
        self._machine, self._lanes, self._size = machine, lanes, max(piece.size, 1)
        simplify = Simplifier({a: Interval(0, e - 1) for a, e in nest.extents.items()})
        inner = next(reversed([*piece.axes]), None)
        self._instructions = sum(instructions(s.value) for s in piece.stores)
        reads = list(dict.fromkeys(piece.reads()))
        self._loads = sum(
            inner is not None and inner in steps_of(ld.buffer, ld.indices, simplify) for ld in reads
        )
        self._stores = len(piece.stores)
        self._piece, self._transposed = piece, find_transposed(piece, lanes, simplify)
        cost = fused_axes(piece, lanes)[1] * lanes - _STEP_ACCESSES
        self._scattered = 0.0 if self.is_transposed else max(cost - len(reads) - self._stores, 0.0)
        size = self._size
        read = {ld.buffer: min(ld.buffer.bytes, size * ld.dtype.bytes) for ld in reads}
        self._read = float(sum(read.values()))
        self._written = float(sum(size * s.buffer.dtype.bytes for s in piece.stores))

    @property
    def is_transposed(self) -> bool:
        return self._transposed is not None

    def seconds(self, plan: ElementPlan, told: Ledger | None = None) -> float:
        """`told` is told what they are made of."""
        m = self._machine
        work = max(self._instructions / m.fma_per_cycle, self._loads / m.loads_per_cycle, float(self._stores))
        work += self._scattered / m.loads_per_cycle
        vectors = plan.vectors
        cycles = ((vectors + _DRAIN) * work + _LOOP) / (vectors * self._lanes)
        if self.is_transposed:
            cycles += _SQUARE / (self._lanes * self._lanes)
        computed, runs, moved = self._size * cycles / m.hertz, self._runs(plan), self._moved(plan)
        if told is not None:
            where, is_computed = pass_term(self._read + self._written, m), computed + runs >= moved
            told.add("team", m.meeting_seconds)
            told.add("arithmetic", computed if is_computed else 0.0)
            told.add(where, runs if is_computed else moved)
        return m.meeting_seconds + max(computed + runs, moved)

    def _moved(self, plan: ElementPlan) -> float:
        """What is written comes from memory first, unless it goes past the caches. That only pays for results of which
        no cache holds what the next kernel begins with.
        """
        m = self._machine
        near = self._read + self._written
        if plan.streams and self._written <= result_room(m):
            return pass_seconds(near, m) + self._written / m.memory_rate
        first = 0.0 if plan.streams else self._written
        if near > pass_room(m):
            return (near + first) / m.memory_rate
        return pass_seconds(near, m) * (1.0 + (first / near if self._written > result_room(m) else 0.0))

    def _runs(self, plan: ElementPlan) -> float:
        near = self._read + self._written
        if self._transposed is None or near <= l2_room(self._machine):
            return 0.0
        reads, stores, past = _RUN_NEAR if near <= pass_room(self._machine) else _RUN_FAR
        own = square_blocks(self._piece, self._transposed, plan.tile, self._lanes, plan.parts)
        if plan.tile.sources_first:
            run = own.along * own.squares * self._lanes
            return self._size / run * (past if plan.streams else stores) * 1e-9
        return self._size / (own.across * self._lanes) * reads * 1e-9
