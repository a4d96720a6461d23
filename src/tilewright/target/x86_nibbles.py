"""Dot products of bytes with numbers of 4 bits, two of which share a byte, on x86-64.

    C[j] += Σ A0[k] · low(B[j, k]) + A1[k] · high(B[j, k])      over four bytes of B, which lie side by side

A is signed and B is not. The halves of the bytes are masked in registers, so weights are read as they are stored.
"""

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Buffer, Scope, Var, binary, cast, const
from tilewright.target.intrinsic import (
    ANYWHERE,
    MEMORY,
    EmitContext,
    Emitter,
    Intrinsic,
    Operand,
    state,
)

_HALF = 4  # bits of half of the bytes; given
_MASK = (1 << _HALF) - 1  # of the low half of the bytes; given


def _word(c: EmitContext, operand: int, lanes: int) -> str:
    """Four bytes of A in every lane."""
    word = c.op(f"bitcast <4 x i8> {c.get(operand, 0, 4)} to i32")
    return c.op(f"bitcast <{lanes} x i32> {c.splat('i32', word, lanes)} to <{4 * lanes} x i8>")


def _halves(c: EmitContext, lanes: int) -> tuple[str, str]:
    """The low and the high halves of the bytes of B. There is no shift of bytes: it is one of 16 bits, masked."""
    size = 4 * lanes
    whole = c.get(3, 0, size)
    mask = c.splat("i8", str(_MASK), size)
    low = c.op(f"and <{size} x i8> {whole}, {mask}")
    shorts = c.op(f"bitcast <{size} x i8> {whole} to <{size // 2} x i16>")
    moved = c.op(f"lshr <{size // 2} x i16> {shorts}, {c.splat('i16', str(_HALF), size // 2)}")
    high = c.op(f"and <{size} x i8> {c.op(f'bitcast <{size // 2} x i16> {moved} to <{size} x i8>')}, {mask}")
    return low, high


def _emit_vnni(instruction: str, lanes: int) -> Emitter:
    sums, chars = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"

    def emit(c: EmitContext) -> None:
        total = c.get(0, 0, lanes)
        for operand, half in enumerate(_halves(c, lanes), 1):
            factors = (sums, total), (chars, half), (chars, _word(c, operand, lanes))
            total = c.call(instruction, sums, *factors)
        c.put(0, 0, lanes, total)

    return emit


def _emit_avx2(c: EmitContext) -> None:
    """vpmaddubsw adds two products of at most 15 · 128, and four of these fit 16 bits: nothing saturates."""
    shorts = [
        c.call(
            "llvm.x86.avx2.pmadd.ub.sw",
            "<16 x i16>",
            ("<32 x i8>", half),
            ("<32 x i8>", _word(c, operand, 8)),
        )
        for operand, half in enumerate(_halves(c, 8), 1)
    ]
    both = c.op(f"add <16 x i16> {shorts[0]}, {shorts[1]}")
    ones = ("<16 x i16>", c.splat("i16", "1", 16))
    four = c.call("llvm.x86.avx2.pmadd.wd", "<8 x i32>", ("<16 x i16>", both), ones)
    c.put(0, 0, 8, c.op(f"add <8 x i32> {c.get(0, 0, 8)}, {four}"))


def _nibbles(name: str, lanes: int, features: frozenset[str], emitter: Emitter) -> Intrinsic:
    c = Buffer("C", (lanes,), DType.I32, Scope.REGISTER)
    low, high = Buffer("A0", (4,), DType.I8), Buffer("A1", (4,), DType.I8)
    b = Buffer("B", (lanes, 4), DType.U8)
    j, k = Var("j"), Var("k")
    first = cast(DType.I32, low[k]) * cast(DType.I32, binary(BinaryOp.AND, b[j, k], const(_MASK, DType.U8)))
    second = cast(DType.I32, high[k]) * cast(DType.I32, binary(BinaryOp.SHR, b[j, k], const(_HALF, DType.U8)))
    operands = (
        Operand("C", ANYWHERE, 1),
        Operand("A0", MEMORY, 1),
        Operand("A1", MEMORY, 1),
        Operand("B", MEMORY, 2),
    )
    meaning = state("nibbles", (c, low, high, b), {j: lanes}, {k: 4}, c[j], c[j] + (first + second))
    return Intrinsic(name, meaning, operands, features, emitter=emitter)


NIBBLE_PRODUCTS: tuple[Intrinsic, ...] = (
    _nibbles("x86.i8u4.dot8_8", 8, frozenset({"avx2"}), _emit_avx2),
    _nibbles(
        "vnni.i8u4.dot8_16",
        16,
        frozenset({"avx512f", "avx512bw", "avx512vnni"}),
        _emit_vnni("llvm.x86.avx512.vpdpbusd.512", 16),
    ),
)
