"""Dot products of signed bytes with unsigned numbers of 4 and 8 bits, on x86-64.

    C[j] += Σ A0[q, k] · low(B[q, j, k]) + A1[q, k] · high(B[q, j, k])      numbers of 4 bits, two of which share a byte
    C[j] += Σ A[q, k] · B[q, j, k]                                         numbers of 8 bits

over four bytes of B, which lie side by side, and over a few groups q of them. The halves of bytes
are masked in registers, so weights are read as they are stored.
"""

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
from tilewright.target.lane_products import (
    AddProducts,
    adding_halves,
    calling,
    half_products,
    halves,
    in_every_lane,
)

_WORDS = 2  # groups of bytes of 8 bits: as many products as those of 4 bits have; given
# What sums up products of bytes in pairs, and pairs of shorts, by lanes; given: the instructions of LLVM.
_PAIRS = {8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd")}
_PAIRS[16] = ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512")


class _Shorts:
    """Sums of products of bytes in 16 bits."""

    def __init__(self, c: EmitContext, lanes: int) -> None:
        self._c, self._lanes, self._type = c, lanes, f"<{2 * lanes} x i16>"

    def products(self, weights: str, word: str) -> str:
        """Of neighbours, in pairs; it must be known that these fit."""
        chars = f"<{4 * self._lanes} x i8>"
        return self._c.call(_PAIRS[self._lanes][0], self._type, (chars, weights), (chars, word))

    def sum(self, a: str, b: str) -> str:
        return self._c.op(f"add {self._type} {a}, {b}")

    def added(self, total: str, shorts: str) -> str:
        """Sums of 32 bits, with pairs of those of 16."""
        ones, sums = self._c.splat("i16", "1", 2 * self._lanes), f"<{self._lanes} x i32>"
        pairs = self._c.call(_PAIRS[self._lanes][1], sums, (self._type, shorts), (self._type, ones))
        return self._c.op(f"add {sums} {total}, {pairs}")


def adding_in_shorts(lanes: int) -> AddProducts:
    """Of unsigned bytes with signed ones of which two products fit 16 bits."""

    def add(c: EmitContext, total: str, left: str, right: str) -> str:
        shorts = _Shorts(c, lanes)
        return shorts.added(total, shorts.products(left, right))

    return add


def _emit_nibbles(groups: int, lanes: int) -> Emitter:
    """vpmaddubsw adds two products of at most 15 · 128, and eight of these fit 16 bits: nothing saturates."""

    def emit(c: EmitContext) -> None:
        shorts, total = _Shorts(c, lanes), ""
        for q in range(groups):
            for operand, half in enumerate(halves(c, 4 * q * lanes, lanes), 1):
                pairs = shorts.products(half, in_every_lane(c, operand, q, lanes))
                total = shorts.sum(total, pairs) if total else pairs
        c.put(0, 0, lanes, shorts.added(c.get(0, 0, lanes), total))

    return emit


def adding_bytes(lanes: int, add: AddProducts) -> Emitter:
    """A few groups, by an instruction whose left factors are the weights."""

    def emit(c: EmitContext) -> None:
        total, size = c.get(0, 0, lanes), 4 * lanes
        for q in range(_WORDS):
            total = add(c, total, c.get(2, q * size, size), in_every_lane(c, 1, q, lanes))
        c.put(0, 0, lanes, total)

    return emit


def _emit_bytes(lanes: int) -> Emitter:
    """A product of 255 · 128 fits 16 bits, and two do not: those of even and of odd bytes are apart."""

    def emit(c: EmitContext) -> None:
        shorts, size, total = _Shorts(c, lanes), 4 * lanes, c.get(0, 0, lanes)
        for q in range(_WORDS):
            weights, word = c.get(2, q * size, size), in_every_lane(c, 1, q, lanes)
            whole = c.op(f"bitcast <{size} x i8> {weights} to <{2 * lanes} x i16>")
            for mask in (0xFF, -0x100):
                kept = c.op(f"and <{2 * lanes} x i16> {whole}, {c.splat('i16', str(mask), 2 * lanes)}")
                every = c.op(f"bitcast <{2 * lanes} x i16> {kept} to <{size} x i8>")
                total = shorts.added(total, shorts.products(every, word))
        c.put(0, 0, lanes, total)

    return emit


def unsigned_products(
    name: str, lanes: int, features: frozenset[str], emitter: Emitter, steps: float
) -> Intrinsic:
    """C[j] += Σ A[q, k] · B[q, j, k]."""
    c, j, k, q = Buffer("C", (lanes,), DType.I32, Scope.REGISTER), Var("j"), Var("k"), Var("q")
    a, b = Buffer("A", (_WORDS, 4), DType.I8), Buffer("B", (_WORDS, lanes, 4), DType.U8)
    value = c[j] + cast(DType.I32, a[q, k]) * cast(DType.I32, b[q, j, k])
    meaning = state("bytes", (c, a, b), {j: lanes}, {q: _WORDS, k: 4}, c[j], value)
    operands = Operand("C", ANYWHERE, 1), Operand("A", MEMORY, 1), Operand("B", MEMORY, 2)
    return Intrinsic(name, meaning, operands, features, emitter=emitter, steps=steps)


_AVX2 = frozenset({"avx2"})
_AVX512BW = frozenset({"avx512f", "avx512bw"})
_VNNI = _AVX512BW | {"avx512vnni"}


def _in_pairs(name: str, lanes: int, groups: int, features: frozenset[str]) -> Intrinsic:
    return half_products(name, lanes, groups, features, _emit_nibbles(groups, lanes), 4.0 * groups + 1)


_DOT = calling("llvm.x86.avx512.vpdpbusd.512", 16)  # 16 lanes; given

# Steps: instructions for a vector of one row, without those that take bytes apart; counted.
FEW_BITS: tuple[Intrinsic, ...] = (
    half_products("vnni.i8u4.dot8_16", 16, 1, _VNNI, adding_halves(16, _DOT), 2.0),
    unsigned_products("vnni.i8u8.dot8_16", 16, _VNNI, adding_bytes(16, _DOT), 2.0),
    _in_pairs("x86.i8u4.dot32_8", 8, 4, _AVX2),
    _in_pairs("x86.i8u4.dot16_8", 8, 2, _AVX2),
    _in_pairs("x86.i8u4.dot8_8", 8, 1, _AVX2),
    unsigned_products("x86.i8u8.dot8_8", 8, _AVX2, _emit_bytes(8), 12.0),
    _in_pairs("avx512.i8u4.dot32_16", 16, 4, _AVX512BW),
    _in_pairs("avx512.i8u4.dot16_16", 16, 2, _AVX512BW),
    _in_pairs("avx512.i8u4.dot8_16", 16, 1, _AVX512BW),
    unsigned_products("avx512.i8u8.dot8_16", 16, _AVX512BW, _emit_bytes(16), 12.0),
)
