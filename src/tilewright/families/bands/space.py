"""The rule for depthwise convolutions with a contraction before or after them: in bands of rows, near the core."""

from dataclasses import replace
from math import prod

import numpy as np

from tilewright.cost.parallel import ranked_seconds
from tilewright.cost.register_tile import UNROLL
from tilewright.families.bands.cost import (
    BandForm,
    band_cycles,
    banded_cycles,
    bands,
    best_expansion_tile,
    projection_tile,
)
from tilewright.families.bands.match import BandChain, is_pixelwise, rows_operand, stored, try_band_chain
from tilewright.families.bands.recipe import BandPlan, BandTilePlan, schedule_bands
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.recipe import strides_along
from tilewright.families.gemm.space import epilogue_of
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.window.cost import combining_work
from tilewright.families.window.recipe import is_lane_reduction, operand_loads
from tilewright.families.window.space import WindowSpace
from tilewright.ir.expr import Expr, Load, Var, free_vars
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.draft import Draft
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, Iter, IterKind, blocks


class BandsSpace(Space):
    family = "bands"

    def __init__(self, start: Draft, chain: BandChain, form: BandForm, target: Target) -> None:
        self._start, self._chain, self._form, self._target = start, chain, form, target
        self._windows = WindowSpace(start, chain.depthwise.name, target)
        self._points = np.array(bands(form, target), dtype=np.int64).reshape(-1, 2)
        heights, widths = (tuple(int(v) for v in np.unique(self._points[:, n])) for n in range(2))
        self.knobs = (Knob("rows", heights), Knob("channels", widths))

    def points(self) -> Points:
        return self._points

    def cost(self, points: Points) -> Costs:
        return np.array([self._seconds(int(r), int(c)) for r, c in points])

    def _seconds(self, rows: int, channels: int) -> float:
        form, m = self._form, self._target.machine
        depthwise = form.channels // channels * self._windows.best_tile(channels)[1]
        if m.threads == 1:
            return banded_cycles(form, rows, channels, self._target) / m.hertz + depthwise
        cycles, parts = band_cycles(form, rows, channels, self._target)
        return float(ranked_seconds(np.array(cycles / m.hertz + depthwise), parts, m))

    def build(self, decisions: KnobValues) -> Draft:
        s = self._start.branch()
        names = {b.name for b in blocks(s.func.body)}
        schedule_bands(s, self._chain, self._plan(decisions["rows"], decisions["channels"]), self._target)
        schedule_rest(s, names, self._target)
        return s

    def _plan(self, rows: int, channels: int) -> BandPlan:
        form, target, lanes = self._form, self._target, self._target.lanes(self._form.bytes_each)
        expansion = projection = None
        if form.k:
            found = best_expansion_tile(form, channels, target)
            if found is None:
                raise ScheduleError(f"no register tile has columns that divide {channels} channels")
            expansion = BandTilePlan(RegisterTile(found[0], found[1] * lanes), UNROLL)
        if form.projected:
            best = projection_tile(form, *form.lines(rows), target)
            tile = RegisterTile(best.rows, best.vectors * lanes)
            projection = BandTilePlan(tile, UNROLL, best.columns_outside, form.is_matrix)
        (height, vectors, unroll), _ = self._windows.best_tile(channels)
        return BandPlan(
            rows, channels, BandTilePlan(RegisterTile(height, vectors * lanes), unroll), expansion, projection
        )


def bands_space(request: ScheduleRequest) -> Space | None:
    """The space of a Func that is such a chain."""
    start = request.plain
    chain = None if start is None else try_band_chain(start.func)
    if start is None or chain is None or not is_lane_reduction(chain.depthwise):
        return None
    form = try_form(chain)
    if form is None:
        return None
    return BandsSpace(start, chain, replace(form, is_matrix=_is_matrix(start, chain)), request.target)


def _is_matrix(start: Draft, chain: BandChain) -> bool:
    """Do the pixels of the projection's result follow each other in memory?"""
    if chain.projection is None or chain.pixel is None:
        return True
    epilogue = epilogue_of(start, chain.projection.name)
    accumulator, result = chain.projection.store, epilogue.store
    group = tuple(epilogue.iters[accumulator.indices.index(it.var)] for it in chain.pixel)
    return strides_along(Load(result.buffer, result.indices), epilogue, group) is not None


def try_form(chain: BandChain) -> BandForm | None:
    """The chain by numbers, if its elements all have one size. Layouts do not matter."""
    axes, depthwise, shape = chain.axes, chain.depthwise, chain.image.buffer.shape
    every = (chain.expansion, chain.between, chain.padding, depthwise, chain.after, chain.projection)
    there = [b for b in every if b is not None]
    sizes = {stored(b).dtype.bytes for b in there}
    sizes |= {ld.dtype.bytes for b in there if b.is_reduction for ld in operand_loads(b)}
    if len(sizes) != 1 or shape[axes.columns_at] < 2:
        return None
    ours = {it.var for it in (axes.high, axes.across, axes.channel) if it is not None}
    outer = [it for it in depthwise.iters if it.kind is IterKind.SPATIAL and it.var not in ours]
    high, across = (1 if it is None else it.extent for it in (axes.high, axes.across))
    stride, reach = _slide(depthwise, chain.image.indices[axes.rows_at], axes.high)
    column_stride, _ = _slide(depthwise, chain.image.indices[axes.columns_at], axes.across)
    form = BandForm(
        images=prod(it.extent for it in outer),
        rows=high,
        channels=axes.channel.extent,
        stride=stride,
        reach=reach,
        in_rows=shape[axes.rows_at],
        in_columns=shape[axes.columns_at],
        wide_columns=shape[axes.columns_at],
        k=0,
        bytes_each=sizes.pop(),
        is_padded=chain.padding is not None,
        columns=across,
        projected=0 if chain.projection is None else _columns(chain, chain.projection),
        is_pool=len(operand_loads(depthwise)) == 1,
        taps=(
            _taps(depthwise, chain.image.indices[axes.rows_at]),
            _taps(depthwise, chain.image.indices[axes.columns_at]),
        ),
        column_stride=column_stride,
        tap_work=combining_work(depthwise.store.value),
    )
    if chain.expansion is None or axes.made is None:
        return form
    (row, column), k = axes.made, [it.extent for it in chain.expansion.iters if it.kind is IterKind.REDUCE]
    if chain.is_flat:
        pixels = row.extent * column.extent
        return replace(form, reach=1, in_rows=1, in_columns=pixels, wide_columns=pixels, k=prod(k))
    reads = _row_reads(chain.expansion, row, form.images)
    return replace(form, in_rows=row.extent, in_columns=column.extent, k=prod(k), row_reads=reads)


def _slide(depthwise: Block, index: Expr, high: Iter | None) -> tuple[int, int]:
    """How far windows slide from one result to the next, and how far each of them reaches."""
    extents = {it.var: it.extent for it in depthwise.iters}
    simplify = Simplifier({v: Interval(0, n - 1) for v, n in extents.items()})
    steps = {v: k for v, k in simplify.linear(index).terms if isinstance(v, Var)}
    stride = 1 if high is None else steps.pop(high.var)
    return stride, 1 + sum(k * (extents[v] - 1) for v, k in steps.items())


def _taps(depthwise: Block, index: Expr) -> int:
    used = free_vars(index)
    return prod(it.extent for it in depthwise.iters if it.kind is IterKind.REDUCE and it.var in used)


def _row_reads(expansion: Block, row: Iter, images: int) -> int:
    """Elements that a row of the expansion takes; 0 if its pixels take k each, side by side."""
    if is_pixelwise(expansion, row):
        return 0
    return rows_operand(expansion, row).buffer.size // (images * row.extent)


def _columns(chain: BandChain, projection: Block) -> int:
    """How many sums there are of the channels of a pixel."""
    made = stored(chain.after or chain.depthwise)
    (image,) = [ld for ld in operand_loads(projection) if ld.buffer is made]
    spatial = [it for it in projection.iters if it.kind is IterKind.SPATIAL]
    return prod(it.extent for it in spatial if not any(it.var in free_vars(i) for i in image.indices))
