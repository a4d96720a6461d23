"""Errors of the functions that are made of others: in units in the last place, over the whole range."""

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import Evaluated, evaluate
from tilewright.ir.expr import Expr, Load, Unary, Var
from tilewright.ir.rewrite import transform
from tilewright.ops.core.elementwise import Pointwise
from tilewright.ops.core.trigonometry import Acos, Acosh, Asin, Asinh, Atan, Atanh, Cosh, Sinh, Tan
from tilewright.support.arrays import Array
from tilewright.tir.passes.expand_math import expand_expr

FUNCTIONS: list[Pointwise] = [Tan(), Atan(), Asin(), Acos(), Sinh(), Cosh(), Asinh(), Acosh(), Atanh()]


def native_value(op: Pointwise, x: Array) -> Array:
    """What native code computes: the functions of TIR are expanded."""

    def no_load(node: Load, indices: tuple[Evaluated, ...]) -> Evaluated:
        raise KeyError(node)

    var = Var("x", DType.of(x.dtype))
    e: Expr = transform(op.scalar(var), expand_expr)
    assert not any(isinstance(n, Unary) and n.op.value in ("exp", "log", "sin", "tanh") for n in _nodes(e))
    return np.asarray(evaluate(e, {var: x}, no_load))


def _nodes(e: Expr) -> list[Expr]:
    seen: dict[Expr, None] = {}
    stack = [e]
    while stack:
        n = stack.pop()
        if n not in seen:
            seen[n] = None
            stack.extend(n.children())
    return list(seen)


def points(dtype: type[np.floating]) -> Array:
    """Floats of every exponent and both signs, and more of them where the functions bend."""
    bits = np.dtype(dtype).itemsize * 8
    step = (1 << bits) // 6001 | 1
    spread = (np.arange(6001, dtype=np.uint64) * np.uint64(step)).astype(f"u{bits // 8}").view(dtype)
    dense = [np.linspace(-1, 1, 3001), np.linspace(-9, 9, 2001), 1 + np.geomspace(1e-7, 1e3, 500)]
    every = np.concatenate([spread, *(d.astype(dtype) for d in dense)])
    return every[np.isfinite(every)]


def ulps(got: Array, exact: Array, digits: int) -> Array:
    unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - digits, -149 if digits == 24 else -1074))
    error = np.abs(got.astype(np.float64) - exact) / unit
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
    return np.where((got == rounded) | (np.isnan(got) & np.isnan(exact)), 0.0, error)


@pytest.mark.parametrize("op", FUNCTIONS, ids=lambda op: type(op).__name__)
def test_error_in_f32(op: Pointwise) -> None:
    x = points(np.float32)
    with np.errstate(all="ignore"):
        exact = op.array(x.astype(np.float64))
        error = ulps(native_value(op, x), exact, 24)
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    assert error[worst] <= 4.0, f"{op}({x[worst]!r}) is off by {error[worst]} ULP"


@pytest.mark.parametrize("op", FUNCTIONS, ids=lambda op: type(op).__name__)
def test_error_in_f64(op: Pointwise) -> None:
    x = points(np.float64)
    if isinstance(op, Tan):  # sin and cos of f64 lose digits beyond
        x = x[abs(x) < 1e5]
    with np.errstate(all="ignore"):
        exact = op.array(x)  # a libm, with errors of its own
        error = ulps(native_value(op, x), exact, 53)
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    assert error[worst] <= 8.0, f"{op}({x[worst]!r}) is off by {error[worst]} ULP"
