"""sin and cos of any finite f32.

The reduction takes x / 2π modulo 1 exactly enough for all arguments, in f64 and without a table. 1/2π is cut into
pieces of 29 bits, so that x (24 bits) times a piece is exact, and whole turns can be dropped from each product alone.
x up to 2¹²⁸ can come within 2⁻³⁰ of a multiple of π/2, so about 190 bits of 1/2π are needed in all; but for one x only
those matter whose product with x is neither a whole number of turns nor negligible. Two sets of pieces (three of 29
bits, and 53 bits that follow) are enough: one for |x| < 2⁸⁰, one above.

Each product minus its whole turns is exact; removing the quarter turns from the first is exact too, so that the sum of
the pieces, from large to small, has a relative error of about 2⁻⁵².
"""

import math

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Fma, cast, select
from tilewright.tir.math.arith import (
    absolute,
    bits,
    differs,
    f64,
    fma,
    from_bits,
    mask,
    nearest,
    polynomial,
    round_in_bits,
    shift_left,
    sign_bit,
    xor,
)

# floor(2²⁰⁰ / 2π)
_BITS_OF_1_BY_2PI = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F
_LENGTH = 200

# (sin r - r) / r³ and (cos r - 1 + r²/2) / r⁴ in r², on |r| ≤ 0.8: relative errors 0.07 and 0.003 · 2^-24.
_SIN = (-0.166666538, 0.00833208859, -0.000195046654)
_COS = (0.0416666493, -0.0013887299, 2.44190687e-05)


def _piece(first: int, last: int) -> float:
    """The bits of 1/2π from weight 2^-first to 2^-last."""
    upto = _BITS_OF_1_BY_2PI >> (_LENGTH - last)
    return math.ldexp(upto % (1 << (last - first + 1)), -last)


# The first set starts at the first bit. The second leaves out bits of weight 2⁻⁵⁷ and more: x ≥ 2⁸⁰ is a multiple of
# 2⁵⁷.
_LIMIT = 2.0**80
_PIECES = tuple((_piece(a, b), _piece(a + 55, b + 55)) for a, b in ((3, 31), (32, 60), (61, 89), (90, 142)))


def sin(x: Expr) -> Expr:
    quadrant, r = _reduce(x)
    return from_bits(xor(bits(_wave(quadrant, r)), sign_bit(x)))


def cos(x: Expr) -> Expr:
    quadrant, r = _reduce(x)
    return _wave(quadrant + 1, r)


def _reduce(x: Expr) -> tuple[Expr, Expr]:
    """|x| = quadrant·π/2 + r modulo 2π, |r| ≤ π/4 and a little; an i32 whose low bits count, and an f32."""
    size = absolute(x)
    is_huge = size >= _LIMIT
    wide = cast(DType.F64, size)
    *pieces, tail = [select(is_huge, f64(high), f64(low)) for low, high in _PIECES]
    parts: list[Expr] = []
    for piece in pieces:
        turns = wide * piece
        parts.append(turns - nearest(turns))
    first, second, third = parts
    quarters, t = round_in_bits(first + second + third, 4.0, 0)
    rest = fma(-0.25, quarters, first) + second + third
    r = Fma(wide, tail, rest) * math.tau
    return cast(DType.I32, t), cast(DType.F32, r)


def _wave(quadrant: Expr, r: Expr) -> Expr:
    """sin(quadrant·π/2 + r)."""
    z = r * r
    sin = Fma(r * z, polynomial(z, _SIN), r)
    cos = Fma(z * z, polynomial(z, _COS), fma(-0.5, z, 1.0))
    value = select(differs(mask(quadrant, 1), 0), cos, sin)
    return from_bits(xor(bits(value), shift_left(mask(quadrant, 2), 30)))
