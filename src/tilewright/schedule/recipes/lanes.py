"""Reductions that leave the innermost dimension of their output alone: pooling, depthwise convolution,
means over pixels.

The output's innermost dimension goes into vector lanes, a few neighbouring outputs share a tile in
registers, and the reduction runs inside.
"""

from tilewright.ir.expr import Const, Var, free_vars, loads
from tilewright.schedule.nest import find_block
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.register_tile import Nest, loops_of, take_epilogue, tile_nest
from tilewright.schedule.recipes.spatial import memory_order
from tilewright.schedule.recipes.tiles import Tile, row_tiles
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, Iter, IterKind, Store

_ROWS = 4  # outputs along the next dimension that share a tile


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
    for ld in loads(store.value):
        used = [d for d, i in enumerate(ld.indices) if inner.var in free_vars(i)]
        if used and (used != [len(ld.indices) - 1] or ld.indices[-1] is not inner.var):
            return False
    return any(
        inner.var in free_vars(i)
        for ld in loads(store.value)
        if ld.buffer is not store.buffer
        for i in ld.indices
    )


def _innermost(block: Block) -> Iter | None:
    assert isinstance(block.body, Store)
    by_var = {it.var: it for it in block.iters}
    spatial = [by_var[i] for i in block.body.indices if isinstance(i, Var) and i in by_var]
    return spatial[-1] if spatial else None


def schedule_lanes(s: Draft, name: str, target: Target) -> None:
    block = find_block(s.func, name)
    assert isinstance(block.body, Store)
    epilogue = take_epilogue(s, name, block.body.buffer)
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
    height = max(row_tiles(s.loop(row).extent, _ROWS))
    vectors = 1 if height > 1 else min(8, max(1, inner.extent // lanes))
    nest = Nest(name, epilogue, (*outer, row, col), row, col, tuple(_reduce_loops(block)))
    tile_nest(s, nest, Tile(height, vectors * lanes), lanes)


def _reduce_loops(block: Block) -> list[str]:
    loops = loops_of(block)
    return [loops[it.var] for it in block.iters if it.kind is IterKind.REDUCE]
