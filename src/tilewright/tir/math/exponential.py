"""exp, sigmoid and tanh: one reduction x = n·ln 2 + r, |r| ≤ ln 2 / 2, and what each makes of e^r.

Shared devices

- ln 2 is subtracted in two parts. The first has 15 bits, so n times it is exact even without FMA.
- 2^n spans more exponents than a float has (exp reaches the denormals, -150 … 128), so it is applied as two factors
  2^⌊n/2⌋ · 2^⌈n/2⌉. The first product is exact; the second rounds once, to a denormal or to infinity where due.
"""

from tilewright.ir.expr import Expr, Fma
from tilewright.tir.math.arith import (
    absolute,
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
LN2_HIGH = 0.693115234375
LN2_LOW = 3.194618329871446e-05
LN2 = 0.6931471805599453

# (e^r - 1) / r, relative error of e^r on |r| ≤ 0.3467: 0.03 ULP before rounding.
_EXP = (1.0, 0.49999994, 0.166665167, 0.0416683294, 0.00836882927, 0.00138125452)
# The same with -r for r, tuned within sigmoid.
_EXP_NEG = (-1.0, 0.500000119, -0.166665211, 0.041664727, -0.00836799759, 0.00138158037)
# (tanh r - r) / r³ in r², relative error of tanh on |r| ≤ 0.55: 0.02 ULP before rounding.
_TANH = (-0.333333701, 0.133327022, -0.0538510606, 0.0210707393, -0.0062743444)

_EXPONENT = 0x7F800000
_TWICE_BIAS = 254


def exp(x: Expr) -> Expr:
    """e^x. Beyond the clamp the result rounds to 0 or overflows to infinity by itself."""
    x = clamp(x, -104.0, 89.0)
    n, t = round_in_bits(x, LOG2_E, _TWICE_BIAS)
    r = fma(-LN2_LOW, n, fma(-LN2_HIGH, n, x))
    e = fma(polynomial(r, _EXP), r, 1.0)
    low, high = _halved_power(t)
    return e * from_bits(low) * from_bits(high)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x), with e^-x = e^-r · a · b as in exp, divided through by a: (1/a) / (1/a + e^-r · b).

    Neither part overflows, and the division underflows gradually: no case for x < 0 is needed. The sum takes e^-r
    as 1 + r·p before it is rounded, which saves one rounding.
    """
    x = clamp(x, -104.0, 104.0)
    n, t = round_in_bits(x, -LOG2_E, _TWICE_BIAS)
    r = fma(LN2_LOW, n, fma(LN2_HIGH, n, x))
    low, high = _halved_power(t)
    a = from_bits(_TWICE_BIAS * 2**23 - low)
    b = from_bits(high)
    return a / (fma(b * r, polynomial(r, _EXP_NEG), a) + b)


def tanh(x: Expr) -> Expr:
    """By the addition theorem: with y = |x| = m·ln 2 + r, s = 4^m and t = tanh r,

        tanh y = N / (N + 2·(1 - t)),   N = t·(s + 1) + (s - 1).

    m = 0 gives t itself, and for large y the errors of N cancel. (All terms are doubled below, because
    2·4^m has its exponent ready in the bits.)

    The factor before the rounding is less than log2 e, and m is the floor of a number rounded to halves; so m = 1
    begins at y = 0.5497, just above tanh y = 1/2, where the errors of the quotient weigh half as much. r then grows to
    0.66 for larger m, where it matters no more.
    """
    y = at_most(absolute(x), 9.1)
    # The anchor 1.5·2²² has a last bit worth 1/2, which the mask clears.
    anchor = 1.5 * 2**22 + 64
    t = mask(bits(fma(1.3645, y, anchor)), ~1)
    r = fma(-LN2, from_bits(t) - anchor, y)
    z = r * r
    tanh_r = Fma(r * z, polynomial(z, _TANH), r)
    s = from_bits(shift_left(t, 23))
    numerator = Fma(tanh_r, s + 2.0, s - 2.0)
    return with_sign(numerator / (numerator + fma(-4.0, tanh_r, 4.0)), sign_bit(x))


def _halved_power(t: Expr) -> tuple[Expr, Expr]:
    """The bits of 2^⌊n/2⌋ and 2^⌈n/2⌉, given n + 254 in the low bits of t."""
    low = mask(shift_left(t, 22), _EXPONENT)
    return low, shift_left(t, 23) - low
