"""Register tiles of a contraction whose columns lie in panels, and how long each takes."""

from math import prod
from typing import NamedTuple

import numpy as np

from tilewright.cost.register_tile import UNROLL
from tilewright.families.gemm.cost import Choices, Form, contraction_seconds
from tilewright.families.gemm.recipe import Contraction
from tilewright.families.gemm.space import tile_sizes
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.space import Costs, Points
from tilewright.target.target import Target

UNROLLS = (UNROLL, 24)  # multiply-adds written out in a step; bound


class PanelTile(NamedTuple):
    tile: RegisterTile
    unroll: int  # multiply-adds written out in a step
    seconds: float  # for all columns asked for of `rows` rows


def panel_tiles(rows: int, target: Target) -> Points:
    """(rows, vectors, unroll) of all register tiles for `rows` consecutive rows."""
    sizes = [(r, v) for r, v in tile_sizes(target.vector_registers) if r <= rows]
    return np.array([(*size, u) for size in sizes for u in UNROLLS], dtype=np.int64)


def panel_seconds(
    c: Contraction, rows: int, points: Points, target: Target, cols: int | None = None
) -> Costs:
    """What tiles (rows, vectors, unroll, and prefetch if that is chosen) cost for `rows` rows, and for `cols` columns
    or all.
    """
    k = prod(it.extent for it in c.reduce)
    cols = c.cols[-1].extent if cols is None else cols
    form = Form(
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
        epilogue_loads=1,
    )
    no, yes = np.zeros(len(points), np.bool_), np.ones(len(points), np.bool_)
    whole = np.zeros(len(points), np.int64)  # no chunks
    ahead = points[:, 3] if points.shape[1] > 3 else 0
    choices = Choices(points[:, 0], points[:, 1], no, yes, yes, whole, points[:, 2], ahead)
    return contraction_seconds(form, choices, target)


def best_tile(c: Contraction, rows: int, target: Target, cols: int | None = None) -> PanelTile:
    """The cheapest register tile for `rows` consecutive rows, and for `cols` columns or all."""
    points = panel_tiles(rows, target)
    seconds = panel_seconds(c, rows, points, target, cols)
    best = int(np.argmin(seconds))
    height, vectors, unroll = (int(n) for n in points[best])
    return PanelTile(
        RegisterTile(height, vectors * target.lanes(c.b.dtype.bytes)), unroll, float(seconds[best])
    )
