"""The time of a reduction with the output's innermost dimension in vector lanes, by counting.

A tile is some neighbouring outputs times some vectors, each an accumulator. The next step of an accumulator waits for
the last one, so there must be enough of them to fill the pipeline. Windows of neighbouring outputs overlap: what they
share in the steps that are written out is loaded once.
"""

import math
from collections.abc import Sequence
from itertools import product

from tilewright.cost.machine import Machine
from tilewright.families.gemm.recipe import address_steps
from tilewright.ir.expr import Expr, Load, Var, as_index
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.tir.stmt import Block, IterKind

_STEP_CYCLES = 2.0  # what a step of a loop costs beside: addresses, the jump
_MOST_TAPS = 128  # steps of the reduction that are ever written out


class LaneOperand:
    """Where a load of the block goes, in elements."""

    def __init__(self, load: Load, block: Block, row: Var | None, col: Var) -> None:
        steps = address_steps(load, block)
        self._row, self._col = steps.get(row, 0) if row is not None else 0, steps.get(col, 0)
        self._offsets = _offsets(load, block)

    def distinct(self, taps: int, rows: int, vectors: int, lanes: int) -> int:
        """How many loads a tile makes for `taps` steps of the reduction."""
        offsets = self._offsets[:taps]
        if None in offsets or len(offsets) < taps:
            return taps * rows * vectors
        places = product(offsets, range(rows), range(vectors))
        return len({(t or 0) + r * self._row + v * lanes * self._col for t, r, v in places})


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


def tile_cycles(
    operands: Sequence[LaneOperand],
    taps: Sequence[int],
    tile: tuple[int, int],
    unroll: int,
    lanes: int,
    m: Machine,
) -> float:
    """Cycles of one tile of (rows, vectors); `taps` are the extents of the reduction, at most `unroll` operations of a
    step are written out.
    """
    rows, vectors = tile
    written_out = 1  # steps, as the recipe does it
    for extent in reversed(taps):
        if rows * vectors * written_out * extent > unroll:
            break
        written_out *= extent
    steps = math.prod(taps) // written_out
    loads = sum(o.distinct(written_out, rows, vectors, lanes) for o in operands)
    cycles = max(rows * vectors * written_out / m.fma_per_cycle, loads / m.loads_per_cycle)
    if steps > 1:  # the next step waits for this one; tiles do not wait for each other
        cycles = max(cycles, written_out * m.fma_latency)
    return steps * (cycles + _STEP_CYCLES) + rows * vectors
