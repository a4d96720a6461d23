"""Mathematical functions of one argument."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.ir.expr import Expr, UnaryOp, const, select, unary
from tilewright.ops.axes import NUMBERS, SIGNED
from tilewright.ops.core.elementwise import Pointwise
from tilewright.ops.opdef import Sample
from tilewright.support.arrays import Array

_erf_each = np.vectorize(math.erf, otypes=[np.float64])


def erf_array(x: Array) -> Array:
    """numpy has none."""
    return np.asarray(_erf_each(x))


class MathFunction(Pointwise):
    """A function that TIR has as an operation."""

    __slots__ = ()
    op: ClassVar[UnaryOp]
    function: ClassVar[Callable[..., Any]]  # of arrays

    def scalar(self, x: Expr) -> Expr:
        return unary(self.op, x)

    def array(self, x: Array) -> Array:
        return np.asarray(type(self).function(x))


@dataclass(frozen=True, slots=True)
class Exp(MathFunction):
    onnx = ("Exp",)
    op = UnaryOp.EXP
    function = np.exp


@dataclass(frozen=True, slots=True)
class Log(MathFunction):
    onnx = ("Log",)
    op = UnaryOp.LOG
    function = np.log
    domain = (0.01, 9.0)


@dataclass(frozen=True, slots=True)
class Sqrt(MathFunction):
    onnx = ("Sqrt",)
    op = UnaryOp.SQRT
    function = np.sqrt
    domain = (0.0, 9.0)


@dataclass(frozen=True, slots=True)
class Tanh(MathFunction):
    onnx = ("Tanh",)
    op = UnaryOp.TANH
    function = np.tanh


@dataclass(frozen=True, slots=True)
class Sin(MathFunction):
    onnx = ("Sin",)
    op = UnaryOp.SIN
    function = np.sin


@dataclass(frozen=True, slots=True)
class Cos(MathFunction):
    onnx = ("Cos",)
    op = UnaryOp.COS
    function = np.cos


@dataclass(frozen=True, slots=True)
class Floor(MathFunction):
    onnx = ("Floor",)
    op = UnaryOp.FLOOR
    function = np.floor


@dataclass(frozen=True, slots=True)
class Ceil(MathFunction):
    onnx = ("Ceil",)
    op = UnaryOp.CEIL
    function = np.ceil


@dataclass(frozen=True, slots=True)
class Round(MathFunction):
    """Half to even."""

    onnx = ("Round",)
    op = UnaryOp.ROUND
    function = np.rint

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield from super(Round, cls).samples(rng)
        halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.49, -2.51, 7.0])
        for dtype in (np.float32, np.float64, np.float16):
            yield cls.sample(halves.astype(dtype))


@dataclass(frozen=True, slots=True)
class Abs(MathFunction):
    onnx = ("Abs",)
    takes = NUMBERS
    op = UnaryOp.ABS
    function = np.abs

    def scalar(self, x: Expr) -> Expr:
        return unary(UnaryOp.ABS, x) if x.dtype in SIGNED else x


@dataclass(frozen=True, slots=True)
class Neg(MathFunction):
    onnx = ("Neg",)
    takes = SIGNED
    op = UnaryOp.NEG
    function = np.negative


@dataclass(frozen=True, slots=True)
class Erf(MathFunction):
    onnx = ("Erf",)
    op = UnaryOp.ERF
    function = erf_array


@dataclass(frozen=True, slots=True)
class Reciprocal(Pointwise):
    onnx = ("Reciprocal",)

    def scalar(self, x: Expr) -> Expr:
        return 1 / x

    def array(self, x: Array) -> Array:
        return 1 / x


@dataclass(frozen=True, slots=True)
class Sign(Pointwise):
    onnx = ("Sign",)
    takes = NUMBERS

    def scalar(self, x: Expr) -> Expr:
        positive = select(const(0, x.dtype) < x, const(1, x.dtype), x)  # what is left is 0 or NaN
        return select(x < 0, const(-1, x.dtype), positive) if x.dtype in SIGNED else positive

    def array(self, x: Array) -> Array:
        return np.sign(x)
