"""The time of depthwise windows, and of the contractions before and after them, band by band, against that of one after
the other.

band by band          rows that two bands need are computed twice; weights are read again by every band; the windows
                      of a block of few channels have few accumulators
one after the other   what is between goes out of the near caches, and comes back; its border is filled apart
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np

from tilewright.cost.caches import l1_room, l2_cycles, l2_room, l3_cycles
from tilewright.cost.parallel import few_parts
from tilewright.cost.register_tile import UNROLL, tile_step
from tilewright.cost.terms import Amount, Ledger, TermName, only, scaled
from tilewright.families.gemm.cost import (
    TILE_START,
    Choices,
    Form,
    contraction_seconds,
    contraction_terms,
)
from tilewright.families.gemm.tiles import column_tiles, row_tiles
from tilewright.families.window.cost import Filter, WindowInput, line_cycles
from tilewright.support.arrays import FloatArray, IntArray
from tilewright.target.machine import Machine
from tilewright.target.target import Target

# Swept (docs/results/constants.md).
_STORE = 2.0  # cycles for a vector of a tile, from clearing it to storing it
_FILL = 2.0  # cycles to fill a vector of the border
_OUT_AND_BACK = (
    1.818  # for a byte that is written to the far cache, and read again: times what reading it takes
)
_BARE_OUT_AND_BACK = 3.636  # likewise for readers that do not hide it behind a filter: pools and projections
_FROM_SECOND = 0.8864  # for a byte that each row of the windows reads from the second-level cache, likewise
_NEAR = 0.8  # of the second-level cache: the rest is for what passes by
_BORDER = 2.273  # for a byte of a border that a kernel of its own fills: by what reading it from the far cache takes
_KERNEL_MORE = 1.515  # meetings that a kernel more costs
_MOST_ROWS, _MOST_VECTORS = (
    6,
    3,
)  # rows and vectors of register tiles; bound: larger ones leave too few registers
_WIDE = 1.04  # times: tiles of three vectors have so few rows that they wait for loads more often
_READ_AGAIN = 0.2955  # for a byte that streams from the second-level cache: times what reading it takes
_ASKED = 1.01  # times, given: panels of a band are near as a rule, and asking for them is a little work
_PART_START = 400.0  # cycles to claim a part, and until the first rows of a band are there
_LEAST_BANDS = 4  # bands where they are all that workers can share, and the parts could be shared one by one
_UNEVEN = 0.25  # of what two workers wait for each other: there may be only one


@dataclass(frozen=True, slots=True)
class BandForm:
    """A chain by numbers."""

    images: int  # iterations outside of the rows of the result
    rows: int  # of the result; 1 if the windows take the whole image
    channels: int
    stride: int  # rows of the padded image from one row of the result to the next
    reach: int  # rows of the padded image that one row of the result needs
    in_rows: int  # of the expansion, or of the image that there is
    in_columns: int
    wide_columns: int  # of the padded image
    k: int  # 0: there is no expansion
    bytes_each: int = 4
    row_reads: int = (
        0  # elements that a row of the expansion takes; 0: its pixels take k each, and are rows of a matrix
    )
    is_padded: bool = True
    columns: int = 0  # of the result
    projected: int = 0  # columns of the projection; 0: there is none
    is_pool: bool = False  # the windows have no filter
    is_matrix: bool = True  # the pixels of the projection follow each other in memory
    taps: tuple[int, int] = (1, 1)  # of a window, along rows and columns
    column_stride: int = 1
    tap_work: float = 1.0  # instructions that take up an element of a window

    def lines(self, rows: int) -> tuple[int, int]:
        """`rows` rows of the result as lines of pixels that a tile of the projection goes along: how many lines, of
        which length.
        """
        return (1, rows * self.columns) if self.is_matrix else (rows, self.columns)

    def needed(self, rows: int) -> int:
        """Rows of the padded image for `rows` rows of the result."""
        return (rows - 1) * self.stride + self.reach

    def block_bytes(self, rows: int, channels: int) -> int:
        return self.needed(rows) * self.wide_columns * channels * self.bytes_each

    def result_bytes(self, rows: int) -> int:
        """Of `rows` rows of what the windows make."""
        return rows * self.columns * self.channels * self.bytes_each


def expansion_tiles(f: BandForm, target: Target) -> Iterator[tuple[int, int]]:
    """(rows, vectors) of register tiles."""
    for vectors in range(1, _MOST_VECTORS + 1):
        for rows in range(1, min(_MOST_ROWS, f.in_columns) + 1):
            if rows * vectors + vectors + 1 <= target.vector_registers:
                yield rows, vectors


def expansion_cycles(
    f: BandForm, channels: int, tile: tuple[int, int], target: Target, told: Ledger | None = None
) -> float:
    """Cycles of one row of the image, for `channels` channels. Here and below, `told` is told what they are made of."""
    lanes, wide = target.lanes(f.bytes_each), _WIDE if tile[1] == _MOST_VECTORS else 1.0
    total = 0.0
    for rows, n in row_tiles(f.in_columns, tile[0]).items():
        for vectors, times in column_tiles(channels, tile[1], lanes).items():
            steps, store = f.k * _step(rows, vectors, target.machine), _STORE * rows * vectors
            total += n * times * (steps + TILE_START + store)
            if told is not None:
                told.add("arithmetic", n * times * steps * wide)
                told.add("edges", n * times * (TILE_START + store) * wide)
    return total * wide


def expansion_tile_cycles(
    f: BandForm, channels: int, rows: float, tiles: IntArray, target: Target, told: Ledger | None = None
) -> FloatArray:
    """Cycles of `rows` rows of the image, for `channels` channels, in tiles (rows, vectors, columns_outside, unroll,
    prefetch) whose columns divide these: what is within reach of tuning besides what `expansion_cycles` ranks.
    """
    m, (heights, vectors, outside, unroll, prefetch) = target.machine, tuple(tiles.T)
    count = -(-f.in_columns // heights)
    low, more = f.in_columns // count, f.in_columns % count
    panels = channels // (vectors * target.lanes(f.bytes_each))
    cycles = np.zeros(len(tiles))
    slower = np.where(vectors >= _MOST_VECTORS, _WIDE, 1.0) * np.where(prefetch > 0, _ASKED, 1.0)
    for height, n in ((low + 1, more), (low, count - more)):
        written_out = np.clip(unroll // (height * vectors), 1, f.k)
        steps, store = f.k * tile_step(m, height, vectors, written_out), _STORE * height * vectors
        cycles += n * (steps + TILE_START + store)
        if told is not None:
            told.add("arithmetic", n * steps * slower * panels * rows)
            told.add("edges", n * (TILE_START + store) * slower * panels * rows)
    cycles *= slower
    # What is inside passes by for each tile of what is outside.
    weights, image = float(f.k * channels * f.bytes_each), rows * f.in_columns * f.k * f.bytes_each
    by_row = rows * weights * count if weights > l1_room(m) else np.zeros(len(tiles))
    by_panel = image * panels if image > l1_room(m) else np.zeros(len(tiles))
    passes: FloatArray = np.where(outside > 0, by_panel, by_row)
    again = passes * (_READ_AGAIN * l2_cycles(m))
    if told is not None:
        told.add("near", again)
    return cycles * panels * rows + again


@lru_cache(maxsize=256)
def _step(rows: int, vectors: int, m: Machine) -> float:
    return float(tile_step(m, rows, vectors))


@lru_cache(maxsize=1024)
def best_expansion_tile(f: BandForm, channels: int, target: Target) -> tuple[int, int] | None:
    """The tile of a block of channels, which its columns divide."""
    lanes = target.lanes(f.bytes_each)
    found = [t for t in expansion_tiles(f, target) if channels % (t[1] * lanes) == 0]
    return min(found, key=lambda t: expansion_cycles(f, channels, t, target)) if found else None


class ProjectionTile(NamedTuple):
    rows: int
    vectors: int
    columns_outside: bool
    cycles: float


@lru_cache(maxsize=1024)
def projection_tile(f: BandForm, lines: int, pixels: int, target: Target) -> ProjectionTile:
    """The best register tile of the projection of `lines` lines of `pixels` pixels, and the time that they take."""
    sizes = [
        (r, v, outside)
        for v in range(1, _MOST_VECTORS + 1)
        for r in range(1, min(_MOST_ROWS, pixels) + 1)
        for outside in (0, 1)
        if r * v + v + 1 <= target.vector_registers
    ]
    tiles = np.array([(*t, UNROLL, 0) for t in sizes], dtype=np.int64)
    cycles = projection_cycles(f, (lines, pixels), tiles, target)
    best = int(np.argmin(cycles))
    rows, vectors, outside = sizes[best]
    return ProjectionTile(rows, vectors, bool(outside), float(cycles[best]))


def projection_cycles(f: BandForm, size: tuple[int, int], tiles: IntArray, target: Target) -> FloatArray:
    """Cycles of the projection of (lines, pixels) in tiles (rows, vectors, columns_outside, unroll, prefetch)."""
    form, choices = _projection_form(f, *size), _projection_choices(tiles)
    return contraction_seconds(form, choices, target) * target.machine.hertz


def projection_terms(
    f: BandForm, size: tuple[int, int], tiles: IntArray, target: Target
) -> dict[TermName, Amount]:
    """What these cycles are made of."""
    form, choices = _projection_form(f, *size), _projection_choices(tiles)
    return scaled(contraction_terms(form, choices, target), target.machine.hertz)


def _best_projection_terms(f: BandForm, size: tuple[int, int], target: Target) -> dict[TermName, float]:
    """Those of the best tile."""
    best = projection_tile(f, *size, target)
    tile = np.array([[best.rows, best.vectors, best.columns_outside, UNROLL, 0]], np.int64)
    return only(projection_terms(f, size, tile, target))


def _projection_form(f: BandForm, lines: int, pixels: int) -> Form:
    return Form(
        batch=1,
        other_rows=lines,
        rows=pixels,
        cols=f.projected,
        k=f.channels,
        k_inner=f.channels,
        a_row_step=f.channels,
        a_k_step=1,
        b_col_step=1,
        b_k_step=f.projected,
        out_col_step=1,
        out_row_step=f.projected,
        a_constant=False,
        b_constant=True,
        a_elements=lines * pixels * f.channels,
        b_elements=f.channels * f.projected,
        bytes_each=f.bytes_each,
        lane_bytes=f.bytes_each,
        epilogue_loads=1,
    )


def _projection_choices(tiles: IntArray) -> Choices:
    rows, vectors, outside, unroll, prefetch = tiles.T
    none, packed = np.zeros(len(tiles), np.int64), np.ones(len(tiles), np.bool_)
    return Choices(rows, vectors, ~packed, packed, outside > 0, none, unroll, prefetch)


@lru_cache(maxsize=1024)
def windows_cycles(f: BandForm, channels: int, target: Target) -> float:
    """Cycles of all windows, a block of `channels` channels at a time."""
    image = WindowInput(f.taps[1], f.column_stride)
    operands = (image,) if f.is_pool else (image, Filter())
    line = line_cycles(operands, f.taps, (max(1, f.columns), channels), target.lanes(f.bytes_each), target)
    return f.images * f.rows * (f.channels // channels) * line * f.tap_work


def _apart_windows_cycles(f: BandForm, target: Target) -> float:
    """Of a kernel that has nothing but windows: those without a filter may be folded along one axis after the other
    (`gir/windows.py`).
    """
    together = windows_cycles(f, f.channels, target)
    if not f.is_pool or 1 in f.taps:
        return together
    high, wide = f.taps
    down = replace(f, taps=(high, 1), columns=(f.columns - 1) * f.column_stride + wide, column_stride=1)
    along = replace(f, taps=(1, wide))
    return min(together, sum(windows_cycles(g, f.channels, target) for g in (down, along)))


def _distance(size: float, m: Machine, far: float = _OUT_AND_BACK) -> float:
    """Cycles for a byte that comes back after `size` bytes."""
    if size > _NEAR * l2_room(m):
        return far * l3_cycles(m)
    return _FROM_SECOND * l2_cycles(m) if size > l1_room(m) else 0.0


def banded_cycles(f: BandForm, rows: int, channels: int, target: Target) -> float:
    """Cycles in bands of `rows` and blocks of `channels`, but for the windows; infinite if there is no such tile. Parts
    that a team could not share evenly weigh a little.
    """
    cycles, parts = band_cycles(f, rows, channels, target)
    return cycles * uneven(parts)


def uneven(parts: int) -> float:
    """A factor for parts that a team could not share evenly."""
    return few_parts(parts) * (1.0 + _UNEVEN * (parts % 2) / parts)


def band_cycles(
    f: BandForm, rows: int, channels: int, target: Target, told: Ledger | None = None
) -> tuple[float, int]:
    """The same as they are, and in how many parts."""
    blocks, bands = f.channels // channels, f.images * (f.rows // rows)
    made = None if told is None else Ledger()
    cycles = _made_cycles(f, rows, channels, target, made) * blocks
    if told is not None and made is not None:
        told.add_all(made.terms, blocks * bands)
    parts = bands * blocks
    if f.projected:
        size = f.result_bytes(rows)
        handed_on = size * _distance(size, target.machine)
        cycles += projection_tile(f, *f.lines(rows), target).cycles + handed_on
        parts = bands
        if told is not None:
            told.add_all(_best_projection_terms(f, f.lines(rows), target), bands)
            told.add("near", handed_on * bands)
    if told is not None:
        told.add("team", _PART_START * parts)
    return cycles * bands + _PART_START * parts, parts


def made_rows(f: BandForm, rows: int) -> float:
    """Rows of the expansion that a band computes. Those of the border are filled: the first band and the last one
    compute fewer.
    """
    border = max(f.needed(f.rows) - f.in_rows, 0) * rows / f.rows
    return min(f.needed(rows) - border, f.in_rows)


def _made_cycles(f: BandForm, rows: int, channels: int, target: Target, told: Ledger | None = None) -> float:
    """Cycles to make what the windows read, for a band and a block of channels."""
    if not f.k:
        return 0.0
    m, tile = target.machine, best_expansion_tile(f, channels, target)
    if tile is None:
        return inf
    lanes, needed = target.lanes(f.bytes_each), made_rows(f, rows)
    cycles = needed * expansion_cycles(f, channels, tile, target)
    border = _FILL * f.needed(rows) * (f.wide_columns - f.in_columns) * channels / lanes
    cycles += border
    size = f.block_bytes(rows, channels)
    handed_on = size * _distance(size, m)
    cycles += handed_on
    read = needed * (f.row_reads or f.in_columns * f.k) * f.bytes_each  # by every block of channels again
    again = _READ_AGAIN * l2_cycles(m) * read if read > l1_room(m) else 0.0
    if told is not None:
        row = Ledger()
        expansion_cycles(f, channels, tile, target, row)
        told.add_all(row.terms, needed)
        told.add("copies", border)
        told.add("near", handed_on + again)
    return cycles + again


def apart_cycles(f: BandForm, target: Target, told: Ledger | None = None) -> float:
    """Cycles of all of it, one after the other."""
    m = target.machine
    if f.projected:
        before = _before_projection(f, target, told)
        size, lines = f.images * f.result_bytes(f.rows), f.lines(f.images * f.rows)
        handed_on = size * _distance(2 * size, m, _BARE_OUT_AND_BACK)
        if told is not None:
            told.add_all(_best_projection_terms(f, lines, target))
            told.add("near", handed_on)
            told.add("team", _kernel_cycles(m))
        return before + projection_tile(f, *lines, target).cycles + handed_on + _kernel_cycles(m)
    # All pixels are the rows of tiles, if they do not share what they read.
    whole = f if f.row_reads else replace(f, in_rows=1, in_columns=f.in_rows * f.in_columns)
    size = f.images * f.in_rows * f.in_columns * f.channels * f.bytes_each
    tiles = {t: expansion_cycles(whole, f.channels, t, target) for t in expansion_tiles(whole, target)}
    best = min(tiles, key=tiles.__getitem__)
    windows, times = _apart_windows_cycles(f, target), f.images * whole.in_rows
    made = tiles[best] * times + windows
    # It comes back while the windows write what is about as large.
    far = _BARE_OUT_AND_BACK if f.is_pool else _OUT_AND_BACK
    border = f.images * f.block_bytes(f.rows, f.channels) - size if f.is_padded else 0
    kernels = 2 if f.is_padded else 1
    handed_on, filled = size * _distance(2 * size, m, far), _BORDER * l3_cycles(m) * max(0, border)
    if told is not None:
        row = Ledger()
        expansion_cycles(whole, f.channels, best, target, row)
        told.add_all(row.terms, times)
        told.add("arithmetic", windows)
        told.add("near", handed_on)
        told.add("copies", filled)
        told.add("team", kernels * _kernel_cycles(m))
    return made + handed_on + filled + kernels * _kernel_cycles(m)


def _before_projection(f: BandForm, target: Target, told: Ledger | None) -> float:
    """Of what is before it, in bands or apart."""
    if not f.k:
        windows = _apart_windows_cycles(f, target)
        if told is not None:
            told.add("arithmetic", windows)
        return windows
    alone = replace(f, projected=0)
    best, apart = best_bands(alone, target), apart_cycles(alone, target)
    if told is not None and apart <= best.cycles:
        apart_cycles(alone, target, told)
    elif told is not None:
        band = Ledger()
        cycles, parts = band_cycles(alone, best.rows, best.channels, target, band)
        told.add_all(band.terms)
        told.add("team", cycles * (uneven(parts) - 1.0))
        told.add("arithmetic", windows_cycles(alone, best.channels, target))
    return min(best.cycles, apart)


def _kernel_cycles(m: Machine) -> float:
    """Of one more."""
    return _KERNEL_MORE * m.meeting_seconds * m.hertz


class Bands(NamedTuple):
    rows: int
    channels: int
    cycles: float


def bands(f: BandForm, target: Target) -> list[tuple[int, int]]:
    """(rows, channels) that divide the result, with whole vectors of channels where an expansion makes them."""
    lanes = target.lanes(f.bytes_each)
    heights = [n for n in range(1, f.rows + 1) if f.rows % n == 0]
    if f.projected:
        heights = [n for n in heights if f.images * f.rows // n >= _LEAST_BANDS]
    widths = [n for n in range(lanes, f.channels + 1, lanes) if f.channels % n == 0] if f.k else [f.channels]
    return [(r, c) for r in heights for c in widths]


def best_bands(f: BandForm, target: Target) -> Bands:
    """The cheapest; with infinite cycles if there are none."""
    found = [
        Bands(r, c, banded_cycles(f, r, c, target) + windows_cycles(f, c, target))
        for r, c in bands(f, target)
    ]
    return min(found, key=lambda b: b.cycles, default=Bands(0, 0, inf))


def gain(f: BandForm, target: Target) -> float:
    """The part of the time apart that bands save; below 0 if they cost time."""
    apart, together = apart_cycles(f, target), best_bands(f, target).cycles
    return 1.0 - together / apart if together < inf and apart < inf else -inf
