"""The register tiles of chains in bands, as knobs: what they cost against those that are taken by default.

    rows, channels                                    the band
    expand_rows, expand_vectors, expand_outside       the tile of the expansion, and whether its panels are outside
    project_rows, project_vectors, columns_outside    likewise of the projection
    window_rows, window_vectors, window_unroll        the tile of the windows, and how much of it is written out
    unroll, prefetch                                  of both contractions: what a step of their reductions has written
                                                      out, and how many steps ahead their panels are asked for

Knobs of a contraction that there is not are 0. Tiles do not depend on each other, only on the band: the best of each
kind are the best together, and what a point costs is a sum.
"""

from collections.abc import Callable
from functools import cached_property, partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.register_tile import UNROLL
from tilewright.cost.terms import Amounts, Ledger, TermName, only, scaled, spread_terms, stacked_terms
from tilewright.families.bands.cost import (
    BandForm,
    best_expansion_tile,
    expansion_tile_cycles,
    made_rows,
    projection_cycles,
    projection_terms,
    projection_tile,
)
from tilewright.families.gemm.space import tile_sizes
from tilewright.families.space import Costs, Points
from tilewright.families.window.cost import ROWS, UNROLLS, VECTORS
from tilewright.families.window.tiles import LaneTile, LaneTiles
from tilewright.support.arrays import IntArray
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target

KNOBS = (
    *("rows", "channels"),
    *("expand_rows", "expand_vectors", "expand_outside"),
    *("project_rows", "project_vectors", "columns_outside"),
    *("window_rows", "window_vectors", "window_unroll"),
    *("unroll", "prefetch"),
)
# Columns of points, counted: where the knobs of each part are.
BAND, EXPAND, PROJECT, WINDOW, STEPS = (slice(0, 2), slice(2, 5), slice(5, 8), slice(8, 11), slice(11, 13))
# Bound: what is tried. Multiply-adds written out, and steps that are asked for ahead.
_STEPS = ((UNROLL, 0), (24, 0), (96, 0), (UNROLL, 32))
_BEST = 5  # tiles of each kind that are combined with each other
_RADIX = 1 << 10  # more than all rows, vectors and multiply-adds that a knob may have; bound
_NONE = np.zeros((1, 3), np.int64)  # knobs of a contraction that there is not; given


class Band(NamedTuple):
    rows: int
    channels: int


class MoreTime(NamedTuple):
    """What points take longer than the default of their band."""

    cycles: Costs  # of contractions, all bands together
    seconds: Costs  # of windows


class BandTiles:
    """The tiles of one chain, band by band."""

    def __init__(self, form: BandForm, windows: LaneTiles, target: Target) -> None:
        self._form, self._windows, self._target = form, windows, target
        self._lanes = target.lanes(form.bytes_each)
        self._sizes = tile_sizes(target.vector_registers)
        self._defaults: dict[Band, NDArray[np.int64]] = {}

    @cached_property
    def steps(self) -> IntArray:
        longest = max(self._form.k, self._form.channels if self._form.projected else 0)
        return np.array([s for s in _STEPS if s[1] < longest], np.int64)

    def default(self, band: Band) -> NDArray[np.int64]:
        """The point that the cost form alone chooses in a band."""
        if band not in self._defaults:
            f, expand, project = self._form, (0, 0, 0), (0, 0, 0)
            if f.k:
                found = best_expansion_tile(f, band.channels, self._target)
                if found is None:
                    raise ScheduleError(f"no register tile has columns that divide {band.channels} channels")
                expand = (*found, 0)
            if f.projected:
                best = projection_tile(f, *f.lines(band.rows), self._target)
                project = best.rows, best.vectors, int(best.columns_outside)
            window = self._windows.best(band.channels)[0]
            self._defaults[band] = np.array([*band, *expand, *project, *window, UNROLL, 0], np.int64)
        return self._defaults[band]

    # ---------------------------------------------------------------------------------------------- what there is

    def expansions(self, channels: int) -> IntArray:
        """(rows, vectors, outside): the columns of a tile divide the channels of a block."""
        if not self._form.k:
            return _NONE
        return self._tiles(self._form.in_columns, lambda v: channels % (v * self._lanes) == 0)

    def projections(self, rows: int) -> IntArray:
        if not self._form.projected:
            return _NONE
        _, pixels = self._form.lines(rows)
        return self._tiles(pixels, lambda v: (v - 1) * self._lanes < self._form.projected)

    def windows(self, channels: int) -> IntArray:
        """(rows, vectors, unroll), one of those that are the same code."""
        found: dict[tuple[int, ...], LaneTile] = {}
        for tile, seconds in self._windows.usual(channels).items():
            if np.isfinite(seconds):
                key = tile.rows, tile.vectors, *self._windows.written_out(tile, channels)
                found.setdefault(key, tile)
        return np.array(list(found.values()), np.int64).reshape(-1, 3)

    def _tiles(self, rows: int, is_wide_enough: Callable[[int], bool]) -> IntArray:
        sizes = [(r, v) for r, v in self._sizes if r <= rows and is_wide_enough(v)]
        return np.array([(*s, outside) for s in sizes for outside in (0, 1)], np.int64).reshape(-1, 3)

    def are_possible(self, band: Band, points: Points) -> NDArray[np.bool_]:
        """Which points of this band have tiles that can be built?"""
        return (
            _among(points[:, EXPAND], self.expansions(band.channels))
            & _among(points[:, PROJECT], self.projections(band.rows))
            & self._are_windows(band, points[:, WINDOW])
            & _among(points[:, STEPS], self.steps)
        )

    def _are_windows(self, band: Band, tiles: IntArray) -> NDArray[np.bool_]:
        fits = np.array(
            [(r, v) for r, v in product(ROWS, VECTORS) if self._windows.fits(r, v, band.channels)],
            np.int64,
        ).reshape(-1, 2)
        return _among(tiles[:, :2], fits) & np.isin(tiles[:, 2], UNROLLS)

    # ---------------------------------------------------------------------------------------------- what it costs

    def more_time(self, band: Band, points: Points) -> MoreTime:
        """Of points of this band that are possible."""
        every = np.concatenate([self.default(band)[None, :], points])
        cycles, windows = np.zeros(len(every)), self._window_seconds(band, every[:, WINDOW])
        if self._form.k:
            cycles += self._expansion_cycles(band, every[:, EXPAND], every[:, STEPS])
        if self._form.projected:
            cycles += self._projection_cycles(band, every[:, PROJECT], every[:, STEPS])
        cycles *= self._form.images * (self._form.rows // band.rows)
        return MoreTime(cycles[1:] - cycles[0], windows[1:] - windows[0])

    def more_terms(self, band: Band, points: Points) -> dict[TermName, Costs]:
        """Name by name, in seconds; below 0 where that is less."""
        every = np.concatenate([self.default(band)[None, :], points])
        f, told, steps = self._form, Ledger(), every[:, STEPS]
        bands = f.images * (f.rows // band.rows) / self._target.machine.hertz
        if f.k:
            expansion = np.concatenate([every[:, EXPAND], steps], axis=1)
            blocks = f.channels // band.channels
            told.add_all(_looked_up_terms(expansion, partial(self._expansion_terms, band)), blocks * bands)
        if f.projected:
            projection, size = np.concatenate([every[:, PROJECT], steps], axis=1), f.lines(band.rows)
            told.add_all(
                _looked_up_terms(projection, lambda t: projection_terms(f, size, t, self._target)), bands
            )
        told.add_all(_looked_up_terms(every[:, WINDOW], partial(self._window_terms, band)))
        return {name: t[1:] - t[0] for name, t in spread_terms(told.terms, len(every)).items()}

    def _expansion_terms(self, band: Band, tiles: IntArray) -> Amounts:
        told, made = Ledger(), made_rows(self._form, band.rows)
        expansion_tile_cycles(self._form, band.channels, made, tiles, self._target, told)
        return told.terms

    def _window_terms(self, band: Band, tiles: IntArray) -> Amounts:
        found = stacked_terms([self._windows.terms(LaneTile(*map(int, t)), band.channels) for t in tiles])
        return scaled(found, self._form.channels // band.channels)

    def window_terms(self, band: Band) -> dict[TermName, float]:
        """Seconds of the best tile of the windows."""
        return only(self._window_terms(band, self.default(band)[None, WINDOW]))

    def _expansion_cycles(self, band: Band, tiles: IntArray, steps: IntArray) -> Costs:
        f, made = self._form, made_rows(self._form, band.rows)
        every = np.concatenate([tiles, steps], axis=1)
        cycles = _looked_up(every, lambda t: expansion_tile_cycles(f, band.channels, made, t, self._target))
        return cycles * (f.channels // band.channels)

    def _projection_cycles(self, band: Band, tiles: IntArray, steps: IntArray) -> Costs:
        f, every = self._form, np.concatenate([tiles, steps], axis=1)
        return _looked_up(every, lambda t: projection_cycles(f, f.lines(band.rows), t, self._target))

    def _window_seconds(self, band: Band, tiles: IntArray) -> Costs:
        known = self._windows.usual(band.channels)
        seconds = _looked_up(tiles, lambda ts: np.array([known[LaneTile(*map(int, t))] for t in ts]))
        return seconds * (self._form.channels // band.channels)

    def widened(self, band: Band) -> Points:
        """The best tiles of each kind in a band, each with each."""
        expand, project, window = (
            self.expansions(band.channels),
            self.projections(band.rows),
            self.windows(band.channels),
        )

        def usual(tiles: IntArray) -> IntArray:
            return np.tile(self.default(band)[STEPS], (len(tiles), 1))

        if self._form.k:
            expand = _best(expand, self._expansion_cycles(band, expand, usual(expand)))
        if self._form.projected:
            project = _best(project, self._projection_cycles(band, project, usual(project)))
        groups = expand, project, _best(window, self._window_seconds(band, window)), self.steps
        at = np.meshgrid(*(np.arange(len(g)) for g in groups), indexing="ij")
        columns = [g[n.ravel()] for g, n in zip(groups, at, strict=True)]
        return np.concatenate([np.tile(np.array(band), (at[0].size, 1)), *columns], axis=1)


def _best(tiles: IntArray, costs: Costs) -> IntArray:
    return tiles[np.argsort(costs, kind="stable")[:_BEST]]


def _looked_up(rows: IntArray, cost: Callable[[IntArray], Costs]) -> Costs:
    """The cost of rows, many of which are equal."""
    _, first, at = np.unique(_row_keys(rows), return_index=True, return_inverse=True)
    return cost(rows[first])[at.ravel()]


def _looked_up_terms(rows: IntArray, terms: Callable[[IntArray], Amounts]) -> Amounts:
    """Likewise, name by name."""
    _, first, at = np.unique(_row_keys(rows), return_index=True, return_inverse=True)
    return {name: t[at.ravel()] for name, t in spread_terms(terms(rows[first]), len(first)).items()}


def _among(rows: IntArray, known: IntArray) -> NDArray[np.bool_]:
    return np.isin(_row_keys(rows), _row_keys(known)) & ((rows >= 0) & (rows < _RADIX)).all(axis=1)


def _row_keys(rows: IntArray) -> IntArray:
    """A number for each row of a few values below the radix: numbers are compared more quickly than rows."""
    keys = np.zeros(len(rows), np.int64)
    for column in rows.T:
        keys = keys * _RADIX + column
    return keys
