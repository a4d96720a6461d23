"""The rule for products with weights that have scales by blocks: the tile of rows and columns."""

import numpy as np

from tilewright.cost.caches import l2_room
from tilewright.cost.parallel import ranked_seconds, ranked_terms
from tilewright.cost.terms import Amounts, Terms, added, spread_terms
from tilewright.families.block_products.match import BlockProducts, group_count, match_block_products
from tilewright.families.block_products.recipe import BlockTile, schedule_block_products
from tilewright.families.elementwise.cost import around_seconds
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.cost import BEHIND_READS, TILE_START
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.schedule.draft import Draft
from tilewright.support.arrays import FloatArray
from tilewright.target.target import Target
from tilewright.tir.stmt import blocks

_MOST_ROWS, _MOST_PANELS = 8, 4  # rows and panels of a tile; bound
_UNPACKED = 3.0  # operations that take the halves of a vector of bytes apart; counted: two masks and a shift
_WIDENED = (
    2.5  # operations that make floats of a vector of codes; counted: a shift, half a load, a conversion
)
_SCALED = (
    4.0  # operations that a block of a vector ends with; counted: a conversion, a difference, two products
)
# Of the time that weights take from memory, what each more panel of a tile adds: a stream that is short. Measured on a
# Zen 5, one thread, one row and 151936 columns: 49 GB/s with one, 43 with two, 38 with three and four; memory has 52.
_MORE_STREAMS = 0.1


class BlockProductsSpace(Space):
    family = "block_products"

    def __init__(self, start: Draft, found: BlockProducts, target: Target, constants: frozenset[str]) -> None:
        self._start, self._found, self._target, self._constants = start, found, target, constants
        self._names = {b.name for b in blocks(start.func.body)}
        registers = target.vector_registers
        fitting = [
            (r, v)
            for r in range(1, min(_MOST_ROWS, self._rows) + 1)
            for v in range(1, min(_MOST_PANELS, self._panels) + 1)
            if 2 * r * v + 3 <= registers
        ]
        self.knobs = (
            Knob("rows", tuple(sorted({r for r, _ in fitting}))),
            Knob("panels", tuple(sorted({v for _, v in fitting}))),
        )
        self._points = np.array(fitting, np.int64).reshape(-1, 2)

    @property
    def packing(self) -> tuple[str, ...]:
        return ()  # panels are as they are, whatever the tile

    def points(self) -> Points:
        return self._points

    def cost(self, points: Points) -> Costs:
        seconds = self._seconds(points) + self._around + self._target.machine.meeting_seconds
        return ranked_seconds(seconds, self._tiles(points), self._target.machine)

    def terms(self, points: Points) -> Terms:
        m = self._target.machine
        told: Amounts = added(
            {"arithmetic": self._seconds(points)}, {"beside": self._around, "team": m.meeting_seconds}
        )
        return spread_terms(ranked_terms(told, self._tiles(points), m), len(points))

    @property
    def _around(self) -> float:
        func, p = self._start.func, self._found
        return around_seconds(func, p.total.name, self._target, self._constants, without={p.sums.name})

    @property
    def _rows(self) -> int:
        return 1 if self._found.row is None else self._found.row.extent

    @property
    def _panels(self) -> int:
        return 1 if self._found.panel is None else self._found.panel.extent

    def _seconds(self, points: Points) -> FloatArray:
        """Of the tiles, or of bringing the weights from memory, if that takes longer."""
        m, p = self._target.machine, self._found
        rows, panels = points[:, 0], points[:, 1]
        work = rows * panels
        if p.intrinsic is None:
            groups, steps, unpacked, read = p.steps, 1.0, _WIDENED, 1
        else:
            weights = p.intrinsic.meaning.params[-1]
            read = (len(p.intrinsic.meaning.params) - 2) * group_count(p.intrinsic)
            groups, steps = p.steps // (weights.shape[-1] * group_count(p.intrinsic)), p.intrinsic.steps
            unpacked = _UNPACKED * group_count(p.intrinsic)
        loads = panels + read * rows
        step = np.maximum(work * steps + unpacked * panels, 1.0) / m.fma_per_cycle
        step = np.maximum(step, loads / m.loads_per_cycle)
        block = groups * step + work * _SCALED / m.fma_per_cycle + m.fma_latency
        tile = p.over.extent * block + TILE_START
        cycles = self._tiles(points) * tile
        nbytes = p.weights.buffer.bytes
        moved = nbytes / m.memory_rate if nbytes > l2_room(m) else 0.0
        moved = moved * (1 + _MORE_STREAMS * (panels - 1))
        return np.maximum(cycles / m.hertz, moved) + BEHIND_READS * cycles / m.hertz

    def _tiles(self, points: Points) -> FloatArray:
        return np.ceil(self._rows / points[:, 0]) * np.ceil(self._panels / points[:, 1])

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        schedule_block_products(s, self._found, BlockTile(decisions["rows"], decisions["panels"]))
        schedule_rest(s, self._names, self._target)
        return s


def block_products_space(request: ScheduleRequest) -> Space | None:
    """The space of a Func with two reductions, if these are such sums."""
    start = request.plain
    found = None if start is None else match_block_products(start.func, request.target)
    if start is None or found is None:
        return None
    return BlockProductsSpace(start, found, request.target, request.constants)
