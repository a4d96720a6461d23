"""What multiplies tiles of matrices of bytes on a target: registers of their own (AMX), or vectors (i8mm).

Families see names of three intrinsics of any shape, which clear a tile, add products to it, and store it.
"""

from dataclasses import dataclass
from functools import lru_cache

from tilewright.ir.dtype import DType
from tilewright.target import arm_tiles, x86_amx
from tilewright.target.arm_vectors import NEON, SVE_256, ArmVectors
from tilewright.target.target import Target


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    family: str  # of its intrinsics
    types: frozenset[tuple[DType, DType]]  # of what it multiplies
    group: int  # products of an element that lie side by side
    depth: int  # products of an element that an intrinsic adds at most
    register: tuple[int, int]  # rows and columns that tiles are cut to multiples of
    sizes: tuple[tuple[int, int], ...]  # rows and columns of the tiles that are worth a try
    is_vectors: bool

    def product(self, types: tuple[DType, DType], rows: int, columns: int, depth: int) -> str:
        a, b = types
        return f"{self.family}.{a}{b}.tile_{rows}x{columns}x{depth}"

    def zero(self, rows: int, columns: int) -> str:
        return f"{self.family}.i32.zero_{rows}x{columns}"

    def store(self, rows: int, columns: int) -> str:
        return f"{self.family}.i32.store_{rows}x{columns}"


@lru_cache(maxsize=16)
def matrix_unit(target: Target) -> MatrixUnit | None:
    if target.features >= x86_amx.TILE_FEATURES:
        return _AMX
    if "i8mm" in target.features:
        return _SVE_256 if target.features >= SVE_256.features else _NEON
    return None


def _of_vectors(family: str, v: ArmVectors) -> MatrixUnit:
    step = arm_tiles.PAIR * v.segments
    rows = (1, *range(arm_tiles.PAIR, _MOST_ROWS + 1, arm_tiles.PAIR))
    columns = range(2 * step, _MOST_COLUMNS + 1, 2 * step)
    return MatrixUnit(
        family,
        frozenset({(DType.U8, DType.I8), (DType.I8, DType.I8), (DType.U8, DType.U8)}),
        arm_tiles.GROUP,
        arm_tiles.DEPTH,
        (arm_tiles.PAIR, v.lanes),
        tuple((r, c) for r in rows for c in columns if arm_tiles.fits_vectors(r, c, v)),
        is_vectors=True,
    )


_MOST_ROWS, _MOST_COLUMNS = 12, 32  # of tiles in vectors; bound
_NEON, _SVE_256 = _of_vectors("arm", NEON), _of_vectors("sve", SVE_256)
_EVERY = range(x86_amx.TILE_ROWS, x86_amx.TILE_COUNT * x86_amx.TILE_ROWS, x86_amx.TILE_ROWS)
_BYTES = (DType.U8, DType.I8)
_AMX = MatrixUnit(
    "amx",
    frozenset((a, b) for a in _BYTES for b in _BYTES),
    x86_amx.GROUP,
    x86_amx.TILE_BYTES,
    (x86_amx.TILE_ROWS, x86_amx.TILE_ROWS),
    tuple((r, c) for r in _EVERY for c in _EVERY if x86_amx.fits_tiles(r, c)),
    is_vectors=False,
)
