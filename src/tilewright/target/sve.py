"""Tensor intrinsics of aarch64 with SVE, where vectors have 32 bytes."""

from tilewright.ir.dtype import DType
from tilewright.target.arm_vectors import SVE_256
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.lane_products import adding_halves, half_products, lane_products
from tilewright.target.register_tiles import f32_tiles

_REGISTERS = 32  # registers; given
_LANES = SVE_256.lanes
_MAX_ROWS = 8  # of a tile, as with NEON; bound

F32_TILES: tuple[Intrinsic, ...] = f32_tiles(
    "sve",
    _LANES,
    SVE_256.features,
    (
        (rows, vectors)
        for vectors in range(1, 5)
        for rows in range(1, _MAX_ROWS + 1)
        if rows * vectors + vectors + 2 <= _REGISTERS
    ),
)
DOT_PRODUCTS: tuple[Intrinsic, ...] = tuple(
    lane_products(f"sve.{a}{b}.{name}", (a, b), _LANES, SVE_256.features | more, SVE_256.adding(name))
    for name, a, b, more in (
        ("sdot", DType.I8, DType.I8, frozenset[str]()),
        ("udot", DType.U8, DType.U8, frozenset[str]()),
        ("usdot", DType.U8, DType.I8, frozenset({"i8mm"})),
    )
)
FEW_BITS: tuple[Intrinsic, ...] = (
    half_products(
        "sve.i8u4.dot8", _LANES, 1, SVE_256.features, adding_halves(_LANES, SVE_256.adding("sdot")), 2.0
    ),
)
