"""The time of a reduction with the output's innermost dimension in vector lanes, by counting.

A tile is some neighbouring outputs times some vectors, each an accumulator. The next step of an accumulator waits for
the last one, so there must be enough of them to fill the pipeline, in this tile and in those after it that are begun
meanwhile. Windows of neighbouring outputs overlap: what they share in the steps that are written out is loaded once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, Protocol

from tilewright.cost.caches import PREFETCHED_BYTES, l1_room
from tilewright.cost.register_tile import UNROLL
from tilewright.families.gemm.recipe import load_strides
from tilewright.families.gemm.tiles import column_tiles, row_tiles
from tilewright.ir.expr import Binary, BinaryOp, Expr, Load, Var, as_index, loads
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.target.machine import Machine
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, IterKind

# Times what a multiply-add of a window takes, as measured against the gemm family. Swept (docs/results/constants.md).
INTEGER_PRODUCT = 2.0  # integers are widened, multiplied and added one by one
CONTRACTION = 1.45  # an element is loaded for each row and step, where a window has them in registers
MAXIMUM = 3.0  # a maximum of floats that keeps NaN; counted: instructions
# Of the shorter of what streams and of the arithmetic, what is not hidden by the longer.
NOT_HIDDEN = 0.5
# Cycles for a vector of an operand whose rows are farther apart than the prefetcher follows.
_FAR_VECTOR = 1.3
# Bound: what is tried.
ROWS = (1, 2, 3, 4, 6, 8)  # rows of a tile: neighbouring outputs
VECTORS = (1, 2, 3, 4, 5, 6, 8)  # vectors of each
UNROLLS = (UNROLL, 24)  # multiply-adds written out in a step
# Bound: what tuning tries besides.
MORE_ROWS = (5, 7, 10, 12)  # rows of a tile
MORE_VECTORS = (7, 10, 12)  # vectors of each
MORE_UNROLLS = (144, 8)  # multiply-adds: all taps of most windows, and next to none
PREFETCHES = (0, 32)  # steps of the reduction that vectors are asked for ahead
# Swept (docs/results/constants.md).
# Vectors beyond the registers that code generation finds a place for: it loads some of them again.
_TOO_MANY = 2
_STEP_CYCLES = 0.5  # cycles that a step of a loop costs beside: addresses, the jump
_FINISH = 8  # operations that finish an accumulator, counted: bias, activation, store
_FINISH_CYCLES = 1.5  # cycles for them
_TILE_CYCLES = 2.0  # cycles to get to a tile: addresses, the jump
_ROW_CYCLES = 0.25  # cycles for each output of it that is apart from the others in memory
_MOST_TAPS = 128  # steps of the reduction that are ever written out; bound


def combining_work(combined: Expr) -> float:
    """Instructions that take up one more value of a reduction."""
    is_top = isinstance(combined, Binary) and combined.op in (BinaryOp.MAX, BinaryOp.MIN)
    return MAXIMUM if is_top and combined.dtype.is_float else 1.0


class WindowOperand(Protocol):
    def distinct(self, taps: int, rows: int, vectors: int, lanes: int) -> int:
        """How many loads a tile makes for the last `taps` steps of the reduction."""
        ...


class LaneOperand:
    """Where a load of the block goes, in elements."""

    def __init__(self, load: Load, block: Block, row: Var | None, col: Var) -> None:
        steps = load_strides(load, block)
        self._row, self._col = steps.get(row, 0) if row is not None else 0, steps.get(col, 0)
        self._offsets = _offsets(load, block)

    def distinct(self, taps: int, rows: int, vectors: int, lanes: int) -> int:
        offsets = self._offsets[:taps]
        if None in offsets or len(offsets) < taps:
            return taps * rows * vectors
        places = {t or 0 for t in offsets}
        for count, step in ((rows, self._row), (vectors, lanes * self._col)):
            if step:
                places = {p + n * step for p in places for n in range(count)}
        return len(places)


def _offsets(load: Load, block: Block) -> list[int | None]:
    """The offset of each step of the innermost reduction loops, from the first on; None where it is not known."""
    reduce = [it for it in block.iters if it.kind is IterKind.REDUCE]
    while reduce and math.prod(it.extent for it in reduce) > _MOST_TAPS:
        reduce = reduce[1:]
    flat: Expr = as_index(0)
    for i, stride in zip(load.indices, load.buffer.strides, strict=True):
        flat = flat + i * stride
    others = {it.var: as_index(0) for it in block.iters}
    simplify = Simplifier(dict[Var, Interval]())
    return [
        simplify.constant(
            substitute(flat, others | {it.var: as_index(n) for it, n in zip(reduce, at, strict=True)})
        )
        for at in product(*(range(it.extent) for it in reduce))
    ]


@dataclass(frozen=True, slots=True)
class WindowInput:
    """What windows slide over, before anybody knows where it is: `width` taps in a row, `stride` from one output to the
    next.
    """

    width: int
    stride: int

    def distinct(self, taps: int, rows: int, vectors: int, lanes: int) -> int:
        if taps < self.width:
            return taps * rows * vectors
        reach = (rows - 1) * min(self.stride, self.width) + self.width
        return taps // self.width * reach * vectors


@dataclass(frozen=True, slots=True)
class Filter:
    """An element of each channel for every tap, the same for all outputs."""

    def distinct(self, taps: int, rows: int, vectors: int, lanes: int) -> int:
        return taps * vectors


def fits_registers(
    operands: Sequence[WindowOperand], taps: int, tile: tuple[int, int], target: Target
) -> bool:
    """Is there a register for all that a tile of (rows, vectors) needs at once (its accumulators, a filter, what
    windows of neighbours share)?
    """
    rows, vectors = tile
    is_shared = any(taps < o.distinct(taps, rows, 1, 1) < taps * rows for o in operands)
    alive = rows * vectors * (2 if is_shared else 1) + vectors * (len(operands) - 1)
    return alive <= target.vector_registers + _TOO_MANY


def steps_written_out(taps: Sequence[int], work: int, unroll: int) -> int:
    """Steps of the reduction, each of `work` operations, that are written out: whole loops, as the recipe does it."""
    written_out = 1
    for extent in reversed(taps):
        if work * written_out * extent > unroll:
            break
        written_out *= extent
    return written_out


class TileCycles(NamedTuple):
    total: float
    edges: float  # of it, to come to the tile and to finish it


def tile_cycles(
    operands: Sequence[WindowOperand],
    taps: Sequence[int],
    tile: tuple[int, int],
    unroll: int,
    lanes: int,
    m: Machine,
) -> TileCycles:
    """Cycles of one tile of (rows, vectors); `taps` are the extents of the reduction, at most `unroll` operations of a
    step are written out.
    """
    rows, vectors = tile
    written_out = steps_written_out(taps, rows * vectors, unroll)
    steps = math.prod(taps) // written_out
    loads = sum(o.distinct(written_out, rows, vectors, lanes) for o in operands)
    busy = max(rows * vectors * written_out / m.fma_per_cycle, loads / m.loads_per_cycle)
    if steps > 1:
        busy = steps * (busy + _STEP_CYCLES)
    operations = (
        rows * vectors * (math.prod(taps) + _FINISH) + steps * loads / 2
    )  # half of the loads are operands
    waiting = math.prod(taps) * m.fma_latency * min(1.0, operations / m.operations_in_flight)
    finish, row = rows * vectors * _FINISH_CYCLES, rows * _ROW_CYCLES
    return TileCycles(max(busy, waiting) + finish + _TILE_CYCLES + row, finish + _TILE_CYCLES + row)


def line_cycles(
    operands: Sequence[WindowOperand], taps: Sequence[int], line: tuple[int, int], lanes: int, target: Target
) -> float:
    """Cycles of a line of (outputs, elements of each), in the best tiles for it."""
    outputs, columns = line

    def cycles(rows: int, vectors: int, unroll: int) -> float:
        return sum(
            n * times * tile_cycles(operands, taps, (size, width), unroll, lanes, target.machine).total
            for size, n in row_tiles(outputs, rows).items()
            for width, times in column_tiles(columns, vectors, lanes).items()
        )

    return min(
        cycles(r, v, u)
        for r in ROWS
        for v in VECTORS
        for u in UNROLLS
        if r <= outputs
        and (v - 1) * lanes < columns
        and fits_registers(operands, math.prod(taps), (r, v), target)
    )


def pieces_seconds(vectors: float, passed_bytes: float, room: float, m: Machine) -> float:
    """What `vectors` take more where an image is read in pieces of its lines, one piece of all before the next: of
    `passed_bytes` that pass by meanwhile, the cache does not keep what is beside, unless it has `room`.
    """
    return vectors * _FAR_VECTOR / m.hertz if passed_bytes > room else 0.0


def far_seconds(block: Block, rows: int, lanes: int, m: Machine) -> float:
    """How long reductions wait for operands that are read row by row, each row far from the last: a tile of `rows`
    outputs reads them once. Windows are short, and their rows stay near.
    """
    taps = [it for it in block.iters if it.kind is IterKind.REDUCE]
    if math.prod(it.extent for it in taps) <= _MOST_TAPS:
        return 0.0
    far = 0.0
    for ld in loads(block.store.value):
        steps = load_strides(ld, block)
        along = [abs(steps.get(it.var, 0)) * ld.dtype.bytes for it in taps]
        if ld.buffer is not block.store.buffer and ld.buffer.bytes > l1_room(m):
            far += min(along) >= PREFETCHED_BYTES
    vectors = math.prod(it.extent for it in block.iters) / lanes / rows
    return far * vectors * _FAR_VECTOR / m.hertz
