"""Register tiles of a contraction whose columns lie in panels, and how long each takes."""

from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.register_tile import UNROLL
from tilewright.cost.terms import Amount, TermName
from tilewright.families.gemm.cost import Choices, Form, contraction_seconds, contraction_terms
from tilewright.families.gemm.recipe import Contraction
from tilewright.families.gemm.space import tile_sizes
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.space import Costs, Points
from tilewright.target.target import Target

UNROLLS = (UNROLL, 24)  # multiply-adds written out in a step; bound
PREFETCHES = (0, 32)  # steps of the reduction that columns are asked for ahead; bound


class PanelTile(NamedTuple):
    tile: RegisterTile
    unroll: int  # multiply-adds written out in a step
    seconds: float  # for all columns asked for of `rows` rows


def panel_tiles(rows: int, target: Target) -> Points:
    """(rows, vectors, unroll) of all register tiles for `rows` consecutive rows."""
    sizes = [(r, v) for r, v in tile_sizes(target.vector_registers) if r <= rows]
    return np.array([(*size, u) for size in sizes for u in UNROLLS], dtype=np.int64)


def panel_loops(rows: int, target: Target) -> Points:
    """(rows, vectors, unroll, columns_outside, prefetch, next_panel): register tiles with all orders of the loops
    around them, and with how far ahead they ask for columns.
    """
    loops = np.array(list(product((1, 0), PREFETCHES, (0, 1))), dtype=np.int64)
    tiles = panel_tiles(rows, target)
    return np.concatenate([np.tile(tiles, (len(loops), 1)), np.repeat(loops, len(tiles), axis=0)], axis=1)


def panel_seconds(
    c: Contraction,
    rows: int,
    points: Points,
    target: Target,
    cols: int | None = None,
    *,
    columns_outside: NDArray[np.bool_] | None = None,
    prefetch: NDArray[np.int64] | int = 0,
) -> Costs:
    """What tiles (rows, vectors, unroll: the first of each point) cost for `rows` rows, and for `cols` columns or all:
    with columns outside, and none asked for ahead, unless others are chosen.
    """
    choices = _panel_choices(points, columns_outside, prefetch)
    return contraction_seconds(_panel_form(c, rows, cols), choices, target)


def panel_terms(
    c: Contraction,
    rows: int,
    points: Points,
    target: Target,
    cols: int | None = None,
    *,
    columns_outside: NDArray[np.bool_] | None = None,
    prefetch: NDArray[np.int64] | int = 0,
) -> dict[TermName, Amount]:
    """What these seconds are made of."""
    choices = _panel_choices(points, columns_outside, prefetch)
    return contraction_terms(_panel_form(c, rows, cols), choices, target)


def _panel_form(c: Contraction, rows: int, cols: int | None) -> Form:
    k = prod(it.extent for it in c.reduce)
    cols = c.cols[-1].extent if cols is None else cols
    return Form(
        batch=1,
        other_rows=1,
        rows=rows,
        cols=cols,
        k=k,
        k_inner=c.reduce[-1].extent,
        a_row_step=k,
        a_k_step=1,
        b_col_step=1,
        b_k_step=cols,
        out_col_step=1,
        out_row_step=cols,
        a_constant=False,
        b_constant=True,  # packed before
        a_elements=rows * k,
        b_elements=k * cols,
        bytes_each=c.b.dtype.bytes,
        lane_bytes=c.b.dtype.bytes,
        epilogue_loads=1,
    )


def _panel_choices(
    points: Points, columns_outside: NDArray[np.bool_] | None, prefetch: NDArray[np.int64] | int
) -> Choices:
    no, yes = np.zeros(len(points), np.bool_), np.ones(len(points), np.bool_)
    return Choices(
        points[:, 0],
        points[:, 1],
        pack_a=no,
        pack_b=yes,
        columns_outside=yes if columns_outside is None else columns_outside,
        chunk=np.zeros(len(points), np.int64),
        unroll=points[:, 2],
        prefetch=prefetch,
    )


def best_tile(c: Contraction, rows: int, target: Target, cols: int | None = None) -> PanelTile:
    """The cheapest register tile for `rows` consecutive rows, and for `cols` columns or all."""
    points = panel_tiles(rows, target)
    seconds = panel_seconds(c, rows, points, target, cols)
    best = int(np.argmin(seconds))
    height, vectors, unroll = (int(n) for n in points[best])
    return PanelTile(
        RegisterTile(height, vectors * target.lanes(c.b.dtype.bytes)), unroll, float(seconds[best])
    )
