"""erf and GELU.

With y = |x|: erf y = 1 - 2^v, v = log2(erfc y). v/y is smooth and negative, so one polynomial serves the whole range;
its errors fade with erfc. 1 - 2^v is computed as (1 - 2^n) - 2^n·(2^r - 1), v = n + r, which keeps full relative
accuracy down to 0. There is no division.

GELU is x·Φ(x), with Φ(x) = erfc(-x / √2) / 2. With y = |x| and w = log2(Φ(-y)) it is max(x, 0) - y·2^w: nothing cancels
where x < 0, unlike in ½·x·(1 + erf(x / √2)), of whose digits few are left at x = -3.
"""

from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Fma
from tilewright.tir.math.arith import (
    MANTISSA,
    absolute,
    at_least,
    at_most,
    from_bits,
    polynomial,
    polynomial_in_two,
    round_in_bits,
    shift_left,
    sign_bit,
    with_sign,
)


@dataclass(frozen=True, slots=True)
class _Numbers:
    bias: int
    is_one: float  # from here on erf rounds to 1
    log2_erfc: tuple[float, ...]  # log2(erfc y) / y
    one_minus_exp2: tuple[float, ...]  # (1 - 2^r) / r on |r| ≤ 1/2
    log2_tail: tuple[float, ...]  # log2(Φ(-y)), which beyond its range falls faster than that …
    tail_is_zero: float  # … and from here on is below the exponents
    exp2: tuple[float, ...]  # 2^r on |r| ≤ 1/2


# The fits of log2(erfc y) / y are weighted to the relative error of erf, which they bring to 0.6 ULP (f32, up to
# y = 3.92) and 0.05 ULP (f64, up to 5.93); those of (1 - 2^r) / r have 0.2 ULP. For f32 both were tuned together.
_LOG2_ERFC_F64 = (
    -1.627907028611115,
    -0.9184481885265736,
    -0.14826952512273942,
    0.027596515634123478,
    0.000301804148817959,
    -0.002447108540973051,
    0.0008513712084505667,
    -3.7334933740600084e-05,
    -9.30420875503072e-05,
    4.288273135359059e-05,
    -4.9156379646346725e-06,
    -4.0902548728316324e-06,
    2.5125371438564386e-06,
    -4.852863163126322e-07,
    -1.9790086281974427e-07,
    2.0451270423562716e-07,
    -9.483034483038915e-08,
    3.0241621358625255e-08,
    -7.209858675216902e-09,
    1.3102235864851223e-09,
    -1.8009714768489967e-10,
    1.819263625133958e-11,
    -1.2760529626294726e-12,
    5.554684236548653e-14,
    -1.1301338967487687e-15,
)
_ONE_MINUS_EXP2_F64 = (
    -0.6931471805599453,
    -0.24022650695910097,
    -0.055504108664821236,
    -0.009618129107606963,
    -0.0013333558146532247,
    -0.00015403530441654317,
    -1.525273370072454e-05,
    -1.3215442618091919e-06,
    -1.0178121434533701e-07,
    -7.072582969018089e-09,
    -4.4455296476214474e-10,
)

# The f32 fit of log2(Φ(-y)) is weighted to the relative error of GELU of negative x for y ≤ 3, where it leaves 2 to
# 5 ULP, and from there to 6 to the absolute one; with that of 2^r (1.05 ULP) it was tuned to GELU as it is computed.
_NUMBERS = {
    DType.F32: _Numbers(
        bias=127,
        is_one=4.0,
        log2_erfc=(
            -1.62790704,
            -0.918444693,
            -0.148327321,
            0.0278746486,
            -0.000296783692,
            -0.00180594798,
            0.000549516233,
            -5.87289942e-05,
        ),
        one_minus_exp2=(
            -0.693147182,
            -0.240226358,
            -0.0555033945,
            -0.00961949769,
            -0.00133929052,
            -0.000154024019,
        ),
        log2_tail=(
            -1.0,
            -1.15111601,
            -0.459109634,
            -0.0527898036,
            0.00746743893,
            -0.000427746127,
            -7.3355106e-05,
            1.70945314e-05,
            -1.08289578e-06,
        ),
        tail_is_zero=10.98,
        exp2=(1.0, 0.693146884, 0.240222186, 0.0555088669, 0.00967047829, 0.00132234464),
    ),
    DType.F64: _Numbers(
        bias=1023,
        is_one=6.0,
        log2_erfc=_LOG2_ERFC_F64,
        one_minus_exp2=_ONE_MINUS_EXP2_F64,
        log2_tail=(-1.0, *(c * 0.5 ** (0.5 * (k + 1)) for k, c in enumerate(_LOG2_ERFC_F64))),
        tail_is_zero=10.5078,
        exp2=(1.0, *(-c for c in _ONE_MINUS_EXP2_F64)),
    ),
}


def erf(x: Expr) -> Expr:
    k = _NUMBERS[x.dtype]
    y = at_most(absolute(x), k.is_one)
    v = polynomial(y, k.log2_erfc) * y
    r, power = _exponents(v, k)
    return with_sign(Fma(power, polynomial(r, k.one_minus_exp2) * r, 1.0 - power), sign_bit(x))


def gelu(x: Expr) -> Expr:
    """From `tail_is_zero` on 2^n is 0, so that the result is x or 0."""
    k = _NUMBERS[x.dtype]
    y = at_most(absolute(x), k.tail_is_zero)
    r, power = _exponents(polynomial_in_two(y, k.log2_tail), k)
    return Fma(-(y * power), polynomial(r, k.exp2), at_least(x, 0.0))


def _exponents(v: Expr, k: _Numbers) -> tuple[Expr, Expr]:
    """v = n + r with an integer n: r, which is exact, and 2^n."""
    n, t = round_in_bits(v, 1.0, k.bias)
    return v - n, from_bits(shift_left(t, MANTISSA[v.dtype]))
