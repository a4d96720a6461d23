"""expand_math: elementary functions become expressions of primitive operations.

    B[i] = exp(A[i])   ──>   B[i] = fma(…, 1.0) * bitcast(f32, …) * bitcast(f32, …)

so that interpreter and native code compute the same bits, on scalars and on vectors, without a mathematical library.
The functions are in `tir.math`; f16 and bf16 compute in f32 and round once. Errors: `docs/results/vector-math.md`.

What is replaced: exp, log, tanh, sigmoid, erf, gelu, sin, cos, rsqrt, and pow of floats. Square root and rounding to
integers are instructions and stay.
"""

import math
from collections.abc import Callable

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Binary, BinaryOp, Const, Expr, Unary, UnaryOp, cast, const, select
from tilewright.ir.traits import FUNCTIONS
from tilewright.tir.func import Func
from tilewright.tir.math.arith import equals, sqrt
from tilewright.tir.math.error_function import erf, gelu
from tilewright.tir.math.exponential import exp, exp_nonpositive, sigmoid, tanh
from tilewright.tir.math.logarithm import log
from tilewright.tir.math.power import power
from tilewright.tir.math.root import rsqrt
from tilewright.tir.math.trigonometric import cos, sin
from tilewright.tir.rewrite import rewrite_where

_FUNCTIONS: dict[UnaryOp, Callable[[Expr], Expr]] = {
    UnaryOp.EXP: exp,
    UnaryOp.EXP_NONPOSITIVE: exp_nonpositive,
    UnaryOp.LOG: log,
    UnaryOp.TANH: tanh,
    UnaryOp.SIGMOID: sigmoid,
    UnaryOp.ERF: erf,
    UnaryOp.GELU: gelu,
    UnaryOp.SIN: sin,
    UnaryOp.COS: cos,
    UnaryOp.RSQRT: rsqrt,
}


def expand_math(func: Func) -> Func:
    return func.with_body(rewrite_where(func.body, FUNCTIONS, expand_expr))


def expand_expr(e: Expr) -> Expr | None:
    """One node as primitive operations; None if it is one already."""
    match e:
        case Unary() if e.op in _FUNCTIONS:
            return _widened(_FUNCTIONS[e.op], e.a)
        case Binary(op=BinaryOp.POW) if e.dtype.is_float:
            return _widened(_power, e.a, e.b)
        case _:
            return None


def _widened(fn: Callable[..., Expr], *args: Expr) -> Expr:
    """`fn` in f32 if the arguments are narrower."""
    dtype = args[0].dtype
    wide = dtype if dtype is DType.F64 else DType.F32
    return cast(dtype, fn(*[_cast(wide, a) for a in args]))


def _cast(dtype: DType, a: Expr) -> Expr:
    return const(a.value, dtype) if isinstance(a, Const) else cast(dtype, a)


def _power(x: Expr, y: Expr) -> Expr:
    """x^y; the exponents that models write down are products, quotients and roots."""
    match y.value if isinstance(y, Const) else None:
        case 1.0:
            return x
        case 2.0:
            return x * x
        case 3.0:
            return x * x * x
        case 4.0:
            square = x * x
            return square * square
        case -1.0:
            return 1.0 / x
        case 0.5:
            # Unlike the square root, this power of -0 is 0 and that of -∞ is ∞.
            return select(equals(x, -math.inf), const(math.inf, x.dtype), sqrt(x + 0.0))
        case _:
            return power(x, y)
