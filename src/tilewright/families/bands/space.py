"""The rule for depthwise convolutions with a contraction before or after them: in bands of rows, near the core."""

from dataclasses import replace
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.parallel import ranked_seconds, ranked_terms
from tilewright.cost.terms import Amounts, Ledger, Terms, added, gathered, scaled, scaled_to
from tilewright.families.bands.cost import (
    BandForm,
    band_cycles,
    banded_cycles,
    bands,
    uneven,
)
from tilewright.families.bands.match import BandChain, is_pixelwise, rows_operand, stored, try_band_chain
from tilewright.families.bands.recipe import BandPlan, BandTilePlan, schedule_bands, try_tiled
from tilewright.families.bands.tiles import BAND, KNOBS, Band, BandTiles
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.recipe import strides_along
from tilewright.families.gemm.space import epilogue_of
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.window.cost import combining_work
from tilewright.families.window.recipe import is_lane_reduction, operand_loads
from tilewright.families.window.tiles import LaneTiles
from tilewright.ir.expr import Expr, Load, Var, free_vars
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.draft import Draft
from tilewright.support.arrays import IntArray
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, Iter, IterKind, blocks

_WIDENED = 4  # bands that are offered with other tiles than those that cost least; bound


class BandsSpace(Space):
    """Bands by what they cost with the best tiles of each; then the best bands with other tiles."""

    family = "bands"

    def __init__(self, start: Draft, chain: BandChain, form: BandForm, target: Target) -> None:
        self._start, self._chain, self.form, self._target = start, chain, form, target
        self._windows = LaneTiles(chain.depthwise, target)
        self._tiles = BandTiles(form, self._windows, target)
        self._bands = [Band(*b) for b in bands(form, target)]
        self._seconds: dict[Band, tuple[float, float, int]] = {}
        usual = np.array([self._tiles.default(b) for b in self._bands], np.int64).reshape(-1, len(KNOBS))
        best = sorted(self._bands, key=lambda b: self._default_seconds(b)[0])[:_WIDENED]
        wider = [self._tiles.widened(b) for b in best]
        more = [w[(w != self._tiles.default(b)).any(axis=1)] for b, w in zip(best, wider, strict=True)]
        self._points = np.concatenate([usual, *more])  # what is usual is the first of what costs as much
        self.knobs = tuple(
            Knob(name, tuple(int(v) for v in np.unique(self._points[:, n]))) for n, name in enumerate(KNOBS)
        )

    def points(self) -> Points:
        return self._points

    def has_point(self, point: NDArray[np.int64]) -> bool:
        """All tiles that fit; `points` are the best of them."""
        return bool(np.isfinite(self.cost(point[None, :]))[0])

    def cost(self, points: Points) -> Costs:
        out = np.full(len(points), inf)
        known = set(self._bands)
        for pair in np.unique(points[:, BAND], axis=0):
            band = Band(*map(int, pair))
            if band in known:
                here = np.flatnonzero((points[:, BAND] == pair).all(axis=1))
                if points is not self._points:
                    here = here[self._tiles.are_possible(band, points[here])]
                out[here] = self._band_seconds(band, points[here])
        return out

    def _band_seconds(self, band: Band, points: Points) -> Costs:
        """Of points of one band: none is less than what is usual, since what it gains is not estimated that well."""
        m = self._target.machine
        least, alone, parts = self._default_seconds(band)
        if (points == self._tiles.default(band)).all():
            return np.full(len(points), least)
        more = self._tiles.more_time(band, points)
        if m.threads == 1:
            return np.maximum(least + uneven(parts) * more.cycles / m.hertz + more.seconds, least)
        total = np.maximum(alone + more.cycles / m.hertz + more.seconds, alone)
        return np.maximum(ranked_seconds(total, parts, m), least)

    def terms(self, points: Points) -> Terms:
        """Of other tiles than the usual ones: what these take, and name by name what others take more or less."""
        costs = self.cost(points)
        found: list[tuple[IntArray, Amounts]] = []
        for pair in np.unique(points[:, BAND], axis=0):
            here = np.flatnonzero((points[:, BAND] == pair).all(axis=1) & np.isfinite(costs))
            if here.size:
                found.append((here, self._band_terms(Band(*map(int, pair)), points[here], costs[here])))
        return gathered(len(points), found)

    def _band_terms(self, band: Band, points: Points, costs: Costs) -> Amounts:
        m, told = self._target.machine, Ledger()
        least, alone, parts = self._default_seconds(band)
        band_cycles(self.form, *band, self._target, told)
        own: Amounts = added(scaled(told.terms, 1.0 / m.hertz), self._tiles.window_terms(band))
        if (points != self._tiles.default(band)).any():
            more = self._tiles.more_terms(band, points)
            own = {name: np.maximum(t, 0.0) for name, t in added(own, more).items()}
        if m.threads > 1:
            return scaled_to(ranked_terms(own, parts, m), costs)
        return scaled_to(added(own, {"team": least - alone}), costs)

    def _default_seconds(self, band: Band) -> tuple[float, float, int]:
        """What a band is ranked by with its usual tiles, what one core takes for it, and its parts."""
        if band not in self._seconds:
            form, m = self.form, self._target.machine
            depthwise = form.channels // band.channels * self._windows.best(band.channels)[1]
            cycles, parts = band_cycles(form, *band, self._target)
            alone = cycles / m.hertz + depthwise
            if m.threads == 1:
                ranked = banded_cycles(form, *band, self._target) / m.hertz + depthwise
            else:
                ranked = float(ranked_seconds(np.array(alone), parts, m))
            self._seconds[band] = ranked, alone, parts
        return self._seconds[band]

    def completed(self, decisions: KnobValues) -> KnobValues:
        """With the usual tiles of the band, where they are not decided: once its size was all there was to decide."""
        band = Band(decisions.get("rows", 0), decisions.get("channels", 0))
        return (
            {**self.decisions(self._tiles.default(band)), **decisions} if band in self._bands else decisions
        )

    def build(self, decisions: KnobValues) -> Draft:
        chosen = self.completed(decisions)
        if not set(KNOBS) <= set(chosen):
            raise ScheduleError(f"there are no bands of {dict(decisions)}")
        s = self._start.branch()
        names = {b.name for b in blocks(s.func.body)}
        schedule_bands(s, self._chain, self._plan(chosen), self._target)
        schedule_rest(s, names, self._target)
        return s

    def _plan(self, d: KnobValues) -> BandPlan:
        lanes, steps = self._target.lanes(self.form.bytes_each), d["prefetch"]
        expansion = projection = None
        if self.form.k:
            tile = RegisterTile(d["expand_rows"], d["expand_vectors"] * lanes)
            expansion = BandTilePlan(tile, d["unroll"], bool(d["expand_outside"]), prefetch=steps)
        if self.form.projected:
            tile, is_matrix = (
                RegisterTile(d["project_rows"], d["project_vectors"] * lanes),
                self.form.is_matrix,
            )
            projection = BandTilePlan(tile, d["unroll"], bool(d["columns_outside"]), is_matrix, steps)
        tile = RegisterTile(d["window_rows"], d["window_vectors"] * lanes)
        windows = BandTilePlan(tile, d["window_unroll"])
        return BandPlan(d["rows"], d["channels"], windows, expansion, projection)


def bands_space(request: ScheduleRequest) -> Space | None:
    """The space of a Func that is such a chain."""
    start = request.plain
    chain = None if start is None else try_band_chain(start.func)
    if start is None or chain is None or not is_lane_reduction(chain.depthwise):
        return None
    contractions = [b for b in (chain.expansion, chain.projection) if b is not None]
    form = try_form(chain)
    if form is None or not all(map(try_tiled, contractions)):
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
