"""Reductions that leave the innermost dimension of their output alone: pooling, depthwise convolution,
means over pixels.

The output's innermost dimension goes into vector lanes, a few neighbouring outputs share a tile in
registers, and the reduction runs inside. Windows of neighbours overlap, so a tile loads less than its outputs
would one by one; how many share it is what takes the least time by counting loads and operations.
"""

import math
from itertools import product

from tilewright.ir.expr import Const, Expr, Load, Var, as_index, free_vars, loads
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.nest import find_block
from tilewright.schedule.recipes.contraction import address_steps
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.register_tile import Nest, loops_of, take_epilogue, tile_nest
from tilewright.schedule.recipes.spatial import memory_order, schedule_spatial
from tilewright.schedule.recipes.tiles import Tile, column_tiles, row_tiles
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.reindex import Reindex
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, Iter, IterKind, Store

# Outputs along the next dimension that share a tile. What they share stays in registers between its uses; that of more
# rows does not fit beside the accumulators.
_MAX_ROWS = 4
_MAX_VECTORS = 8
_UNROLLED = 64  # operations on vectors that are written out in a step of the reduction
_OPS_PER_CYCLE = 2.0  # multiply-adds or loads
_LATENCY = 4.0  # cycles until an accumulator can be added to again
_STEP_CYCLES = 2.0  # what a step of a loop costs beside: addresses, the jump


def is_lane_reduction(block: Block) -> bool:
    """Is the block a reduction whose loads can be vectors along the output's innermost dimension?"""
    store = block.body
    if (
        not isinstance(store, Store)
        or block.init is None
        or not all(isinstance(i, Var | Const) for i in store.indices)
    ):
        return False
    inner = _innermost(block)
    if inner is None or inner.extent < 4:
        return False
    steps = [_step(ld, inner.var, block) for ld in _operands(block)]
    return None not in steps and 1 in steps


def _step(ld: Load, var: Var, block: Block) -> int | None:
    """How far the address moves with `var`; None if not by the same step everywhere."""
    used = [i for i in ld.indices if var in free_vars(i)]
    steps = address_steps(ld, block)
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    for i in used:
        if any(atom is not var and var in free_vars(atom) for atom, _ in simplify.linear(i).terms):
            return None
    return steps.get(var, 0)


def _operands(block: Block) -> list[Load]:
    """What the block loads, but for its accumulator."""
    assert isinstance(block.body, Store)
    out = block.body.buffer
    return [ld for ld in loads(block.body.value) if ld.buffer is not out]


def _innermost(block: Block) -> Iter | None:
    assert isinstance(block.body, Store)
    by_var = {it.var: it for it in block.iters}
    spatial = [by_var[i] for i in block.body.indices if isinstance(i, Var) and i in by_var]
    return spatial[-1] if spatial else None


def schedule_lanes(s: Draft, name: str, target: Target) -> None:
    block = find_block(s.func, name)
    assert isinstance(block.body, Store)
    epilogue = take_epilogue(s, name, block.body.buffer)
    _gather_lanes(s, name, target)
    block = find_block(s.func, name)
    inner = _innermost(block)
    assert inner is not None and isinstance(block.body, Store)
    loops = loops_of(block)
    spatial = [n for n in memory_order(block) if n not in _reduce_loops(block)]
    col = loops[inner.var]
    others = [n for n in spatial if n != col]
    row = others[-1] if others else s.apply(AddUnitLoop(name)).loop
    lanes = target.lanes(block.body.buffer.dtype.bytes)
    outer = [n for n in others if n != row]
    nest = Nest(name, epilogue, (*outer, row, col), row, col, tuple(_reduce_loops(block)))
    tile_nest(s, nest, choose_lane_tile(block, row, col, target), lanes, _UNROLLED)


def choose_lane_tile(block: Block, row: str, col: str, target: Target) -> Tile:
    """The tile of outputs along the loops `row` and `col` (in lanes) that takes the least time per output."""
    assert isinstance(block.body, Store)
    by_loop = {loop: v for v, loop in loops_of(block).items()}
    extents = {it.var: it.extent for it in block.iters}
    lanes = target.lanes(block.body.buffer.dtype.bytes)
    rows, columns = extents.get(by_loop.get(row, Var(row)), 1), extents[by_loop[col]]
    operands = [_Operand(ld, block, by_loop.get(row), by_loop[col]) for ld in _operands(block)]
    taps = [it.extent for it in block.iters if it.kind is IterKind.REDUCE]
    best, best_time = Tile(1, lanes), math.inf
    for height, vectors in product(range(1, min(rows, _MAX_ROWS) + 1), range(1, _MAX_VECTORS + 1)):
        if height * vectors + 3 > target.vector_registers or (vectors - 1) * lanes >= columns:
            continue
        time = sum(
            n * m * _tile_time(operands, taps, size, width, lanes)
            for size, n in row_tiles(rows, height).items()
            for width, m in column_tiles(columns, vectors, lanes).items()
        )
        if time < best_time * 0.999:
            best, best_time = Tile(max(row_tiles(rows, height)), vectors * lanes), time
    return best


def _tile_time(operands: "list[_Operand]", taps: list[int], rows: int, vectors: int, lanes: int) -> float:
    """Cycles of one tile."""
    unrolled = (
        1  # steps of the reduction that are written out, as `tile_nest` does it; only these share loads
    )
    for extent in reversed(taps):
        if rows * vectors * unrolled * extent > _UNROLLED:
            break
        unrolled *= extent
    steps = math.prod(taps) // unrolled
    loads = sum(o.distinct(unrolled, rows, vectors, lanes) for o in operands)
    cycles = max(rows * vectors * unrolled, loads) / _OPS_PER_CYCLE
    if steps > 1:  # the next step waits for this one; tiles do not wait for each other
        cycles = max(cycles, unrolled * _LATENCY)
    return steps * (cycles + _STEP_CYCLES) + rows * vectors


class _Operand:
    """Where a load of the block goes, in elements."""

    def __init__(self, load: Load, block: Block, row: Var | None, col: Var) -> None:
        steps = address_steps(load, block)
        self.row, self.col = steps.get(row, 0) if row is not None else 0, steps.get(col, 0)
        self._offsets = self._walk(load, block)

    def _walk(self, load: Load, block: Block) -> list[int | None]:
        """The offset of each step of the innermost reduction loops, from the first on; None where it is not known."""
        reduce = [it for it in block.iters if it.kind is IterKind.REDUCE]
        while reduce and math.prod(it.extent for it in reduce) > _UNROLLED:
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

    def distinct(self, taps: int, rows: int, vectors: int, lanes: int) -> int:
        """How many loads a tile makes for `taps` steps of the reduction."""
        offsets = self._offsets[:taps]
        if None in offsets or len(offsets) < taps:
            return taps * rows * vectors
        places = product(offsets, range(rows), range(vectors))
        return len({(t or 0) + r * self.row + v * lanes * self.col for t, r, v in places})


def _gather_lanes(s: Draft, name: str, target: Target) -> None:
    """Copy operands that keep the lanes apart (a filter per channel) into an order that has them side by side."""
    block = find_block(s.func, name)
    inner = _innermost(block)
    assert inner is not None
    for ld in _operands(block):
        used = {v for i in ld.indices for v in free_vars(i)}
        if inner.var in used and _step(ld, inner.var, block) != 1:
            order = [it.var.name for it in block.iters if it.var in used and it.var is not inner.var]
            copy = s.apply(Reindex(name, ld.buffer.name, (*order, inner.var.name)))
            schedule_spatial(s, copy.copy, target)


def _reduce_loops(block: Block) -> list[str]:
    loops = loops_of(block)
    return [loops[it.var] for it in block.iters if it.kind is IterKind.REDUCE]
