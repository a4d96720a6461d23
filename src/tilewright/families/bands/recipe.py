"""Windows in bands of rows: what a band of the result needs is computed just before it, and stays in a near cache.

    acc, T, P: as in `match.py`                 for bands of rows of the result:
    sum, D                           ──>            for blocks of channels:
    out                                                 fill the border of P
                                                        acc, and f of it into P, in register tiles
                                                        sum, and g of it into D, in register tiles
                                                    out, and what consumes it, in register tiles

What is between never goes to memory. Rows that two bands need are computed twice; blocks of channels share nothing.
Without a projection the blocks of channels are divided among workers too; if the windows take the whole image, they are
all there is.
"""

from dataclasses import dataclass

from tilewright.families.bands.match import BandChain, stored
from tilewright.families.gemm.recipe import (
    Contraction,
    fuse_group,
    reduction_order,
    register_tiles,
    try_contraction,
)
from tilewright.families.gemm.register_tile import ReductionNest, loops_of, take_epilogue, tile_nest
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.parallel import parallel_prefix
from tilewright.families.stream.elements import schedule_elements
from tilewright.families.window.recipe import gather_lanes
from tilewright.ir.expr import Scope, Var, free_vars
from tilewright.ir.layout import Layout, ReorderDims, SplitDim
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block, loop_names, loops_above
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.compute_at import ComputeAt
from tilewright.schedule.steps.compute_inline import ComputeInline
from tilewright.schedule.steps.fill_border import FillBorder
from tilewright.schedule.steps.loop_kind import Vectorize
from tilewright.schedule.steps.reindex import Reindex
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, IterKind


@dataclass(frozen=True, slots=True)
class BandTilePlan:
    """A register tile, and the multiply-adds written out in a step of its reduction. The rest is for contractions."""

    tile: RegisterTile
    unroll: int
    columns_outside: bool = False  # panels of columns outside, and the pixels of a band past each
    is_matrix: bool = (
        False  # of a projection: all pixels of a band are rows of tiles; otherwise those of a line
    )
    prefetch: int = 0  # steps ahead of which columns are asked for


@dataclass(frozen=True, slots=True)
class BandPlan:
    """DimSizes of elements; `rows` and `channels` divide those of the windows' result."""

    rows: int  # of a band
    channels: int  # of a block, a multiple of the columns of `expansion`
    depthwise: BandTilePlan
    expansion: BandTilePlan | None = None
    projection: BandTilePlan | None = None


def schedule_bands(s: Draft, chain: BandChain, plan: BandPlan, target: Target) -> None:
    """Schedule all blocks of the chain, which are as they were written, with what consumes the last of them."""
    depthwise = chain.depthwise.name
    made = None if plan.expansion is None else _take_expansion(s, chain, plan.expansion, target)
    epilogue = take_epilogue(s, depthwise, stored(chain.depthwise))
    gather_lanes(s, depthwise, target)
    if plan.projection is not None:
        around = _tile_projection(s, chain, plan, plan.projection, target)
        s.apply(ComputeAt(epilogue, around[-1]))
        s.apply(ComputeAt(depthwise, around[-1]))
        block = find_block(s.func, depthwise)
        loops = dict(zip((it.var for it in block.iters), loop_names(block), strict=True))
        channels = _tile_windows(s, chain, epilogue, loops, (), plan, target)
        shared = around
    else:
        around, loops = _part_windows(s, chain, plan)
        channels = _tile_windows(s, chain, epilogue, loops, around, plan, target)
        shared = (*around, channels)
    if plan.expansion is not None and made is not None:
        _produce(s, chain, plan.expansion, made, channels, target)
    parallel_prefix(s, shared)


# ------------------------------------------------------------------------------------------------------------ expansion


def _take_expansion(s: Draft, chain: BandChain, plan: BandTilePlan, target: Target) -> str:
    """Put the sums of the expansion into registers and its columns into panels: the block that stores what the windows
    read.
    """
    assert chain.expansion is not None
    name = chain.expansion.name
    if chain.padding is not None:
        if chain.between is not None:
            s.apply(ComputeInline(chain.between.name))
        s.apply(SetScope(stored(chain.expansion).name, Scope.REGISTER))
        made = chain.padding.name
    else:
        made = take_epilogue(s, name, stored(chain.expansion))
    if chain.is_flat:
        fuse_group(s, name, made, _contraction(s, name).rows[-2:])
    _lay_out(s, _contraction(s, name), plan.tile.columns, target)
    return made


def _produce(s: Draft, chain: BandChain, plan: BandTilePlan, made: str, at: str, target: Target) -> None:
    """Compute what the windows need in an iteration of the loop `at`, there."""
    assert chain.expansion is not None
    name = chain.expansion.name
    s.apply(ComputeAt(made, at))
    border: list[Block] = []
    if chain.padding is not None:
        border = s.apply(FillBorder(made, loop_names(find_block(s.func, made))[0])).blocks(s.func)
    s.apply(ComputeAt(name, at))
    c = _contraction(s, name)
    loop = dict(zip((it.var for it in c.block.iters), loop_names(c.block), strict=True))
    *others, row = [loop[it.var] for it in c.rows]
    col = loop[c.cols[-1].var]
    reduce = tuple(loop[it.var] for it in reduction_order(c))
    order = (col, *others, row) if plan.columns_outside else (*others, row, col)
    _tile_contraction(s, c, ReductionNest(name, made, order, row, col, reduce), plan, target)
    for side in border:
        _fill_in_vectors(s, side.name, target)


def _fill_in_vectors(s: Draft, name: str, target: Target) -> None:
    """Whole vectors of channels, which are innermost; what chooses the rows of a side does not ask for channels."""
    side = find_block(s.func, name)
    channel = side.store.indices[-1]
    (binding,) = [b for it, b in zip(side.iters, side.bindings, strict=True) if it.var is channel]
    own = [n.var.name for n in loops_above(s.func, side) if n.var in free_vars(binding)]
    lanes = target.lanes(side.store.buffer.dtype.bytes)
    _, vector = s.apply(Split(own[-1], (None, lanes))).names
    names = [n.var.name for n in loops_above(s.func, find_block(s.func, name))]
    inside = names[names.index(vector) + 1 :]
    if inside:  # vectors around loops would be filled element by element
        s.apply(Reorder((*inside, vector)))
    s.apply(Vectorize(vector))


def try_tiled(block: Block) -> Contraction | None:
    """The block as a contraction of rows and columns that register tiles can be cut from."""
    found = try_contraction(block)
    return None if found is None or not found.rows or len(found.cols) > 1 or found.batch else found


def _contraction(s: Draft, name: str) -> Contraction:
    found = try_tiled(find_block(s.func, name))
    if found is None:
        raise ScheduleError(f"{name} is not one contraction with rows and columns")
    return found


def _lay_out(s: Draft, c: Contraction, width: int, target: Target) -> None:
    """Copy B into panels [column panel, k…, width]."""
    order = (*reduction_order(c), c.cols[-1])
    copy = s.apply(Reindex(c.block.name, c.b.buffer.name, tuple(it.var.name for it in order)))
    at = len(order) - 1
    s.apply(TransformLayout(copy.copy, Layout((SplitDim(at, width), ReorderDims((at, *range(at), at + 1))))))
    schedule_elements(s, copy.copy, target)


def _tile_contraction(
    s: Draft, c: Contraction, nest: ReductionNest, plan: BandTilePlan, target: Target
) -> None:
    tiles, lanes = register_tiles(target, c.b.dtype), target.lanes(c.b.dtype.bytes)
    tile_nest(s, nest, plan.tile, lanes, plan.unroll, tiles, is_shared=False, prefetch=plan.prefetch)


# ------------------------------------------------------------------------------------------------------------ windows


def _part_windows(s: Draft, chain: BandChain, plan: BandPlan) -> tuple[tuple[str, ...], dict[Var, str]]:
    """Cut the rows of the windows into bands: the loops around a band, and the loop of each iterator in it."""
    block, axes = find_block(s.func, chain.depthwise.name), chain.axes
    loops = loops_of(block)
    ours = {it.var for it in (axes.high, axes.across, axes.channel) if it is not None}
    spatial = [it.var for it in block.iters if it.kind is IterKind.SPATIAL]
    around = [loops[v] for v in spatial if v not in ours]
    if axes.high is not None:
        bands, loops[axes.high.var] = s.apply(Split(loops[axes.high.var], (None, plan.rows))).names
        around.append(bands)
    return tuple(around), loops


def _tile_windows(
    s: Draft,
    chain: BandChain,
    epilogue: str,
    loops: dict[Var, str],
    around: tuple[str, ...],
    plan: BandPlan,
    target: Target,
) -> str:
    """Tile the windows of a band, whose iterators have these loops, inside blocks of channels: the loop over these."""
    name, axes = chain.depthwise.name, chain.axes
    block = find_block(s.func, name)
    reduce = tuple(loops[it.var] for it in block.iters if it.kind is IterKind.REDUCE)
    row = s.apply(AddUnitLoop(name)).loop if axes.across is None else loops[axes.across.var]
    channels, col = s.apply(Split(loops[axes.channel.var], (None, plan.channels))).names
    ours = {it.var for it in (axes.across, axes.channel) if it is not None}
    inside = [loops[it.var] for it in block.iters if it.kind is IterKind.SPATIAL and it.var not in ours]
    inside = [n for n in inside if n not in around]
    nest = ReductionNest(name, epilogue, (*around, channels, *inside, row, col), row, col, reduce)
    lanes = target.lanes(stored(chain.depthwise).dtype.bytes)
    tile_nest(s, nest, plan.depthwise.tile, lanes, plan.depthwise.unroll, is_shared=False)
    return channels


# --------------------------------------------------------------------------------------------------------- projection


def _tile_projection(
    s: Draft, chain: BandChain, band: BandPlan, plan: BandTilePlan, target: Target
) -> tuple[str, ...]:
    """Tile the projection inside bands of rows: the loops around, the last of which goes over bands."""
    assert chain.projection is not None and chain.pixel is not None
    name, (high, across) = chain.projection.name, chain.pixel
    epilogue = take_epilogue(s, name, stored(chain.projection))
    size = band.rows
    if plan.is_matrix:
        fuse_group(s, name, epilogue, (high, across))
        size *= across.extent
    _lay_out(s, _contraction(s, name), plan.tile.columns, target)
    c = _contraction(s, name)
    loops, (*others, row) = loops_of(c.block), c.rows
    cut = row if plan.is_matrix else next(it for it in others if it.var is high.var)
    around = tuple(loops[it.var] for it in others if it is not cut)
    bands, lines = s.apply(Split(loops[cut.var], (None, size))).names
    inside = (lines,) if plan.is_matrix else (lines, loops[row.var])
    col = loops[c.cols[-1].var]
    order = (*around, bands, *((col, *inside) if plan.columns_outside else (*inside, col)))
    reduce = tuple(loops[it.var] for it in reduction_order(c))
    _tile_contraction(s, c, ReductionNest(name, epilogue, order, inside[-1], col, reduce), plan, target)
    return (*around, bands)
