"""A product whose result is padded and then read through windows of one channel: expansion and depthwise filter.

    for h, w, c, k: acc[h, w, c] += x[h, w, k] * u[k, c]           for bands of rows, blocks of channels:
    for h, w, c: P[h, w, c] = f(acc[h - 1, w - 1, c]) inside,  ──>     fill P with 0
                              0 outside                                acc, and f of it into P, in register tiles
    for h, w, c, r, s: sum[h, w, c] += P[h + r, w + s, c] * v[…]       sum, and g of it into Y, in register tiles
    for h, w, c: Y[h, w, c] = g(sum[h, w, c])

What a band of the result needs of P stays in a near cache from its producer to its consumer, and never goes to memory.
Rows that two bands need are computed twice; blocks of channels share nothing.
"""

from dataclasses import dataclass

from tilewright.ir.expr import Const, Load, Scope, Select, free_vars
from tilewright.ir.layout import Layout
from tilewright.ir.layout import Reorder as ReorderDims
from tilewright.ir.layout import Split as SplitDim
from tilewright.schedule.moves import loop_names
from tilewright.schedule.nest import find_block, loops_above
from tilewright.schedule.recipes.contraction import (
    Contraction,
    reduction_order,
    register_tiles,
    try_contraction,
)
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.inline import single_consumer
from tilewright.schedule.recipes.lanes import gather_lanes, lane_and_rows
from tilewright.schedule.recipes.parallel import parallel_prefix
from tilewright.schedule.recipes.register_tile import Nest, loops_of, take_epilogue, tile_nest
from tilewright.schedule.recipes.spatial import memory_order, schedule_spatial
from tilewright.schedule.recipes.tiles import Tile
from tilewright.schedule.steps.compute_at import ComputeAt
from tilewright.schedule.steps.compute_inline import ComputeInline
from tilewright.schedule.steps.fill_border import FillBorder
from tilewright.schedule.steps.loop_kind import Vectorize
from tilewright.schedule.steps.reindex import Reindex
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, IterKind, Store, blocks

_BLOCKS = 5  # the product, f, the padding, the windows, g


@dataclass(frozen=True, slots=True)
class Chain:
    """The blocks of such a Func."""

    product: Block
    between: Block  # f of the product
    padding: Block
    windows: Block


@dataclass(frozen=True, slots=True)
class BandPlan:
    """Sizes of elements; `rows` and `channels` divide those of the result."""

    rows: int  # of a band
    channels: int  # of a block, a multiple of the columns of `product`
    product: Tile
    product_unroll: int
    windows: Tile
    windows_unroll: int


def try_chain(func: Func) -> Chain | None:
    """The Func as such a chain, with nothing else in it."""
    every = list(blocks(func.body))
    reductions = [b for b in every if b.is_reduction]
    if len(reductions) != 2 or try_contraction(reductions[0]) is None:
        return None
    product, windows = reductions
    if len(every) > _BLOCKS:
        return None
    between = _only_reader(func, product)
    padding = None if between is None else _only_reader(func, between)
    reader = None if padding is None else _only_reader(func, padding)
    if between is None or padding is None or reader is not windows:
        return None
    if between.is_reduction or not is_padding(padding):
        return None
    return Chain(product, between, padding, windows)


def _only_reader(func: Func, block: Block) -> Block | None:
    """The only block that reads what `block` stores, if that stays in the Func."""
    store = block.body
    if not isinstance(store, Store) or store.buffer not in func.locals:
        return None
    return single_consumer(func, store.buffer)


def is_padding(block: Block) -> bool:
    """Does the block copy into the middle of a constant?"""
    value = block.body.value if isinstance(block.body, Store) and not block.is_reduction else None
    return isinstance(value, Select) and isinstance(value.a, Load) and isinstance(value.b, Const)


def schedule_bands(s: Draft, chain: Chain, plan: BandPlan, target: Target) -> None:
    """Schedule all blocks of the chain, which are as they were written."""
    product, padding, windows = chain.product.name, chain.padding.name, chain.windows.name
    s.apply(ComputeInline(chain.between.name))
    c = _contraction(s, product)
    s.apply(SetScope(c.store.buffer.name, Scope.REGISTER))
    _lay_out(s, c, plan.product.columns, target)
    outer, block = _tile_windows(s, windows, plan, target)
    s.apply(ComputeAt(padding, block))
    own = loop_names(find_block(s.func, padding))
    border = s.apply(FillBorder(padding, own[0]))
    s.apply(ComputeAt(product, block))
    _tile_product(s, product, padding, plan, target)
    for side in border.blocks(s.func):
        _fill_in_vectors(s, side, target)
    parallel_prefix(s, (*outer, block))


def _fill_in_vectors(s: Draft, side: Block, target: Target) -> None:
    """Whole vectors of channels, which are innermost; what chooses the rows of a side does not ask for channels."""
    assert isinstance(side.body, Store)
    channel = side.body.indices[-1]
    (binding,) = [b for it, b in zip(side.iters, side.bindings, strict=True) if it.var is channel]
    own = [n.var.name for n in loops_above(s.func, side) if n.var in free_vars(binding)]
    lanes = target.lanes(side.body.buffer.dtype.bytes)
    s.apply(Vectorize(s.apply(Split(own[-1], (None, lanes))).names[1]))


def _contraction(s: Draft, name: str) -> Contraction:
    found = try_contraction(find_block(s.func, name))
    if found is None or not found.rows:
        raise ScheduleError(f"{name} is no product with rows")
    return found


def _lay_out(s: Draft, c: Contraction, width: int, target: Target) -> None:
    """Copy B into panels [column panel, k…, width]."""
    order = (*reduction_order(c), c.cols[-1])
    if len(c.cols) > 1 or c.batch:
        raise ScheduleError(f"{c.block.name} is not one product")
    copy = s.apply(Reindex(c.block.name, c.b.buffer.name, tuple(it.var.name for it in order)))
    at = len(order) - 1
    s.apply(TransformLayout(copy.copy, Layout((SplitDim(at, width), ReorderDims((at, *range(at), at + 1))))))
    schedule_spatial(s, copy.copy, target)


def _tile_windows(s: Draft, name: str, plan: BandPlan, target: Target) -> tuple[tuple[str, ...], str]:
    """Tile the windows inside bands and blocks: the loops around the blocks, and the loop over them."""
    store = find_block(s.func, name).body
    assert isinstance(store, Store)
    epilogue = take_epilogue(s, name, store.buffer)
    gather_lanes(s, name, target)
    block = find_block(s.func, name)
    inner, along = lane_and_rows(block)
    loops = loops_of(block)
    reduce = [loops[it.var] for it in block.iters if it.kind is IterKind.REDUCE]
    if along is None:
        raise ScheduleError(f"the output of {name} has no rows")
    col, row = loops[inner.var], loops[along.var]
    outer = [n for n in memory_order(block) if n not in (*reduce, row, col)]
    if not outer:
        raise ScheduleError(f"the output of {name} has no bands of rows")
    bands, high = s.apply(Split(outer[-1], (None, plan.rows))).names
    channels, col = s.apply(Split(col, (None, plan.channels))).names
    around = (*outer[:-1], bands)
    nest = Nest(name, epilogue, (*around, channels, high, row, col), row, col, tuple(reduce))
    lanes = target.lanes(store.buffer.dtype.bytes)
    tile_nest(s, nest, plan.windows, lanes, plan.windows_unroll, is_shared=False)
    return around, channels


def _tile_product(s: Draft, name: str, epilogue: str, plan: BandPlan, target: Target) -> None:
    """Tile the product where it is computed now, with what takes up its result."""
    c = _contraction(s, name)
    loop = dict(zip((it.var for it in c.block.iters), loop_names(c.block), strict=True))
    *others, row = [loop[it.var] for it in c.rows]
    col = loop[c.cols[-1].var]
    reduce = tuple(loop[it.var] for it in reduction_order(c))
    nest = Nest(name, epilogue, (*others, row, col), row, col, reduce)
    tiles = register_tiles(target, c.b.dtype)
    lanes = target.lanes(c.b.dtype.bytes)
    tile_nest(s, nest, plan.product, lanes, plan.product_unroll, tiles, is_shared=False)
