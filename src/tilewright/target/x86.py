"""Tensor intrinsics of x86-64 with AVX2 or AVX-512."""

import itertools
from collections.abc import Iterator

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Scope, Var, cast
from tilewright.target.intrinsic import (
    ANYWHERE,
    MEMORY,
    EmitContext,
    Intrinsic,
    Operand,
    state,
)
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


def _write_dot2(c: EmitContext) -> None:
    """vpmaddwd multiplies 16 pairs of i16 and adds neighbours: it is exact modulo 2^32, unlike vpmaddubsw on bytes,
    which saturates.
    """
    pair = c.op(f"bitcast <2 x i16> {c.get(1, 0, 2)} to i32")
    a = c.op(f"bitcast <8 x i32> {c.splat('i32', pair, 8)} to <16 x i16>")
    dot = c.call("llvm.x86.avx2.pmadd.wd", "<8 x i32>", ("<16 x i16>", a), ("<16 x i16>", c.get(2, 0, 16)))
    c.put(0, 0, 8, c.op(f"add <8 x i32> {c.get(0, 0, 8)}, {dot}"))


def _dot2() -> Intrinsic:
    """C[j] += A[0] · B[j, 0] + A[1] · B[j, 1]: a pair of A against pairs of B that lie side by side."""
    c = Buffer("C", (_LANES,), DType.I32, Scope.REGISTER)
    a, b = Buffer("A", (2,), DType.I16), Buffer("B", (_LANES, 2), DType.I16)
    j, k = Var("j"), Var("k")
    value = c[j] + cast(DType.I32, a[k]) * cast(DType.I32, b[j, k])
    return Intrinsic(
        "x86.i16.dot2_8",
        state("dot2", (c, a, b), {j: _LANES}, {k: 2}, c[j], value),
        (Operand("C", ANYWHERE, 1), Operand("A", MEMORY, 1), Operand("B", MEMORY, 2)),
        frozenset({"avx2"}),
        emitter=_write_dot2,
    )


def _write_dot4(c: EmitContext) -> None:
    """vpdpbusd adds the four products of bytes to the sum of a lane, modulo 2^32 (vpdpbusds would saturate)."""
    word = c.op(f"bitcast <4 x i8> {c.get(1, 0, 4)} to i32")
    a = c.op(f"bitcast <16 x i32> {c.splat('i32', word, 16)} to <64 x i8>")
    sums = (("<16 x i32>", c.get(0, 0, 16)), ("<64 x i8>", a), ("<64 x i8>", c.get(2, 0, 64)))
    c.put(0, 0, 16, c.call("llvm.x86.avx512.vpdpbusd.512", "<16 x i32>", *sums))


def _dot4() -> Intrinsic:
    """C[j] += Σ A[k] · B[j, k] over four bytes, which lie side by side: those of A unsigned, those of B signed."""
    c = Buffer("C", (16,), DType.I32, Scope.REGISTER)
    a, b = Buffer("A", (4,), DType.U8), Buffer("B", (16, 4), DType.I8)
    j, k = Var("j"), Var("k")
    value = c[j] + cast(DType.I32, a[k]) * cast(DType.I32, b[j, k])
    return Intrinsic(
        "vnni.u8i8.dot4_16",
        state("dot4", (c, a, b), {j: 16}, {k: 4}, c[j], value),
        (Operand("C", ANYWHERE, 1), Operand("A", MEMORY, 1), Operand("B", MEMORY, 2)),
        frozenset({"avx512f", "avx512vnni"}),
        emitter=_write_dot4,
    )


DOT_PRODUCTS: tuple[Intrinsic, ...] = (_dot2(), _dot4())
