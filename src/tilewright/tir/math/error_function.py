"""erf.

With y = |x|: erf y = 1 - 2^v, v = log2(erfc y). v/y is smooth and negative, so a polynomial serves the whole range;
its errors fade with erfc. 1 - 2^v is computed as (1 - 2^n) - 2^n·(2^r - 1), v = n + r, which keeps full relative
accuracy down to 0. There is no division.
"""

from tilewright.ir.expr import Expr, Fma
from tilewright.tir.math.arith import (
    absolute,
    at_most,
    from_bits,
    polynomial,
    round_in_bits,
    shift_left,
    sign_bit,
    with_sign,
)

# log2(erfc y) / y on 0 … 3.92, weighted to the relative error of erf: 0.6 · 2^-24.
_LOG2_ERFC = (
    -1.62790704,
    -0.918444693,
    -0.148327321,
    0.0278746486,
    -0.000296783692,
    -0.00180594798,
    0.000549516233,
    -5.87289942e-05,
)
# (1 - 2^r) / r on |r| ≤ 1/2, relative error 0.2 · 2^-24. Both were tuned together, within erf.
_ONE_MINUS_EXP2 = (-0.693147182, -0.240226358, -0.0555033945, -0.00961949769, -0.00133929052, -0.000154024019)


def erf(x: Expr) -> Expr:
    y = at_most(absolute(x), 4.0)  # erf 4 rounds to 1
    v = polynomial(y, _LOG2_ERFC) * y
    n, t = round_in_bits(v, 1.0, 127)
    r = v - n  # exact
    power = from_bits(shift_left(t, 23))
    return with_sign(Fma(power, polynomial(r, _ONE_MINUS_EXP2) * r, 1.0 - power), sign_bit(x))
