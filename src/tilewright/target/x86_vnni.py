"""Dot products of AVX-VNNI: the instructions of AVX-512 VNNI on vectors of 32 bytes, for processors without AVX-512.

AVX-VNNI-INT8 has them for bytes of any signs. `vpdpbusd` and its kin add four products to each lane modulo 2^32; the
forms that saturate (`vpdpbusds`) are not declared.
"""

from tilewright.ir.dtype import DType
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.lane_products import adding_halves, calling, half_products, lane_products, swapped
from tilewright.target.x86_few_bits import adding_bytes, unsigned_products

_LANES = 8  # of 32 bits; given
_VNNI = frozenset({"avx2", "avxvnni"})
_INT8 = _VNNI | {"avxvnniint8"}
# LLVM has one name for the instructions of both; the encoding follows the features.
_BYTES = calling("llvm.x86.avx512.vpdpbusd.256", _LANES)
_SHORTS = calling("llvm.x86.avx512.vpdpwssd.256", _LANES, DType.I16)

DOT_PRODUCTS: tuple[Intrinsic, ...] = (
    lane_products("avxvnni.i16.dot2_8", (DType.I16, DType.I16), _LANES, _VNNI, _SHORTS),
    lane_products("avxvnni.u8i8.dot4_8", (DType.U8, DType.I8), _LANES, _VNNI, _BYTES),
    lane_products("avxvnni.i8u8.dot4_8", (DType.I8, DType.U8), _LANES, _VNNI, swapped(_BYTES)),
    *(
        lane_products(
            f"avxvnniint8.{a}{b}.dot4_8", (a, b), _LANES, _INT8, calling(f"llvm.x86.avx2.{f}.256", _LANES)
        )
        for a, b, f in ((DType.I8, DType.I8, "vpdpbssd"), (DType.U8, DType.U8, "vpdpbuud"))
    ),
)
# Steps: instructions for a vector of one row, without those that take bytes apart; counted.
FEW_BITS: tuple[Intrinsic, ...] = (
    half_products("avxvnni.i8u4.dot8_8", _LANES, 1, _VNNI, adding_halves(_LANES, _BYTES), 2.0),
    unsigned_products("avxvnni.i8u8.dot8_8", _LANES, _VNNI, adding_bytes(_LANES, _BYTES), 2.0),
)
