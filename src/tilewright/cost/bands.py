"""The time of a product and the windows that read it, band by band, against that of one after the other.

band by band          rows that two bands need are computed twice
one after the other   what is between goes out of the near caches, and comes back; its border is filled apart
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.cost.machine import Machine
from tilewright.schedule.recipes.tiles import column_tiles, row_tiles

_TILE_START = 14.0  # cycles to set up addresses of a tile and to leave its loop
_STORE = 2.0  # cycles for a vector of a tile, from clearing it to storing it
_FILL = 2.0  # cycles to fill a vector of the border
_OUT_AND_BACK = 0.08  # cycles for a byte that is written to the far cache, and read again
_FROM_SECOND = 0.03  # cycles for a byte that is read from the second-level cache, once per row of the windows
_NEAR = 0.8  # of the second-level cache: the rest is for what passes by
_BORDER = 20e3  # cycles of the kernels that fill a border, and of the meetings between them
_MOST_ROWS, _MOST_VECTORS = 6, 3
_WIDE = 1.04  # tiles of three vectors have so few rows that they wait for loads more often
_READ_AGAIN = 0.01  # cycles for a byte that streams from the second-level cache
_PART_START = 400.0  # cycles to fetch a part of the work
_ENOUGH_PARTS = 16
_FEW_PARTS = 0.01  # of the time, for each time that there are too few
_UNEVEN = 0.25  # of what two workers wait for each other: there may be only one


@dataclass(frozen=True, slots=True)
class BandForm:
    """A chain by numbers."""

    images: int  # iterations outside of the rows of the result
    rows: int  # of the result
    channels: int
    stride: int  # rows of the padded image from one row of the result to the next
    reach: int  # rows of the padded image that one row of the result needs
    in_rows: int  # of the product
    in_columns: int
    wide_columns: int  # of the padded image
    k: int
    bytes_each: int = 4

    def needed(self, rows: int) -> int:
        """Rows of the padded image for so many rows of the result."""
        return (rows - 1) * self.stride + self.reach

    def block_bytes(self, rows: int, channels: int) -> int:
        return self.needed(rows) * self.wide_columns * channels * self.bytes_each


def product_tiles(f: BandForm, channels: int, m: Machine) -> Iterator[tuple[int, int]]:
    """(rows, vectors) of register tiles whose columns divide `channels`."""
    lanes = m.lanes * 4 // f.bytes_each
    for vectors in range(1, _MOST_VECTORS + 1):
        for rows in range(1, min(_MOST_ROWS, f.in_columns) + 1):
            if channels % (vectors * lanes) == 0 and rows * vectors + vectors + 1 <= m.registers:
                yield rows, vectors


def product_cycles(f: BandForm, channels: int, tile: tuple[int, int], m: Machine) -> float:
    """Cycles of one row of the image, for so many channels."""
    lanes = m.lanes * 4 // f.bytes_each
    total = 0.0
    for rows, n in row_tiles(f.in_columns, tile[0]).items():
        for vectors, times in column_tiles(channels, tile[1], lanes).items():
            total += n * times * (f.k * _step(rows, vectors, m) + _TILE_START + _STORE * rows * vectors)
    return total * _WIDE if tile[1] == _MOST_VECTORS else total


@lru_cache(maxsize=256)
def _step(rows: int, vectors: int, m: Machine) -> float:
    return float(m.tile_step(rows, vectors))


@lru_cache(maxsize=1024)
def best_product_tile(f: BandForm, channels: int, m: Machine) -> tuple[int, int] | None:
    found = list(product_tiles(f, channels, m))
    return min(found, key=lambda t: product_cycles(f, channels, t, m)) if found else None


def _distance(size: float, m: Machine) -> float:
    """Cycles for a byte that comes back after `size` bytes."""
    return _OUT_AND_BACK if size > _NEAR * m.l2_bytes else _FROM_SECOND if size > m.l1_bytes else 0.0


def banded_cycles(f: BandForm, rows: int, channels: int, m: Machine) -> float | None:
    """Cycles of the product and of its padding in bands of `rows` and blocks of `channels`; None if there is no such
    tile.
    """
    tile = best_product_tile(f, channels, m)
    if tile is None:
        return None
    lanes = m.lanes * 4 // f.bytes_each
    parts = f.images * (f.rows // rows) * (f.channels // channels)
    needed = min(f.needed(rows), f.in_rows)
    cycles = needed * product_cycles(f, channels, tile, m)
    cycles += _FILL * f.needed(rows) * (f.wide_columns - f.in_columns) * channels / lanes
    size = f.block_bytes(rows, channels)
    cycles += size * _distance(size, m) + _PART_START
    read = needed * f.in_columns * f.k * f.bytes_each  # by every block of channels again
    cycles += _READ_AGAIN * read if read > m.l1_bytes else 0.0
    few = 1.0 + _FEW_PARTS * max(_ENOUGH_PARTS / parts - 1.0, 0.0)
    return cycles * few * (parts + _UNEVEN * (parts % 2))


def apart_cycles(f: BandForm, m: Machine) -> float | None:
    """Cycles of the product, all pixels of which are the rows of its tiles, and of its result going out and coming
    back.
    """
    whole = replace(f, in_rows=1, in_columns=f.in_rows * f.in_columns)
    tile = best_product_tile(whole, f.channels, m)
    if tile is None:
        return None
    size = f.images * f.in_rows * f.in_columns * f.channels * f.bytes_each
    made = f.images * product_cycles(whole, f.channels, tile, m)
    # It comes back while the windows write what is about as large.
    return made + size * _distance(2 * size, m) + _BORDER


def bands(f: BandForm, m: Machine) -> list[tuple[int, int]]:
    """(rows, channels) that divide the result, with whole vectors of channels."""
    lanes = m.lanes * 4 // f.bytes_each
    heights = [n for n in range(1, f.rows + 1) if f.rows % n == 0]
    widths = [n for n in range(lanes, f.channels + 1, lanes) if f.channels % n == 0]
    return [(r, c) for r in heights for c in widths]


def gain(f: BandForm, m: Machine) -> float:
    """The part of the time of the product that bands save; below 0 if they cost time."""
    apart = apart_cycles(f, m)
    found = [c for r, w in bands(f, m) if (c := banded_cycles(f, r, w, m)) is not None]
    return 0.0 if apart is None or not found else 1.0 - min(found) / apart
