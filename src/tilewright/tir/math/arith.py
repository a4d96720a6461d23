"""The vocabulary that the functions of this package are written in."""

from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Bitcast,
    Const,
    Expr,
    Fma,
    Scalar,
    UnaryOp,
    binary,
    const,
    lift,
    select,
    unary,
)

# Unsigned 64-bit for the bits of f64: i64 is the type of indices, whose arithmetic may not overflow.
_BITS = {DType.F32: DType.I32, DType.F64: DType.U64}
MANTISSA = {DType.F32: 23, DType.F64: 52}


def f32(value: float) -> Const:
    return const(value, DType.F32)


def f64(value: float) -> Const:
    return const(value, DType.F64)


def fma(a: Expr | float, b: Expr, c: Expr | float) -> Expr:
    return Fma(lift(a, b.dtype), b, lift(c, b.dtype))


def absolute(x: Expr) -> Expr:
    return unary(UnaryOp.ABS, x)


def sqrt(x: Expr) -> Expr:
    return unary(UnaryOp.SQRT, x)


def floor(x: Expr) -> Expr:
    return unary(UnaryOp.FLOOR, x)


def nearest(x: Expr) -> Expr:
    """The nearest integer, as a float."""
    return unary(UnaryOp.ROUND, x)


def either(*conds: Expr) -> Expr:
    out = conds[0]
    for c in conds[1:]:
        out = binary(BinaryOp.OR, out, c)
    return out


def both(a: Expr, b: Expr) -> Expr:
    return binary(BinaryOp.AND, a, b)


def equals(a: Expr, b: Expr | Scalar) -> Expr:
    return Binary(BinaryOp.EQ, a, lift(b, a.dtype))


def differs(a: Expr, b: Expr | Scalar) -> Expr:
    return Binary(BinaryOp.NE, a, lift(b, a.dtype))


def at_least(x: Expr, low: float) -> Expr:
    """max(x, low), where NaN stays NaN."""
    return select(x < low, const(low, x.dtype), x)


def at_most(x: Expr, high: float) -> Expr:
    """min(x, high), where NaN stays NaN."""
    return select(x > high, const(high, x.dtype), x)


def clamp(x: Expr, low: float, high: float) -> Expr:
    return at_most(at_least(x, low), high)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Σ coefficients[k]·x^k, by Horner's rule."""
    *rest, top = coefficients
    out: Expr = const(top, x.dtype)
    for c in reversed(rest):
        out = Fma(out, x, const(c, x.dtype))
    return out


def polynomial_in_two(x: Expr, coefficients: Sequence[float]) -> Expr:
    """The same in two chains, of the even and of the odd powers: half the latency for one operation more."""
    z = x * x
    return Fma(polynomial(z, coefficients[1::2]), x, polynomial(z, coefficients[::2]))


# ------------------------------------------------------------------------------------------------------- bits


def bits(x: Expr) -> Expr:
    """The bits of a float, as an integer."""
    dtype = _BITS[x.dtype]
    return x.a if isinstance(x, Bitcast) and x.a.dtype is dtype else Bitcast(dtype, x)


def from_bits(i: Expr) -> Expr:
    return Bitcast(DType.F32 if i.dtype is DType.I32 else DType.F64, i)


def shift_left(i: Expr, by: int) -> Expr:
    return Binary(BinaryOp.SHL, i, const(by, i.dtype))


def shift_right(i: Expr, by: int) -> Expr:
    return Binary(BinaryOp.SHR, i, const(by, i.dtype))


def mask(i: Expr, keep: int) -> Expr:
    return Binary(BinaryOp.AND, i, const(keep, i.dtype))


def xor(a: Expr, b: Expr) -> Expr:
    return Binary(BinaryOp.XOR, a, b)


def sign_bit(x: Expr) -> Expr:
    i = bits(x)
    return mask(i, 1 << (i.dtype.bits - 1))


def with_sign(magnitude: Expr, sign: Expr) -> Expr:
    """`magnitude`, whose sign bit is clear, with the sign bit `sign`."""
    return from_bits(Binary(BinaryOp.OR, bits(magnitude), sign))


def round_in_bits(x: Expr, scale: float, bias: int) -> tuple[Expr, Expr]:
    """n = x·scale rounded to an integer: as a float, and n + bias in the low bits of an integer.

    At 1.5·2²³ (f64: 1.5·2⁵²) the last bit of a float counts ones, so adding that rounds, and subtracting it again
    is exact. |x·scale| must stay below 2²² (2⁵¹).
    """
    anchor = const(1.5 * 2 ** MANTISSA[x.dtype] + bias, x.dtype)
    t = x + anchor if scale == 1 else Fma(x, const(scale, x.dtype), anchor)
    return t - anchor, bits(t)
