"""The rule for reductions that leave the innermost dimension of their output alone: depthwise convolution, means over
pixels.
"""

from functools import cached_property
from math import inf, prod

import numpy as np

from tilewright.cost.parallel import ranked_seconds
from tilewright.cost.stream import pass_seconds
from tilewright.families.elementwise.cost import around_seconds, block_bytes
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.recipe import try_contraction
from tilewright.families.gemm.tiles import RegisterTile, column_tiles, row_tiles
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.window.cost import (
    CONTRACTION,
    INTEGER_PRODUCT,
    NOT_HIDDEN,
    ROWS,
    UNROLLS,
    VECTORS,
    LaneOperand,
    combining_work,
    far_seconds,
    fits_registers,
    tile_cycles,
)
from tilewright.families.window.recipe import is_lane_reduction, lane_and_rows, operand_loads, schedule_lanes
from tilewright.ir.expr import Binary, BinaryOp, Expr, Fma, walk
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.target.target import Target
from tilewright.tir.stmt import IterKind, blocks


class WindowSpace(Space):
    family = "window"
    knobs = (Knob("rows", ROWS), Knob("vectors", VECTORS), Knob("unroll", UNROLLS))

    def __init__(
        self, start: Draft, name: str, target: Target, constants: frozenset[str] = frozenset()
    ) -> None:
        self._constants = constants
        self._start, self._block, self._target, self._machine = start, name, target, target.machine
        block = find_block(start.func, name)
        inner, row = lane_and_rows(block)
        self._lanes = target.lanes(block.store.buffer.dtype.bytes)
        self._rows, self._columns = 1 if row is None else row.extent, inner.extent
        self._taps = tuple(it.extent for it in block.iters if it.kind is IterKind.REDUCE)
        others = [
            it for it in block.iters if it.kind is IterKind.SPATIAL and it is not inner and it is not row
        ]
        self._tiles = prod(it.extent for it in others)
        side = None if row is None else row.var
        self._operands = [LaneOperand(ld, block, side, inner.var) for ld in operand_loads(block)]
        self._known: dict[tuple[int, int, int], float] = {}

    def points(self) -> Points:
        grid = np.meshgrid(ROWS, VECTORS, UNROLLS, indexing="ij")
        return np.stack([g.ravel() for g in grid], axis=1).astype(np.int64)

    def cost(self, points: Points) -> Costs:
        tiles = np.array([self._seconds(int(r), int(v), int(u)) for r, v, u in points])
        return ranked_seconds(tiles * self._slowness + self._beside, self._parts, self._machine)

    @cached_property
    def _slowness(self) -> float:
        """By how much a step takes longer than that of a window of floats."""
        block = find_block(self._start.func, self._block)
        value = block.store.value
        if not value.dtype.is_float and any(_is_multiplication(e) for e in walk(value)):
            return INTEGER_PRODUCT
        return CONTRACTION if try_contraction(block) is not None else combining_work(value)

    @cached_property
    def _beside(self) -> float:
        """What does not depend on the point: the other blocks, and what streams, which arithmetic hides in part."""
        func = self._start.func
        streamed = pass_seconds(block_bytes([find_block(func, self._block)]), self._machine)
        around = around_seconds(func, self._block, self._target, self._constants)
        (rows, _, _), tiles = self.best_tile()
        busy = around + tiles * self._slowness
        far = far_seconds(find_block(func, self._block), rows, self._lanes, self._machine)
        waiting = far + max(streamed - busy, 0.0) + NOT_HIDDEN * min(streamed, busy)
        return self._machine.meeting_seconds + around + waiting

    @cached_property
    def _parts(self) -> int:
        """Tiles that a team can share, of the cheapest size."""
        (rows, vectors, _), _ = self.best_tile()
        return self._tiles * -(-self._rows // rows) * -(-self._columns // (vectors * self._lanes))

    def _seconds(self, rows: int, vectors: int, unroll: int, columns: int | None = None) -> float:
        columns = self._columns if columns is None else columns
        is_small = rows <= self._rows and (vectors - 1) * self._lanes < columns
        if not is_small or not fits_registers(
            self._operands, prod(self._taps), (rows, vectors), self._target
        ):
            return inf
        cycles = sum(
            n * m * self._cycles(size, width, unroll)
            for size, n in row_tiles(self._rows, rows).items()
            for width, m in column_tiles(columns, vectors, self._lanes).items()
        )
        return self._tiles * cycles / self._machine.hertz

    def best_tile(self, columns: int | None = None) -> tuple[tuple[int, int, int], float]:
        """(rows, vectors, unroll) for all columns or only for `columns` of them, and the time that these take."""
        seconds = {(r, v, u): self._seconds(r, v, u, columns) for r in ROWS for v in VECTORS for u in UNROLLS}
        best = min(seconds, key=lambda t: seconds[t])
        return best, seconds[best]

    def _cycles(self, rows: int, vectors: int, unroll: int) -> float:
        key = rows, vectors, unroll
        if key not in self._known:
            tile = rows, vectors
            self._known[key] = tile_cycles(
                self._operands, self._taps, tile, unroll, self._lanes, self._machine
            )
        return self._known[key]

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        names = {b.name for b in blocks(s.func.body)}
        tile = RegisterTile(decisions["rows"], decisions["vectors"] * self._lanes)
        schedule_lanes(s, self._block, tile, decisions["unroll"], self._target)
        schedule_rest(s, names, self._target)
        return s


def window_space(request: ScheduleRequest) -> Space | None:
    """The space of a Func with one reduction, if vectors of its output are combined from vectors."""
    start = request.plain
    if start is None:
        return None
    reductions = [b for b in blocks(start.func.body) if b.is_reduction]
    if len(reductions) != 1 or not is_lane_reduction(reductions[0]):
        return None
    return WindowSpace(start, reductions[0].name, request.target, request.constants)


def _is_multiplication(e: Expr) -> bool:
    return isinstance(e, Fma) or (isinstance(e, Binary) and e.op is BinaryOp.MUL)
