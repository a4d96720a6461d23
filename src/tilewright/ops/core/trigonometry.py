"""Tangent, the inverse trigonometric functions, and the hyperbolic functions with their inverses.

They are made of what TIR has (sin, cos, exp, log, tanh, sqrt), in forms that neither cancel nor overflow before the
result does, and of one polynomial, that of atan. Errors, against float64: below 4 ULP in f32, as
`tests/ops/test_trigonometry.py` measures. The hyperbolic ones are computed in f64 whatever the type, and rounded once:
they are too rare for forms of their own.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Fma, UnaryOp, cast, const, equal, select, unary
from tilewright.ops.core.elementwise import Pointwise
from tilewright.ops.opdef import Sample
from tilewright.support.arrays import Array
from tilewright.tir.math.arith import absolute, polynomial, sign_bit, sqrt, with_sign

# ---------------------------------------------------------------------------------------------------- trigonometric

# (atan r - r) / r³ in r², on |r| ≤ tan(π/8): errors of atan 0.011 ULP, in f32 and in f64.
_ATAN = {
    DType.F32: (-0.33333316, 0.1999849, -0.1424384, 0.10595893, -0.060830943),
    DType.F64: (
        -0.333333333333332,
        0.1999999999995406,
        -0.1428571428024609,
        0.11111110786007855,
        -0.09090897832335182,
        0.07692061555494036,
        -0.06663119346231858,
        0.058480005030411036,
        -0.05039803551629156,
        0.03807715003196003,
        -0.017920881779225163,
    ),
}
# π/2 as a float of the type and what is missing of it.
_HALF_PI = {
    DType.F32: (1.5707963705062866, -4.371139000186241e-08),
    DType.F64: (1.5707963267948966, 6.123233995736766e-17),
}


def atan(x: Expr) -> Expr:
    """atan |x| is that of r, and π/4 or π/2 more: r = (y - 1) / (y + 1) or -1 / y, whichever is at most tan(π/8)."""
    y = absolute(x)
    steep, middle = y > math.tan(3 * math.pi / 8), y > math.tan(math.pi / 8)
    one, zero = const(1.0, x.dtype), const(0.0, x.dtype)
    numerator = select(steep, -one, select(middle, y - 1.0, y))
    r = numerator / select(steep, y, select(middle, y + 1.0, one))
    z = r * r
    rest = r * z * polynomial(z, _ATAN[x.dtype])
    high, low = (
        select(steep, const(part, x.dtype), select(middle, const(part / 2, x.dtype), zero))
        for part in _HALF_PI[x.dtype]
    )
    return with_sign(absolute(high + (r + (rest + low))), sign_bit(x))


@dataclass(frozen=True, slots=True)
class Tan(Pointwise):
    onnx = ("Tan",)

    def scalar(self, x: Expr) -> Expr:
        return unary(UnaryOp.SIN, x) / unary(UnaryOp.COS, x)  # they share the reduction of x

    def array(self, x: Array) -> Array:
        return np.tan(x)


@dataclass(frozen=True, slots=True)
class Atan(Pointwise):
    onnx = ("Atan",)

    def scalar(self, x: Expr) -> Expr:
        return atan(x)

    def array(self, x: Array) -> Array:
        return np.arctan(x)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield from super(Atan, cls).samples(rng)
        yield cls.sample(np.array([1e-40, -1e-20, 0.414, 0.4143, 2.414, -2.4143, 1e30, -3e38], np.float32))


@dataclass(frozen=True, slots=True)
class Asin(Pointwise):
    """NaN outside of -1 … 1."""

    onnx = ("Asin",)
    domain = (-1.0, 1.0)

    def scalar(self, x: Expr) -> Expr:
        return atan(x / sqrt((1.0 - x) * (1.0 + x)))

    def array(self, x: Array) -> Array:
        return np.arcsin(x)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield from super(Asin, cls).samples(rng)
        yield cls.sample(np.array([1e-30, 0.99999994, -0.99999994, 1.0000001, -2.0], np.float32))


@dataclass(frozen=True, slots=True)
class Acos(Pointwise):
    """NaN outside of -1 … 1."""

    onnx = ("Acos",)
    domain = (-1.0, 1.0)

    def scalar(self, x: Expr) -> Expr:
        return 2.0 * atan(sqrt((1.0 - x) / (1.0 + x)))

    def array(self, x: Array) -> Array:
        return np.arccos(x)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield from super(Acos, cls).samples(rng)
        yield cls.sample(np.array([1e-30, 0.99999994, -0.99999994, 1.0000001, -2.0], np.float32))


# ------------------------------------------------------------------------------------------------------- hyperbolic


_LN2 = math.log(2)
_HUGE = 2.0**28  # its square plus 1 is its square


def _exp(x: Expr) -> Expr:
    return unary(UnaryOp.EXP, x)


def _log(x: Expr) -> Expr:
    return unary(UnaryOp.LOG, x)


def _half_exp(y: Expr) -> Expr:
    """e^y / 2 in f64, which overflows later than e^y does."""
    root = _exp(y * 0.5)
    return select(y > 709.0, (0.5 * root) * root, 0.5 * _exp(y))


def _log1p(z: Expr) -> Expr:
    """log(1 + z). The factor makes up for what was lost in u = 1 + z."""
    u = 1.0 + z
    lost = select(equal(u, 1.0), const(1.0, z.dtype), z / (u - 1.0))
    exact = select(equal(u, 1.0), z, _log(u) * lost)
    return select(z < 2.0**60, exact, _log(z))  # there z is u, and the factor of infinity is NaN


class Hyperbolic(Pointwise):
    """A function that is computed in f64."""

    __slots__ = ()
    function: ClassVar[Callable[..., Any]]  # a numpy ufunc
    edges: ClassVar[tuple[float, ...]]  # where its form changes, or a plain one would cancel or overflow

    @abstractmethod
    def wide(self, x: Expr) -> Expr: ...

    def scalar(self, x: Expr) -> Expr:
        return cast(x.dtype, self.wide(cast(DType.F64, x)))

    def array(self, x: Array) -> Array:
        return np.asarray(type(self).function(x))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield from super().samples(rng)
        yield cls.sample(np.array(cls.edges, np.float32))
        yield cls.sample(np.array(cls.edges, np.float64))


@dataclass(frozen=True, slots=True)
class Sinh(Hyperbolic):
    """By half the argument's tangent below 1, where exponentials cancel."""

    onnx = ("Sinh",)
    function = np.sinh
    edges = (1e-30, -1e-8, 1.0, 1.0000001, -30.0, 88.9, -89.3, 89.5)

    def wide(self, x: Expr) -> Expr:
        y = absolute(x)
        t = unary(UnaryOp.TANH, 0.5 * y)
        large = _half_exp(y)
        result = select(y < 1.0, 2.0 * t / Fma(-t, t, const(1.0, DType.F64)), large - 0.25 / large)
        return with_sign(result, sign_bit(x))


@dataclass(frozen=True, slots=True)
class Cosh(Hyperbolic):
    onnx = ("Cosh",)
    function = np.cosh
    edges = (1e-30, -1e-8, 30.0, 88.9, -89.3, 89.5)

    def wide(self, x: Expr) -> Expr:
        large = _half_exp(absolute(x))
        return large + 0.25 / large


@dataclass(frozen=True, slots=True)
class Asinh(Hyperbolic):
    onnx = ("Asinh",)
    function = np.arcsinh
    edges = (1e-30, -1e-8, 0.5, 2.6e8, -2.7e8, 1e19, 3e38)

    def wide(self, x: Expr) -> Expr:
        y = absolute(x)
        square = y * y
        near = _log1p(y + square / (1.0 + sqrt(square + 1.0)))
        return with_sign(select(y > _HUGE, _log(y) + _LN2, near), sign_bit(x))


@dataclass(frozen=True, slots=True)
class Acosh(Hyperbolic):
    """NaN below 1."""

    onnx = ("Acosh",)
    function = np.arccosh
    domain = (1.0, 9.0)
    edges = (1.0, 1.0000001, 0.99999994, -3.0, 2.6e8, 2.7e8, 3e38)

    def wide(self, x: Expr) -> Expr:
        t = x - 1.0
        near = _log1p(t + sqrt(t * (t + 2.0)))
        return select(x < 1.0, const(math.nan, DType.F64), select(x > _HUGE, _log(x) + _LN2, near))


@dataclass(frozen=True, slots=True)
class Atanh(Hyperbolic):
    """Infinite at -1 and 1, and NaN beyond."""

    onnx = ("Atanh",)
    function = np.arctanh
    domain = (-1.0, 1.0)
    edges = (1e-30, -1e-8, 0.5, 0.99999994, -0.99999994, 1.0, -1.0, 1.0000001)

    def wide(self, x: Expr) -> Expr:
        y = absolute(x)
        return with_sign(absolute(0.5 * _log1p(2.0 * y / (1.0 - y))), sign_bit(x))
