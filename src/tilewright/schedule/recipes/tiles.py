"""Register tiles: how many rows and columns of a result are kept in registers.

A tile of R rows and V vectors of columns needs R·V accumulators, V registers for a row of B and one for an
element of A. Per step it loads R + V times for R·V multiply-adds, so it should be as square as fits; and it
needs enough independent accumulators to fill the pipeline.
"""

from dataclasses import dataclass

# Multiply-adds a core starts per cycle times the cycles until a result is there: fewer accumulators leave
# the units idle.
_IN_FLIGHT = 8
_FMA_PER_CYCLE = 2.0
_LOADS_PER_CYCLE = 2.0


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    columns: int  # elements


def tile_time(rows: int, vectors: int) -> float:
    """Cycles per multiply-add of one vector."""
    work = rows * vectors
    compute = max(work, _IN_FLIGHT) / _FMA_PER_CYCLE
    loads = (rows + vectors) / _LOADS_PER_CYCLE
    # Loads do not overlap perfectly, and a vector of B comes from a farther cache than an element of A.
    return (max(compute, loads) + 0.3 * loads + 0.2 * vectors) / work


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
