"""exp, also of what is at most 0, sigmoid and tanh: one reduction x = n·ln 2 + r, |r| ≤ ln 2 / 2, and what each makes
of e^r.

Shared devices

- ln 2 is subtracted in two parts. The first is so short that n times it is exact even without FMA.
- 2^n spans more exponents than a float has (exp of f32 reaches from the denormals, 2^-150, to 2^128), so exp applies it
  as two factors 2^⌊n/2⌋ · 2^⌈n/2⌉. The first product is exact; the second rounds once, to a denormal or to infinity
  where due. Where n has one sign, one factor 2^(n ± s) does, with 2^∓s in the coefficients, where it is free: s is
  one more than the bits of the mantissa.
"""

from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Fma, const
from tilewright.tir.math.arith import (
    MANTISSA,
    absolute,
    at_least,
    at_most,
    bits,
    clamp,
    fma,
    from_bits,
    mask,
    polynomial,
    round_in_bits,
    shift_left,
    sign_bit,
    with_sign,
)

LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453
LN2_F32 = (0.693115234375, 3.194618329871446e-05)  # 12 bits, and what is missing
LN2_F64 = (0.693147180559663, 2.8235290563031577e-13)  # 41 bits


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What differs between the types."""

    bias: int  # of the exponent
    ln2: tuple[float, float]  # high and low part
    exp: tuple[float, ...]  # (e^r - 1) / r
    exp_minus: tuple[float, ...]  # (e^-r - 1) / r
    short_exp: tuple[float, ...]  # e^r
    smallest: float  # e^x of anything less is 0 …
    no_exponent: float  # … and from here on so much so that 2^n, as `exp_nonpositive` has it, is 0
    largest: float  # e^x of anything more is infinite
    tanh: tuple[float, ...]  # (tanh r - r) / r³ in r²
    tanh_step: float
    tanh_is_one: float


_EXP_F64 = (
    1.0,
    0.5000000000000011,
    0.1666666666666641,
    0.04166666666652973,
    0.00833333333349498,
    0.001388888894375879,
    0.0001984126950576047,
    2.480149295080446e-05,
    2.755758681881435e-06,
    2.7630305859655486e-07,
    2.50000138317822e-08,
)

# Errors of the polynomials before rounding: exp 0.03 ULP on |r| ≤ 0.3467; the short one of f32, whose degree is one
# less, 1.05 ULP; tanh 0.02 ULP (f32, on |r| ≤ 0.55) and 0.06 ULP (f64, on |r| ≤ 0.5205). The f32 ones were tuned each
# within its function, the f64 ones are not tuned.
_NUMBERS = {
    DType.F32: _Numbers(
        bias=127,
        ln2=LN2_F32,
        exp=(1.0, 0.49999994, 0.166665167, 0.0416683294, 0.00836882927, 0.00138125452),
        exp_minus=(-1.0, 0.500000119, -0.166665211, 0.041664727, -0.00836799759, 0.00138158037),
        short_exp=(1.0, 0.999999464, 0.499991268, 0.166681617, 0.0419003032, 0.00826439727),
        smallest=-104.0,
        no_exponent=-104.7,
        largest=89.0,
        tanh=(-0.333333701, 0.133327022, -0.0538510606, 0.0210707393, -0.0062743444),
        tanh_step=1.3645,
        tanh_is_one=9.1,
    ),
    DType.F64: _Numbers(
        bias=1023,
        ln2=LN2_F64,
        exp=_EXP_F64,
        exp_minus=tuple(c if k % 2 else -c for k, c in enumerate(_EXP_F64)),
        short_exp=(1.0, *_EXP_F64),
        smallest=-746.0,
        no_exponent=-746.0,
        largest=710.0,
        tanh=(
            -0.3333333333333297,
            0.1333333333326821,
            -0.05396825392756751,
            0.02186948727489781,
            -0.008863213001297113,
            0.0035918781082639748,
            -0.0014540501086334208,
            0.0005817720822412258,
            -0.00021489675259702868,
            5.4415266179263384e-05,
        ),
        tanh_step=LOG2_E,
        tanh_is_one=19.5,
    ),
}


def exp(x: Expr) -> Expr:
    """e^x. Beyond the clamp the result rounds to 0 or overflows to infinity by itself."""
    k = _NUMBERS[x.dtype]
    x = clamp(x, k.smallest, k.largest)
    n, t = round_in_bits(x, LOG2_E, 2 * k.bias)
    high, low = k.ln2
    r = fma(-low, n, fma(-high, n, x))
    e = fma(polynomial(r, k.exp), r, 1.0)
    a, b = two_to_the(t)
    return e * a * b


def exp_nonpositive(x: Expr) -> Expr:
    """e^x for x ≤ 0. Of what is below the clamp, and so of -∞, the bits of 2^n are 0, and so is the product: exactly,
    and without the hundred cycles that some processors take for a result that is denormal, or rounds to 0 from there.
    """
    k = _NUMBERS[x.dtype]
    up = MANTISSA[x.dtype] + 1
    x = at_least(x, k.no_exponent)
    n, t = round_in_bits(x, LOG2_E, k.bias + up)
    high, low = k.ln2
    r = fma(-low, n, fma(-high, n, x))
    return polynomial(r, [c * 2.0**-up for c in k.short_exp]) * from_bits(shift_left(t, MANTISSA[x.dtype]))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x) as 2^-s / (2^-s + e^-r · 2^(n - s)).

    The denominator does not overflow, and the division underflows gradually: no case for x < 0 is needed. Where x is so
    large that n - s might not be an exponent, 1 has long been reached. The sum takes e^-r as 1 + r·p before it is
    rounded, which saves one rounding.
    """
    k = _NUMBERS[x.dtype]
    down = MANTISSA[x.dtype] + 1
    x = clamp(x, k.smallest, -0.5 * k.smallest)
    n, t = round_in_bits(x, -LOG2_E, k.bias - down)
    high, low = k.ln2
    r = fma(low, n, fma(high, n, x))
    one = const(2.0**-down, x.dtype)
    power = from_bits(shift_left(t, MANTISSA[x.dtype]))
    return one / (Fma(power * r, polynomial(r, k.exp_minus), one) + power)


def tanh(x: Expr) -> Expr:
    """By the addition theorem: with y = |x| = m·ln 2 + r, s = 4^m and t = tanh r,

        tanh y = N / (N + 2·(1 - t)),   N = t·(s + 1) + (s - 1).

    m = 0 gives t itself, and for large y the errors of N cancel. (All terms are doubled below, because 2·4^m has its
    exponent ready in the bits.)

    m is the floor of y / ln 2 rounded to halves, so that r is in -1/4 … 3/4 of ln 2: N is a difference where r < 0, and
    loses accuracy with its size. For f32, furthermore, the step is less than log2 e, so that m = 1 begins at
    y = 0.5497, just above tanh y = 1/2, where the errors of the quotient weigh half as much; r then grows to 1 for
    larger m, where it matters no more.
    """
    k = _NUMBERS[x.dtype]
    y = at_most(absolute(x), k.tanh_is_one)
    # The last bit of such an anchor is worth 1/2; the mask clears it.
    mantissa = MANTISSA[x.dtype]
    anchor = 1.5 * 2 ** (mantissa - 1) + (k.bias + 1) // 2
    t = mask(bits(fma(k.tanh_step, y, anchor)), ~1)
    r = fma(-LN2, from_bits(t) - anchor, y)
    z = r * r
    tanh_r = Fma(r * z, polynomial(z, k.tanh), r)
    s = from_bits(shift_left(t, mantissa))
    numerator = Fma(tanh_r, s + 2.0, s - 2.0)
    return with_sign(numerator / (numerator + fma(-4.0, tanh_r, 4.0)), sign_bit(x))


def two_to_the(t: Expr) -> tuple[Expr, Expr]:
    """2^⌊n/2⌋ and 2^⌈n/2⌉, given n + 2·bias in the low bits of t."""
    mantissa, exponent = (23, 0xFF) if t.dtype is DType.I32 else (52, 0x7FF)
    a = mask(shift_left(t, mantissa - 1), exponent << mantissa)
    return from_bits(a), from_bits(shift_left(t, mantissa) - a)
