"""pow: 2^(y·log2 |x|), with the special cases of C99.

The product multiplies the error of the logarithm by up to 150 (f32) or 1075 (f64), so that log2 needs as many more
bits. f32 computes in f64, where also the last conversion rounds, underflows and overflows once and rightly. f64 carries
log2 as a sum of two numbers. Products of halves of 26 bits are exact, so no FMA is needed for it.
"""

import math

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Fma, cast, const, select
from tilewright.tir.math.arith import (
    absolute,
    bits,
    both,
    clamp,
    differs,
    either,
    equals,
    f64,
    floor,
    fma,
    from_bits,
    mask,
    polynomial,
    round_in_bits,
    shift_left,
    sign_bit,
    xor,
)
from tilewright.tir.math.exponential import two_to_the
from tilewright.tir.math.logarithm import exponent_and_mantissa, scaled_f64

# log2((1 + s) / (1 - s)) / s in s², |s| ≤ 0.1716: relative error 2^-37.
_LOG2_F32 = (
    2.8853900817900855,
    0.9617966733477202,
    0.577083583559132,
    0.41167281354711527,
    0.3407282132103002,
)
# The same without its first term 2 / ln 2, which is used in two parts, and divided by s²: 2^-60 of the sum.
_LOG2_F64 = (
    0.9617966939259756,
    0.5770780163556755,
    0.41219858307735613,
    0.32059890409732444,
    0.26230757614144296,
    0.22198878335416977,
    0.1911590695246593,
    0.19117376721627719,
)
_2_BY_LN2 = 2.885390081777927  # and in two parts:
_2_BY_LN2_HIGH = 2.885390043258667
_2_BY_LN2_LOW = 3.851925982253235e-08
# (2^r - 1) / r on |r| ≤ 1/2: relative errors 2^-28 and 2^-58.
_EXP2_F32 = (
    0.693147202880752,
    0.24022647909814795,
    0.055503324102231494,
    0.009618437673516281,
    0.0013398900022888298,
    0.00015353321932560078,
)
_EXP2_F64 = (
    0.6931471805599453,
    0.2402265069591013,
    0.05550410866482008,
    0.009618129107593954,
    0.0013333558146776294,
    0.00015403530457343213,
    1.5252733491986018e-05,
    1.321543515781288e-06,
    1.0178199854699384e-07,
    7.0738060502494e-09,
    4.434756846990969e-10,
)

_UPPER_HALF = ~((1 << 27) - 1)


def power(x: Expr, y: Expr) -> Expr:
    """x^y."""
    dtype = x.dtype
    out = _power_f64(absolute(x), y) if dtype is DType.F64 else _power_f32(absolute(x), y)
    half = y * 0.5
    is_odd = both(differs(floor(half), half), equals(floor(y), y))
    out = from_bits(
        xor(bits(out), select(is_odd, sign_bit(x), const(0, bits(x).dtype)))
    )  # (-2)^3, (-0)^-1, (-∞)^3
    is_complex = both(both(x < 0.0, x > -math.inf), differs(floor(y), y))
    out = select(is_complex, const(math.nan, dtype), out)
    is_one = either(equals(y, 0.0), equals(x, 1.0))  # even if the other one is NaN
    return select(is_one, const(1.0, dtype), out)


def _power_f32(x: Expr, y: Expr) -> Expr:
    """x ≥ 0 or NaN."""
    wide = cast(DType.F64, x)
    e, m = exponent_and_mantissa(wide)
    s = (m - 1.0) / (m + 1.0)
    log2 = Fma(s, polynomial(s * s, _LOG2_F32), e)
    log2 = select(_is_regular(x), log2, _log_of_special(wide))
    # An infinite y acts as a huge one: 1^∞ = 1, and any other base is far enough from 1 to overflow or vanish.
    w = clamp(cast(DType.F64, clamp(y, -1e30, 1e30)) * log2, -160.0, 140.0)
    n, t = round_in_bits(w, 1.0, 1023)
    r = w - n
    return cast(DType.F32, fma(polynomial(r, _EXP2_F32), r, 1.0) * from_bits(shift_left(t, 52)))


def _power_f64(x: Expr, y: Expr) -> Expr:
    """x ≥ 0 or NaN."""
    normal, lowered = scaled_f64(x)
    e, m = exponent_and_mantissa(normal)
    # s = (m - 1) / (m + 1) as s1 + s2; m + 1 as d1 + d2.
    d = m + 1.0
    d1 = _upper_half(d)
    d2 = m - (d1 - 1.0)
    s = (m - 1.0) / d
    s1 = _upper_half(s)
    s2 = (((m - 1.0) - s1 * d1) - s1 * d2) / d
    # log2 = e + s·2/ln 2 + s³·P(s²), as l1 + l2: the largest terms are exact.
    z = s * s
    first = e + lowered
    second = s1 * _2_BY_LN2_HIGH
    upper = first + second
    lost = select(equals(first, 0.0), f64(0.0), second - (upper - first))  # |first| ≥ 1 > |second|, or 0
    small = s1 * _2_BY_LN2_LOW + s2 * _2_BY_LN2 + s * z * polynomial(z, _LOG2_F64)
    l1 = _upper_half(upper + (lost + small))
    l2 = (upper - l1) + (lost + small)
    # w = y·log2 as w1 + w2.
    y = clamp(y, -(2.0**80), 2.0**80)
    y1 = _upper_half(y)
    w1 = select(_is_regular(x), y1 * l1, y * _log_of_special(x))
    w2 = select(_is_regular(x), (y - y1) * l1 + y * l2, f64(0.0))
    n, t = round_in_bits(clamp(w1 + w2, -1080.0, 1030.0), 1.0, 2 * 1023)
    r = clamp((w1 - n) + w2, -0.6, 0.6)
    a, b = two_to_the(t)
    return fma(polynomial(r, _EXP2_F64), r, 1.0) * a * b


def _is_regular(x: Expr) -> Expr:
    """Neither 0 nor infinite nor NaN, of x ≥ 0."""
    return both(x > 0.0, x < math.inf)


def _log_of_special(x: Expr) -> Expr:
    return select(equals(x, 0.0), const(-math.inf, x.dtype), x)


def _upper_half(x: Expr) -> Expr:
    """The first 26 bits of an f64."""
    return from_bits(mask(bits(x), _UPPER_HALF))
