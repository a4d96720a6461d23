"""Tensor intrinsics of x86-64 with AVX2 or AVX-512."""

import itertools
from collections.abc import Iterator

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Scope, Var, cast
from tilewright.target.intrinsic import (
    ANYWHERE,
    MEMORY,
    EmitContext,
    Emitter,
    Intrinsic,
    Operand,
    state,
)
from tilewright.target.lane_products import calling, lane_products, turned
from tilewright.target.register_tiles import f32_tiles

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


def _emit_dot2(instruction: str, lanes: int) -> Emitter:
    """vpmaddwd multiplies pairs of i16 and adds neighbours: it is exact modulo 2^32, unlike vpmaddubsw on bytes, which
    saturates. vpdpwssd adds these to the sum of a lane as well.
    """
    sums, shorts = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"

    def emit(c: EmitContext) -> None:
        pair = c.op(f"bitcast <2 x i16> {c.get(1, 0, 2)} to i32")
        a = c.op(f"bitcast {sums} {c.splat('i32', pair, lanes)} to {shorts}")
        factors = ((shorts, a), (shorts, c.get(2, 0, 2 * lanes)))
        if "vpdp" in instruction:
            c.put(0, 0, lanes, c.call(instruction, sums, (sums, c.get(0, 0, lanes)), *factors))
        else:
            dot = c.call(instruction, sums, *factors)
            c.put(0, 0, lanes, c.op(f"add {sums} {c.get(0, 0, lanes)}, {dot}"))

    return emit


def _dot2(name: str, instruction: str, lanes: int, features: frozenset[str], steps: float = 1.0) -> Intrinsic:
    """C[j] += A[0] · B[j, 0] + A[1] · B[j, 1]: a pair of A against pairs of B that lie side by side."""
    c = Buffer("C", (lanes,), DType.I32, Scope.REGISTER)
    a, b = Buffer("A", (2,), DType.I16), Buffer("B", (lanes, 2), DType.I16)
    j, k = Var("j"), Var("k")
    value = c[j] + cast(DType.I32, a[k]) * cast(DType.I32, b[j, k])
    return Intrinsic(
        name,
        state("dot2", (c, a, b), {j: lanes}, {k: 2}, c[j], value),
        (Operand("C", ANYWHERE, 1), Operand("A", MEMORY, 1), Operand("B", MEMORY, 2)),
        features,
        emitter=_emit_dot2(instruction, lanes),
        steps=steps,
    )


def _emit_dot4(instruction: str, lanes: int) -> Emitter:
    """vpdpbusd adds the four products of bytes to the sum of a lane, modulo 2^32 (vpdpbusds would saturate)."""
    sums, chars = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"

    def emit(c: EmitContext) -> None:
        word = c.op(f"bitcast <4 x i8> {c.get(1, 0, 4)} to i32")
        a = c.op(f"bitcast {sums} {c.splat('i32', word, lanes)} to {chars}")
        operands = (sums, c.get(0, 0, lanes)), (chars, a), (chars, c.get(2, 0, 4 * lanes))
        c.put(0, 0, lanes, c.call(instruction, sums, *operands))

    return emit


def _dot4(name: str, instruction: str, lanes: int, features: frozenset[str]) -> Intrinsic:
    """C[j] += Σ A[k] · B[j, k] over four bytes, which lie side by side: those of A unsigned, those of B signed."""
    c = Buffer("C", (lanes,), DType.I32, Scope.REGISTER)
    a, b = Buffer("A", (4,), DType.U8), Buffer("B", (lanes, 4), DType.I8)
    j, k = Var("j"), Var("k")
    value = c[j] + cast(DType.I32, a[k]) * cast(DType.I32, b[j, k])
    return Intrinsic(
        name,
        state("dot4", (c, a, b), {j: lanes}, {k: 4}, c[j], value),
        (Operand("C", ANYWHERE, 1), Operand("A", MEMORY, 1), Operand("B", MEMORY, 2)),
        features,
        emitter=_emit_dot4(instruction, lanes),
    )


_AVX512BW = frozenset({"avx512f", "avx512bw"})
_VNNI = frozenset({"avx512f", "avx512vnni"})
_VNNI_NARROW = _VNNI | {"avx512vl"}
# Of vpmaddwd with vpaddd after it, times one multiply-add; measured on a Zen 3: 1.62 such pairs in a cycle, of 2.
_PAIR = 1.24


# ------------------------------------------------------------------------------------- bytes that lie within bounds


def _emit_bounded(instructions: tuple[str, str], lanes: int) -> Emitter:
    """vpmaddubsw adds two products of bytes in 16 bits, where it saturates, but not with such weights. vpmaddwd by ones
    adds neighbours.
    """
    sums, shorts, chars = f"<{lanes} x i32>", f"<{2 * lanes} x i16>", f"<{4 * lanes} x i8>"

    def emit(c: EmitContext) -> None:
        word = c.op(f"bitcast <4 x i8> {c.get(1, 0, 4)} to i32")
        a = c.op(f"bitcast {sums} {c.splat('i32', word, lanes)} to {chars}")
        pairs = c.call(instructions[0], shorts, (chars, a), (chars, c.get(2, 0, 4 * lanes)))
        dot = c.call(instructions[1], sums, (shorts, pairs), (shorts, c.splat("i16", "1", 2 * lanes)))
        c.put(0, 0, lanes, c.op(f"add {sums} {c.get(0, 0, lanes)}, {dot}"))

    return emit


def _bounded(name: str, instructions: tuple[str, str], lanes: int, features: frozenset[str]) -> Intrinsic:
    """As `_dot4`, with weights of which two products fit 16 bits."""
    c = Buffer("C", (lanes,), DType.I32, Scope.REGISTER)
    a, b = Buffer("A", (4,), DType.U8), Buffer("B", (lanes, 4), DType.I8)
    j, k, most = Var("j"), Var("k"), _SHORT // (2 * _BYTE)
    value = c[j] + cast(DType.I32, a[k]) * cast(DType.I32, b[j, k])
    weights = Operand("B", MEMORY, 2, within=(-most, most))
    return Intrinsic(
        name,
        state("bounded", (c, a, b), {j: lanes}, {k: 4}, c[j], value),
        (Operand("C", ANYWHERE, 1), Operand("A", MEMORY, 1), weights),
        features,
        emitter=_emit_bounded(instructions, lanes),
        steps=_TRIPLE,
    )


_BYTE, _SHORT = 255, 32767  # the largest number of an unsigned byte, and of 16 bits; given
# Of vpmaddubsw, vpmaddwd and vpaddd, times one multiply-add; measured on a Zen 3: 0.96 of these in a cycle.
_TRIPLE = 2.08

DOT_PRODUCTS: tuple[Intrinsic, ...] = (
    _dot2("x86.i16.dot2_8", "llvm.x86.avx2.pmadd.wd", _LANES, frozenset({"avx2"}), _PAIR),
    _dot2("avx512.i16.dot2_16", "llvm.x86.avx512.pmaddw.d.512", 16, _AVX512BW, _PAIR),
    _dot2("vnni.i16.dot2_16", "llvm.x86.avx512.vpdpwssd.512", 16, _VNNI),
    _bounded(
        "x86.u8i8.bounded4_8",
        ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
        _LANES,
        frozenset({"avx2"}),
    ),
    _bounded(
        "avx512.u8i8.bounded4_16",
        ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
        16,
        _AVX512BW,
    ),
    _dot4("vnni.u8i8.dot4_16", "llvm.x86.avx512.vpdpbusd.512", 16, _VNNI),
    _dot4("vnni.u8i8.dot4_8", "llvm.x86.avx512.vpdpbusd.256", 8, _VNNI_NARROW),
    # Columns of which are activations, where these lie so.
    lane_products(
        "vnni.i8u8.dot4_16",
        (DType.I8, DType.U8),
        16,
        _VNNI,
        turned(calling("llvm.x86.avx512.vpdpbusd.512", 16)),
    ),
    lane_products(
        "vnni.i8u8.dot4_8",
        (DType.I8, DType.U8),
        8,
        _VNNI_NARROW,
        turned(calling("llvm.x86.avx512.vpdpbusd.256", 8)),
    ),
)
