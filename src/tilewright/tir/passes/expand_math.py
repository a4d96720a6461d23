"""expand_math: functions become expressions of primitive operations.

    exp(x)   ──>   a polynomial times a power of two, built from bits

Nothing here is opaque: the interpreter and native code evaluate the same operations, and agree to the bit.
"""

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Binary, BinaryOp, Bitcast, Cast, Expr, Fma, Unary, UnaryOp, const, select
from tilewright.ir.rewrite import transform
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_exprs


def expand_math(func: Func) -> Func:
    memo: dict[Expr, Expr] = {}
    return func.with_body(map_exprs(func.body, lambda e: transform(e, _rule, memo)))


def _rule(n: Expr) -> Expr | None:
    if not isinstance(n, Unary) or n.dtype is not DType.F32:
        return None
    match n.op:
        case UnaryOp.EXP:
            return _exp(n.a)
        case UnaryOp.ERF:
            return _erf(n.a)
        case UnaryOp.SIGMOID:
            return _f32(1.0) / (_exp(-n.a) + 1.0)
        case UnaryOp.TANH:
            return _f32(1.0) - _f32(2.0) / (_exp(n.a * 2.0) + 1.0)
        case UnaryOp.RSQRT:
            return _f32(1.0) / Unary(UnaryOp.SQRT, n.a)
        case _:
            return None


def _f32(v: float) -> Expr:
    return const(v, DType.F32)


def _horner(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    out = _f32(coefficients[0])
    for c in coefficients[1:]:
        out = Fma(out, x, _f32(c))
    return out


def _clamp(x: Expr, low: float, high: float) -> Expr:
    return select(x < low, _f32(low), select(_f32(high) < x, _f32(high), x))


def _exp(x: Expr) -> Expr:
    """2^n · e^r with |r| <= ln 2 / 2; the power in two halves, so that it neither over- nor underflows too early."""
    y = _clamp(x, -104.0, 89.0)
    n = Unary(UnaryOp.ROUND, y * 1.44269504088896341)
    r = Fma(n, _f32(2.12194440e-4), Fma(n, _f32(-0.693359375), y))
    p = _horner(r, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5))
    p = Fma(p, r * r, r + 1.0)
    k = Cast(DType.I32, n)
    half = Binary(BinaryOp.SHR, k, const(1, DType.I32))
    return p * _power_of_two(half) * _power_of_two(k - half)


def _power_of_two(n: Expr) -> Expr:
    return Bitcast(DType.F32, Binary(BinaryOp.SHL, n + 127, const(23, DType.I32)))


def _erf(x: Expr) -> Expr:
    y = _clamp(x, -4.0, 4.0)
    z = y * y
    p = _horner(
        z,
        (
            -2.72614225801306e-10,
            2.77068142495902e-08,
            -2.10102402082508e-06,
            -5.69250639462346e-05,
            -7.34990630326855e-04,
            -2.95459980854025e-03,
            -1.60960333262415e-02,
        ),
    )
    q = _horner(
        z,
        (
            -1.45660718464996e-05,
            -2.13374055278905e-04,
            -1.68282697438203e-03,
            -7.37332916720468e-03,
            -1.42647390514189e-02,
        ),
    )
    return y * p / q
