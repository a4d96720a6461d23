"""Reductions that leave the innermost dimension of their output alone: depthwise convolution, means over pixels, pools
that are not quicker one axis after the other (`gir/windows.py`).

The output's innermost dimension goes into vector lanes, a few neighbouring outputs share a tile in
registers, and the reduction runs inside. Windows of neighbours overlap, so a tile loads less than its outputs
would one by one.
"""

from dataclasses import dataclass
from enum import IntEnum

from tilewright.families.gemm.recipe import load_strides
from tilewright.families.gemm.register_tile import ReductionNest, loops_of, take_epilogue, tile_nest
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.memory_order import memory_order
from tilewright.families.stream.elements import schedule_elements
from tilewright.ir.expr import Binary, BinaryOp, Const, Expr, Load, Var, free_vars, loads
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.reindex import Reindex
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, Iter, IterKind


def is_lane_reduction(block: Block) -> bool:
    """Is the block a reduction whose loads can be vectors along the output's innermost dimension?"""
    store = block.try_store
    if (
        store is None
        or block.init is None
        or not all(isinstance(i, Const) or _moved(i) is not None for i in store.indices)
    ):
        return False
    inner = _innermost(block)
    if inner is None or inner.extent < 4:
        return False
    steps = [_step(ld, inner.var, block) for ld in operand_loads(block)]
    return None not in steps and 1 in steps


def _step(ld: Load, var: Var, block: Block) -> int | None:
    """How far the address moves with `var`; None if not by the same step everywhere."""
    used = [i for i in ld.indices if var in free_vars(i)]
    steps = load_strides(ld, block)
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    for i in used:
        if any(atom is not var and var in free_vars(atom) for atom, _ in simplify.linear(i).terms):
            return None
    return steps.get(var, 0)


def operand_loads(block: Block) -> list[Load]:
    """What the block loads, but for its accumulator."""
    out = block.store.buffer
    return [ld for ld in loads(block.store.value) if ld.buffer is not out]


def _moved(index: Expr) -> Var | None:
    """The variable that an index is, or is a fixed distance from: a result may be stored inside a frame of padding."""
    if isinstance(index, Binary) and index.op is BinaryOp.ADD and isinstance(index.b, Const):
        index = index.a
    return index if isinstance(index, Var) else None


def _innermost(block: Block) -> Iter | None:
    by_var = {it.var: it for it in block.iters}
    spatial = [by_var[v] for v in map(_moved, block.store.indices) if v in by_var]
    return spatial[-1] if spatial else None


def lane_and_rows(block: Block) -> tuple[Iter, Iter | None]:
    """The iterator in vector lanes, and the one along which a tile has several outputs: the next in memory."""
    inner, loops = _innermost(block), loops_of(block)
    assert inner is not None
    spatial = [it for it in block.iters if it.kind is IterKind.SPATIAL and it is not inner]
    order = memory_order(block)
    return inner, max(spatial, key=lambda it: order.index(loops[it.var]), default=None)


class LoopOrder(IntEnum):
    """Of the loops around tiles, from the outermost in."""

    ROWS_OUTSIDE = 0  # others, rows, columns
    COLUMNS_OUTSIDE = 1  # others, columns, rows: a filter stays while a line passes by
    COLUMNS_FIRST = 2  # columns, others, rows: it stays while the whole image does


@dataclass(frozen=True, slots=True)
class LanePlan:
    """How such a reduction runs."""

    tile: RegisterTile
    unroll: int  # multiply-adds written out in a step, at most
    order: LoopOrder = LoopOrder.ROWS_OUTSIDE
    prefetch: int = 0  # steps of the reduction ahead of which vectors are asked for


def schedule_lanes(s: Draft, name: str, plan: LanePlan, target: Target) -> None:
    """Tile the reduction `name`, with what consumes its result: `plan.tile.rows` outputs of as many lanes as it has
    columns.
    """
    block = find_block(s.func, name)
    epilogue = take_epilogue(s, name, block.store.buffer)
    gather_lanes(s, name, target)
    block = find_block(s.func, name)
    inner, rows = lane_and_rows(block)
    loops = loops_of(block)
    spatial = [n for n in memory_order(block) if n not in _reduce_loops(block)]
    col = loops[inner.var]
    row = s.apply(AddUnitLoop(name)).loop if rows is None else loops[rows.var]
    outer = [n for n in spatial if n not in (row, col)]
    order = {
        LoopOrder.ROWS_OUTSIDE: (*outer, row, col),
        LoopOrder.COLUMNS_OUTSIDE: (*outer, col, row),
        LoopOrder.COLUMNS_FIRST: (col, *outer, row),
    }[plan.order]
    nest = ReductionNest(name, epilogue, order, row, col, tuple(_reduce_loops(block)))
    lanes = target.lanes(block.store.buffer.dtype.bytes)
    tile_nest(s, nest, plan.tile, lanes, plan.unroll, prefetch=plan.prefetch)


def gather_lanes(s: Draft, name: str, target: Target) -> None:
    """Copy operands that keep the lanes apart (a filter per channel) into an order that has them side by side."""
    block = find_block(s.func, name)
    inner = _innermost(block)
    assert inner is not None
    for ld in operand_loads(block):
        used = {v for i in ld.indices for v in free_vars(i)}
        if inner.var in used and _step(ld, inner.var, block) != 1:
            order = [it.var.name for it in block.iters if it.var in used and it.var is not inner.var]
            copy = s.apply(Reindex(name, ld.buffer.name, (*order, inner.var.name)))
            schedule_elements(s, copy.copy, target)


def _reduce_loops(block: Block) -> list[str]:
    loops = loops_of(block)
    return [loops[it.var] for it in block.iters if it.kind is IterKind.REDUCE]
