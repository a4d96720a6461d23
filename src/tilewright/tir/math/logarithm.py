"""log.

x = 2^e · m with m around 1, by integer arithmetic on the bits: subtracting the bits of the lowest m leaves e in the
exponent field. Then log x = e·ln 2 + log(1 + f), f = m - 1.
"""

import math

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Expr, Fma, binary, cast, const, select
from tilewright.tir.math.arith import (
    bits,
    fma,
    from_bits,
    mask,
    polynomial,
    shift_left,
    shift_right,
)
from tilewright.tir.math.exponential import LN2, LN2_F64

_TWO_THIRDS = 0x3F2AAAAB  # the bits of 2/3 in f32
_ONE = 1023 << 52  # the bits of 1 in f64 …
_SQRT_HALF = 0x3FE6A09E667F3BCD  # … and of √½

# (log(1 + f) - f) / f² on |f| ≤ 1/3, relative error of log: 0.4 · 2^-24.
_LOG_F32 = (
    -0.499999374,
    0.333331764,
    -0.25007847,
    0.200113386,
    -0.164154738,
    0.139958963,
    -0.153908029,
    0.14027077,
)
# (log((1 + s) / (1 - s)) - 2·s) / s³ in s², |s| ≤ 0.1716: 0.01 · 2^-53 of 2·s.
_LOG_F64 = (
    0.6666666666666734,
    0.39999999999414687,
    0.2857142874238858,
    0.22222198572962787,
    0.18183564341284833,
    0.15314050107408453,
    0.14795954519204443,
)


def log(x: Expr) -> Expr:
    """Natural logarithm."""
    out = _log_f64(x) if x.dtype is DType.F64 else _log_f32(x)
    out = select(x > 0.0, out, const(-math.inf, x.dtype))
    out = select(x < 0.0, const(math.nan, x.dtype), out)
    return select(x < math.inf, out, x)  # infinity and NaN are their own logarithms


def _log_f32(x: Expr) -> Expr:
    """Of a positive number; m in 2/3 … 4/3."""
    x, lowered = _scaled(x, 2.0**-126, 23)
    i = bits(x)
    e = shift_right(i - _TWO_THIRDS, 23)
    f = from_bits(i - shift_left(e, 23)) - 1.0
    return fma(LN2, cast(DType.F32, e) + lowered, Fma(f * f, polynomial(f, _LOG_F32), f))


def _log_f64(x: Expr) -> Expr:
    """Of a positive number; m in √½ … √2 and s = f / (2 + f), so that 1 + f = (1 + s) / (1 - s).

    2·s + s³·P is written as f - (h - s·(h + s²·P)), h = f²/2, whose largest term is exact.
    """
    x, lowered = _scaled(x, 2.0**-1022, 54)
    e, m = exponent_and_mantissa(x)
    e = e + lowered
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    h = f * f * 0.5
    ln2_high, ln2_low = LN2_F64
    tail = fma(ln2_low, e, s * Fma(z, polynomial(z, _LOG_F64), h))
    return fma(ln2_high, e, f - (h - tail))


def _scaled(x: Expr, smallest_normal: float, by: int) -> tuple[Expr, Expr]:
    """Denormals times 2^by; and what to add to the exponent for it."""
    is_denormal = x < smallest_normal
    lowered = select(is_denormal, const(float(-by), x.dtype), const(0.0, x.dtype))
    return select(is_denormal, x * 2.0**by, x), lowered


def exponent_and_mantissa(x: Expr) -> tuple[Expr, Expr]:
    """x = 2^e · m, m in √½ … √2, both as f64. x is a positive normal f64."""
    i = bits(x)
    shifted = i + (_ONE - _SQRT_HALF)
    m = from_bits(i - (mask(shifted, 0xFFF << 52) - _ONE))
    # A small integer becomes a float when it is put into the mantissa of 2⁵².
    e = from_bits(binary(BinaryOp.OR, shift_right(shifted, 52), const(1075 << 52, DType.U64))) - (
        2.0**52 + 1023
    )
    return e, m


def scaled_f64(x: Expr) -> tuple[Expr, Expr]:
    """A positive f64 made normal; and what to add to its exponent for it."""
    return _scaled(x, 2.0**-1022, 54)
