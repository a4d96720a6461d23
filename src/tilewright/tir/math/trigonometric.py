"""sin and cos: of any finite f32, and of f64 up to about 1.6 million.

f32. The reduction takes x / 2π modulo 1 exactly enough for all arguments, in f64 and without a table. 1/2π is cut into
pieces of 29 bits, so that x (24 bits) times a piece is exact, and whole turns can be dropped from each product alone.
x up to 2¹²⁸ can come within 2⁻³⁰ of a multiple of π/2, so about 190 bits of 1/2π are needed in all; but for one x only
those matter whose product with x is neither a whole number of turns nor negligible. Two sets of pieces (three of 29
bits, and 53 bits that follow) are enough: one for |x| < 2⁸⁰, one above.

Each product minus its whole turns is exact; removing the quarter turns from the first is exact too, so that the sum of
the pieces, from large to small, has a relative error of about 2⁻⁵².

f64. The same would need 1100 bits. Instead multiples of π/2, in pieces of 33 bits, are subtracted: exact for up to 2²⁰
quadrants. Beyond, the absolute error grows with |x| · 2⁻⁵³, and r is clamped so that results stay bounded by 1.
"""

import math

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Fma, cast, select
from tilewright.tir.math.arith import (
    absolute,
    bits,
    clamp,
    differs,
    f64,
    floor,
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

_2_BY_PI = 0.6366197723675814
_PI_BY_2 = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)

# (sin r - r) / r³ and (cos r - 1 + r²/2) / r⁴ in r², on |r| ≤ 0.8: relative errors 0.07 and 0.003 ULP in f32,
# 0.03 and 0.001 ULP in f64.
_SIN = {
    DType.F32: (-0.166666538, 0.00833208859, -0.000195046654),
    DType.F64: (
        -0.1666666666666663,
        0.008333333333322104,
        -0.00019841269829577737,
        2.755731361712706e-06,
        -2.5050747072302828e-08,
        1.5896188835240525e-10,
    ),
}
_COS = {
    DType.F32: (0.0416666493, -0.0013887299, 2.44190687e-05),
    DType.F64: (
        0.041666666666666595,
        -0.0013888888888873036,
        2.4801587288838304e-05,
        -2.755731417532571e-07,
        2.0875700289077374e-09,
        -1.1358507235857534e-11,
    ),
}


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
    return _reduce_f64(x) if x.dtype is DType.F64 else _reduce_f32(x)


def _reduce_f32(x: Expr) -> tuple[Expr, Expr]:
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


def _reduce_f64(x: Expr) -> tuple[Expr, Expr]:
    size = absolute(x)
    quadrants = nearest(size * _2_BY_PI)
    r = size
    for piece in _PI_BY_2:
        r = fma(-piece, quadrants, r)
    within = fma(-4.0, floor(quadrants * 0.25), quadrants)  # 0 … 3; NaN for an infinite x, as r is
    _, t = round_in_bits(within, 1.0, 0)
    return t, clamp(r, -0.8, 0.8)


def _wave(quadrant: Expr, r: Expr) -> Expr:
    """sin(quadrant·π/2 + r)."""
    z = r * r
    sin = Fma(r * z, polynomial(z, _SIN[r.dtype]), r)
    cos = Fma(z * z, polynomial(z, _COS[r.dtype]), fma(-0.5, z, 1.0))
    value = select(differs(mask(quadrant, 1), 0), cos, sin)
    return from_bits(xor(bits(value), shift_left(mask(quadrant, 2), quadrant.dtype.bits - 2)))
