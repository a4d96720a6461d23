"""Register tiles: how many rows and columns of a result are kept in registers.

A tile of R rows and V vectors of columns needs R·V accumulators, V registers for a row of B and one for an
element of A. Per step it loads R + V times for R·V multiply-adds, so it should be as square as fits; and it
needs enough independent accumulators to fill the pipeline.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RegisterTile:
    rows: int
    columns: int  # elements


def row_tiles(rows: int, height: int = 6) -> dict[int, int]:
    """Tiles of two neighbouring sizes, none above `height`, that cover `rows` exactly: size -> how many."""
    count = -(-rows // height)
    size, larger = divmod(rows, count)
    tiles = {size + 1: larger, size: count - larger}
    return {s: n for s, n in tiles.items() if n}


def column_tiles(columns: int, vectors: int, lanes: int) -> dict[int, int]:
    """Panels of `vectors` vectors and what remains, in vectors (a part of a vector counts as one): width ->
    how many.
    """
    full, rest = divmod(columns, vectors * lanes)
    out = {vectors: full} if full else {}
    whole, part = divmod(rest, lanes)
    for width in (whole, 1 if part else 0):
        if width:
            out[width] = out.get(width, 0) + 1
    return out
