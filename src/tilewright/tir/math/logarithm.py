"""log and pow.

Both split x = 2^e · m with m around 1, by integer arithmetic on the bits: subtracting the bits of the lowest m
leaves e in the exponent field. pow needs log2 x with about 32 bits, because y multiplies its error; it computes in f64,
where also the last conversion to f32 rounds, underflows and overflows once and rightly.
"""

import math

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Expr, Fma, binary, cast, const, select
from tilewright.tir.math.arith import (
    absolute,
    bits,
    both,
    clamp,
    differs,
    either,
    equals,
    f32,
    f64,
    floor,
    fma,
    from_bits,
    mask,
    polynomial,
    round_in_bits,
    shift_left,
    shift_right,
    sign_bit,
    xor,
)
from tilewright.tir.math.exponential import LN2

# (log(1 + f) - f) / f² on |f| ≤ 1/3, relative error of log: 0.4 · 2^-24.
_LOG = (
    -0.499999374,
    0.333331764,
    -0.25007847,
    0.200113386,
    -0.164154738,
    0.139958963,
    -0.153908029,
    0.14027077,
)
# log2((1 + s) / (1 - s)) / s in s², on m in √½ … √2: relative error 2^-37.
_LOG2 = (2.8853900817900855, 0.9617966733477202, 0.577083583559132, 0.41167281354711527, 0.3407282132103002)
# (2^r - 1) / r on |r| ≤ 1/2: relative error 2^-28.
_EXP2 = (
    0.693147202880752,
    0.24022647909814795,
    0.055503324102231494,
    0.009618437673516281,
    0.0013398900022888298,
    0.00015353321932560078,
)

_TWO_THIRDS = 0x3F2AAAAB
_SMALLEST_NORMAL = 2.0**-126
_ONE_F64 = 1023 << 52
_SQRT_HALF_F64 = 0x3FE6A09E667F3BCD
_INF = math.inf


def log(x: Expr) -> Expr:
    """Natural logarithm: e·ln 2 + log(1 + f), f = m - 1, m in 2/3 … 4/3."""
    is_small = x < _SMALLEST_NORMAL
    i = bits(select(is_small, x * 2.0**23, x))
    e = shift_right(i - _TWO_THIRDS, 23)
    f = from_bits(i - shift_left(e, 23)) - 1.0
    exponent = cast(DType.F32, e) + select(is_small, f32(-23.0), f32(0.0))
    out = fma(LN2, exponent, Fma(f * f, polynomial(f, _LOG), f))
    out = select(x > 0.0, out, f32(-_INF))
    out = select(x < 0.0, f32(math.nan), out)
    return select(x < _INF, out, x)  # infinity and NaN are their own logarithms


def power(x: Expr, y: Expr) -> Expr:
    """x^y with the special cases of C99, which the lines below name."""
    size = absolute(x)
    log2 = _log2_f64(cast(DType.F64, size))
    log2 = select(equals(size, 0.0), f64(-_INF), log2)
    log2 = select(size < _INF, log2, cast(DType.F64, size))  # log of infinity and NaN
    # An infinite y acts as a huge one: 1^∞ = 1, and any other base is far enough from 1 to overflow or vanish.
    product = cast(DType.F64, clamp(y, -1e30, 1e30)) * log2
    out = cast(DType.F32, _exp2_f64(clamp(product, -160.0, 140.0)))

    half = y * 0.5
    is_fraction = differs(floor(y), y)
    is_odd = both(differs(floor(half), half), equals(floor(y), y))
    out = from_bits(
        xor(bits(out), select(is_odd, sign_bit(x), const(0, DType.I32)))
    )  # (-2)^3, (-0)^-1, (-∞)^3
    is_complex = both(both(x < 0.0, x > -_INF), is_fraction)
    out = select(is_complex, f32(math.nan), out)
    return select(either(equals(y, 0.0), equals(x, 1.0)), f32(1.0), out)  # even if the other one is NaN


def _log2_f64(x: Expr) -> Expr:
    """log2 of a positive normal number to 37 bits: e + log2 m, m in √½ … √2, by the series of atanh."""
    i = bits(x)
    shifted = i + (_ONE_F64 - _SQRT_HALF_F64)
    m = from_bits(i - (mask(shifted, 0xFFF << 52) - _ONE_F64))
    # An integer below 2⁵² becomes a float when it is put into the mantissa of 2⁵².
    e = from_bits(binary(BinaryOp.OR, shift_right(shifted, 52), const(1075 << 52, DType.U64))) - (
        2.0**52 + 1023
    )
    s = (m - 1.0) / (m + 1.0)
    return Fma(s, polynomial(s * s, _LOG2), e)


def _exp2_f64(x: Expr) -> Expr:
    """2^x to 28 bits, |x| < 1000."""
    n, t = round_in_bits(x, 1.0, 1023)
    r = x - n
    return fma(polynomial(r, _EXP2), r, 1.0) * from_bits(shift_left(t, 52))
