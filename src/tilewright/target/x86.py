"""Tensor intrinsics of x86-64 with AVX2 or AVX-512."""

import itertools
from collections.abc import Iterator

from tilewright.ir.dtype import DType
from tilewright.target.intrinsic import EmitContext, Intrinsic
from tilewright.target.lane_products import AddProducts, calling, lane_products, swapped
from tilewright.target.register_tiles import f32_tiles
from tilewright.target.x86_few_bits import adding_in_shorts

_AVX2 = frozenset({"avx2", "fma"})
_AVX512 = frozenset({"avx512f", "fma"})
_LANES = 8  # of 32 bits; given


def _tile_sizes(registers: int) -> Iterator[tuple[int, int]]:
    """Rows and vectors. A step of k needs the accumulators, a vector of B per column of them, and one broadcast element
    of A.
    """
    for vectors, rows in itertools.product(range(1, registers), repeat=2):
        if rows * vectors + vectors + 1 <= registers:
            yield rows, vectors


F32_TILES: tuple[Intrinsic, ...] = f32_tiles("x86", _LANES, _AVX2, _tile_sizes(16))
# After those of AVX2, which a target with both has for columns that are fewer.
F32_WIDE_TILES: tuple[Intrinsic, ...] = f32_tiles("avx512", 16, _AVX512, _tile_sizes(32))


# ---------------------------------------------------------------------------------------------------- dot products


def _pairs(function: str, lanes: int) -> AddProducts:
    """vpmaddwd multiplies pairs of i16 and adds neighbours, which is exact modulo 2^32."""
    sums, shorts = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"

    def add(c: EmitContext, total: str, left: str, right: str) -> str:
        return c.op(f"add {sums} {total}, {c.call(function, sums, (shorts, left), (shorts, right))}")

    return add


_AVX2_ONLY = frozenset({"avx2"})
_AVX512BW = frozenset({"avx512f", "avx512bw"})
_VNNI = frozenset({"avx512f", "avx512vnni"})
_VNNI_NARROW = _VNNI | {"avx512vl"}
# Of vpmaddwd with vpaddd after it, and of vpmaddubsw before both, times one multiply-add; measured on a Zen 3: 1.62 and
# 0.96 of these in a cycle, of 2.
_PAIR, _TRIPLE = 1.24, 2.08
# Two products with an unsigned byte fit 16 bits, so vpmaddubsw does not saturate; counted: 2 · 255 · 64 < 2^15.
_SMALL = (-64, 64)
# vpdpbusd adds four products of bytes to the sum of a lane, and vpdpwssd two of i16, modulo 2^32.
_BYTES = calling("llvm.x86.avx512.vpdpbusd.512", 16)  # 16 lanes; given
_NARROW_BYTES = calling("llvm.x86.avx512.vpdpbusd.256", _LANES)
_SHORTS = calling("llvm.x86.avx512.vpdpwssd.512", 16, DType.I16)  # 16 lanes; given
_UNSIGNED, _SIGNED, _SHORT = (DType.U8, DType.I8), (DType.I8, DType.U8), (DType.I16, DType.I16)

DOT_PRODUCTS: tuple[Intrinsic, ...] = (
    lane_products(
        "x86.i16.dot2_8", _SHORT, _LANES, _AVX2_ONLY, _pairs("llvm.x86.avx2.pmadd.wd", _LANES), _PAIR
    ),
    lane_products(
        "avx512.i16.dot2_16", _SHORT, 16, _AVX512BW, _pairs("llvm.x86.avx512.pmaddw.d.512", 16), _PAIR
    ),
    lane_products("vnni.i16.dot2_16", _SHORT, 16, _VNNI, _SHORTS),
    lane_products(
        "x86.u8i8.bounded4_8", _UNSIGNED, _LANES, _AVX2_ONLY, adding_in_shorts(_LANES), _TRIPLE, _SMALL
    ),
    lane_products("avx512.u8i8.bounded4_16", _UNSIGNED, 16, _AVX512BW, adding_in_shorts(16), _TRIPLE, _SMALL),
    lane_products("vnni.u8i8.dot4_16", _UNSIGNED, 16, _VNNI, _BYTES),
    lane_products("vnni.u8i8.dot4_8", _UNSIGNED, _LANES, _VNNI_NARROW, _NARROW_BYTES),
    # Columns of activations, where these lie so.
    lane_products("vnni.i8u8.dot4_16", _SIGNED, 16, _VNNI, swapped(_BYTES)),
    lane_products("vnni.i8u8.dot4_8", _SIGNED, _LANES, _VNNI_NARROW, swapped(_NARROW_BYTES)),
)
