"""The time of a contraction in tiles of matrices, in closed form.

    cycles = the longer of products and of bytes that come from farther than the first-level cache
           + starting and storing each tile, and reading it again in vectors
           + setting shapes, in each part, where registers have some
           + copying rows that are not read in place

Figures of registers for matrices are cycles, measured on a processor with AMX (a Granite Rapids at 3.4 GHz). Those of
vectors are those of the gemm family's tiles.
"""

from dataclasses import dataclass
from functools import lru_cache

from tilewright.cost.caches import l1_room, l2_cycles, l2_room, l3_cycles, l3_room
from tilewright.cost.layouts import COPIED, copy_cycles
from tilewright.cost.register_tile import tile_step
from tilewright.cost.terms import TermName
from tilewright.families.gemm.cost import TILE_START, Form
from tilewright.families.gemm.tiles import row_tiles
from tilewright.families.parallel import part_size
from tilewright.families.tiles.cuts import column_cuts
from tilewright.target.machine import Machine
from tilewright.target.matrix_units import MatrixUnit
from tilewright.target.x86_amx import column_parts, row_parts

# AMX. A product of registers: what the one with the columns takes to be taken up, and each row that passes. Measured:
# 18.4 cycles with 16 rows, 14 with 8, 13 with 4 and fewer.
_PRODUCT, _ROW = 10.5, 0.5
_START = 100.0  # of a tile: from the last product to what consumes it, of which little overlaps; measured
_STORED = 26.0  # of a register; measured
_SHAPES = 150.0  # of a part: to set shapes, and to release the registers; measured: 60 ns with memory written before
# Vectors.
_PUT = 1.5  # to put rows of a vector together, and to store it; counted: two shuffles and two stores, of 2 in a cycle
# Both.
_VECTOR = 1.0  # to read a vector of it again and to come to it; and half of it for each operand of the epilogue; judged
_SCATTERED = 1.2  # to store one lane of a vector; as in vectors
_EXPOSED = 0.1  # of the cycles of reads that pass while products are computed; judged


@dataclass(frozen=True, slots=True)
class TileChoice:
    """A point, without what decides which contraction it is (`Form`)."""

    rows: int
    columns: int
    pack_a: bool
    columns_outside: bool


@dataclass(frozen=True, slots=True)
class TileTime:
    """In cycles of one core."""

    terms: dict[TermName, float]
    parts: int


def tile_time(f: Form, depth: int, c: TileChoice, unit: MatrixUnit, m: Machine) -> TileTime:
    rows, columns = row_tiles(f.rows, c.rows), _widths(f.cols, c.columns, unit.register[1])
    lanes = unit.register[1]
    n_rows, n_columns = sum(rows.values()), sum(n for _, n in columns)
    outer = f.batch * f.other_rows
    steps = f.k // depth
    products = edges = 0.0
    for height, n_high in rows.items():
        for width, n_wide in columns:
            step, moved = (_in_vectors if unit.is_vectors else _in_registers)(unit, height, width, depth, m)
            store = 1.0 if f.out_col_step == 1 else _SCATTERED * lanes
            epilogue = height * -(-width // lanes) * (_VECTOR + store + 0.5 * _VECTOR * f.epilogue_loads)
            products += n_high * n_wide * steps * step
            edges += n_high * n_wide * (moved + epilogue)
    tiles = outer * n_rows * n_columns
    parts = tiles // part_size(tiles)
    moved, is_far = _moved(f, c, n_rows, n_columns, m)
    # What the first-level cache does not hold passes while products are computed.
    late = max(moved - outer * products, 0.0) + _EXPOSED * min(moved, outer * products)
    a = 0.0 if f.a_constant or not c.pack_a else copy_cycles(float(outer * f.rows * f.k), 1, m, COPIED)
    return TileTime(
        {
            "arithmetic": outer * products,
            "edges": outer * edges + (0.0 if unit.is_vectors else parts * _SHAPES),
            "far" if is_far else "near": late,
            "copies": a,
        },
        parts,
    )


def _in_registers(unit: MatrixUnit, height: int, width: int, depth: int, m: Machine) -> tuple[float, float]:
    """Of a tile: a step of the reduction, and what comes before and after."""
    heights, widths = row_parts(height), column_parts(width)
    step = sum(_PRODUCT + _ROW * h for h in heights) * len(widths)
    return step, _START + _STORED * len(heights) * len(widths)


def _in_vectors(unit: MatrixUnit, height: int, width: int, depth: int, m: Machine) -> tuple[float, float]:
    """The same. Of each pair of rows, what is loaded has to be put together first."""
    rows, columns = -(-height // unit.register[0]), -(-unit.register[0] * width // unit.register[1])
    step = float(tile_step(m, rows, columns)) + rows / m.fma_per_cycle
    return depth // unit.group * step, TILE_START + _PUT * rows * columns


@lru_cache(maxsize=64)
def _widths(columns: int, width: int, register: int) -> tuple[tuple[int, int], ...]:
    """(width, how many) of the tiles."""
    found: list[tuple[int, int]] = []
    start = 0
    for end, size in column_cuts(columns, width, register):
        found.append((size, (end - start) // size))
        start = end
    return tuple(found)


def _moved(f: Form, c: TileChoice, n_rows: int, n_columns: int, m: Machine) -> tuple[float, bool]:
    """Cycles for bytes that come from farther than the first-level cache, and whether they come from memory."""
    all_a, all_b = float(f.other_rows * f.rows * f.k), float(f.k * f.cols)
    band, panel = float(min(c.rows, f.rows) * f.k), float(f.k * min(c.columns, f.cols))
    if c.columns_outside:
        again = all_a * (n_columns - 1) * _cycles(all_a + panel, m) + all_b * _cycles(all_b, m)
        again += all_b * (f.other_rows * n_rows - 1) * _cycles(panel + 2 * band, m)
    else:
        again = all_b * (f.other_rows * n_rows - 1) * _cycles(all_b + band, m) + all_b * _cycles(all_b, m)
        again += all_a * (n_columns - 1) * _cycles(band + 2 * panel, m)
    first = all_a * _cycles(all_a, m)
    return f.batch * (again + first), all_a + all_b > l3_room(m)


def _cycles(footprint: float, m: Machine) -> float:
    """Of a byte that is read after so many others."""
    if footprint <= l1_room(m):
        return 0.0
    if footprint <= l2_room(m):
        return l2_cycles(m)
    return l3_cycles(m) if footprint <= l3_room(m) else m.hertz / m.memory_rate
