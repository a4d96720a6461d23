"""Dot products in the lanes of a vector, as several processors have them.

    C[j] += Σ A[k] · B[j, k]            a group of short integers that is as long as an element of the sum
    C[j] += Σ A0[q, k] · low(B[q, j, k]) + A1[q, k] · high(B[q, j, k])      halves of bytes, which are unsigned

The group of A is in every lane; that of B lies side by side for each of them. What adds the products to the sums is a
function: the instruction of a processor. Sums are modulo 2^32.
"""

from collections.abc import Callable
from typing import TypeAlias

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Buffer, Expr, Scope, Var, binary, cast, const
from tilewright.target.intrinsic import (
    ANYWHERE,
    MEMORY,
    EmitContext,
    Emitter,
    Intrinsic,
    Operand,
    state,
)

# Sums with products added to them, from the sums and two vectors of factors: (context, sums, left, right).
AddProducts: TypeAlias = Callable[[EmitContext, str, str, str], str]

BYTES = 4  # of a group: those of an element of the sum; given
_HALF = 4  # bits of half of a byte; given
_MASK = (1 << _HALF) - 1  # of the low half; given


def calling(function: str, lanes: int, dtype: DType = DType.I8) -> AddProducts:
    """An LLVM intrinsic that takes sums and factors of this type as they are."""
    sums, factors = f"<{lanes} x i32>", f"<{lanes * BYTES // dtype.bytes} x i{8 * dtype.bytes}>"

    def add(c: EmitContext, total: str, left: str, right: str) -> str:
        return c.call(function, sums, (sums, total), (factors, left), (factors, right))

    return add


def swapped(add: AddProducts) -> AddProducts:
    """The same with left and right factors in each other's place."""
    return lambda c, total, left, right: add(c, total, right, left)


def in_every_lane(c: EmitContext, operand: int, number: int, lanes: int, dtype: DType = DType.I8) -> str:
    """A group of an operand in memory, once in each lane. As one integer: vectors of so few bytes are no type of every
    processor, and LLVM takes them apart.
    """
    group, bits, at = BYTES // dtype.bytes, 8 * dtype.bytes, c.pointer(operand)
    if number:
        at = c.op(f"getelementptr i{bits}, ptr {at}, i64 {number * c.stride(operand, 0)}")
    word = c.op(f"load i32, ptr {at}, align {dtype.bytes}")
    return c.op(f"bitcast <{lanes} x i32> {c.splat('i32', word, lanes)} to <{group * lanes} x i{bits}>")


def lane_products(
    name: str,
    types: tuple[DType, DType],
    lanes: int,
    features: frozenset[str],
    add: AddProducts,
    steps: float = 1.0,
    within: tuple[int, int] | None = None,
) -> Intrinsic:
    """C[j] += Σ A[k] · B[j, k], of these types of A and B, which have one size. B has to lie `within` these numbers."""
    left, right = types
    group = BYTES // left.bytes
    c = Buffer("C", (lanes,), DType.I32, Scope.REGISTER)
    a, b = Buffer("A", (group,), left), Buffer("B", (lanes, group), right)
    j, k = Var("j"), Var("k")
    value = c[j] + cast(DType.I32, a[k]) * cast(DType.I32, b[j, k])

    def emit(c: EmitContext) -> None:
        rows = in_every_lane(c, 1, 0, lanes, left)
        c.put(0, 0, lanes, add(c, c.get(0, 0, lanes), rows, c.get(2, 0, group * lanes)))

    return Intrinsic(
        name,
        state("dot", (c, a, b), {j: lanes}, {k: group}, c[j], value),
        (Operand("C", ANYWHERE, 1), Operand("A", MEMORY, 1), Operand("B", MEMORY, 2, within)),
        features,
        emitter=emit,
        steps=steps,
    )


# ----------------------------------------------------------------------------------------------- halves of bytes


def half_products(
    name: str, lanes: int, groups: int, features: frozenset[str], emitter: Emitter, steps: float
) -> Intrinsic:
    """C[j] += Σ A0[q, k] · low(B[q, j, k]) + A1[q, k] · high(B[q, j, k])."""
    c, j, k, q = Buffer("C", (lanes,), DType.I32, Scope.REGISTER), Var("j"), Var("k"), Var("q")
    several = (groups,) if groups > 1 else ()
    at = (q,) if groups > 1 else ()
    low, high = (Buffer(n, (*several, BYTES), DType.I8) for n in ("A0", "A1"))
    b = Buffer("B", (*several, lanes, BYTES), DType.U8)
    operands = (
        Operand("C", ANYWHERE, 1),
        Operand("A0", MEMORY, 1),
        Operand("A1", MEMORY, 1),
        Operand("B", MEMORY, 2),
    )
    over = {q: groups, k: BYTES} if groups > 1 else {k: BYTES}
    value = c[j] + _of_both(low[(*at, k)], high[(*at, k)], b[(*at, j, k)])
    meaning = state("nibbles", (c, low, high, b), {j: lanes}, over, c[j], value)
    return Intrinsic(name, meaning, operands, features, emitter=emitter, steps=steps)


def _of_both(low: Expr, high: Expr, byte: Expr) -> Expr:
    first = cast(DType.I32, binary(BinaryOp.AND, byte, const(_MASK, DType.U8)))
    second = cast(DType.I32, binary(BinaryOp.SHR, byte, const(_HALF, DType.U8)))
    return cast(DType.I32, low) * first + cast(DType.I32, high) * second


def halves(c: EmitContext, start: int, lanes: int) -> tuple[str, str]:
    """The low and the high halves of the bytes of B, from byte number `start` on."""
    size = BYTES * lanes
    whole = c.get(3, start, size)
    low = c.op(f"and <{size} x i8> {whole}, {c.splat('i8', str(_MASK), size)}")
    return low, c.op(f"lshr <{size} x i8> {whole}, {c.splat('i8', str(_HALF), size)}")


def adding_halves(lanes: int, add: AddProducts) -> Emitter:
    """One group, by an instruction whose left factors are the weights."""

    def emit(c: EmitContext) -> None:
        total = c.get(0, 0, lanes)
        for operand, half in enumerate(halves(c, 0, lanes), 1):
            total = add(c, total, half, in_every_lane(c, operand, 0, lanes))
        c.put(0, 0, lanes, total)

    return emit
