"""Elementwise arithmetic. Integers wrap; integer division truncates towards zero, as ONNX has it."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Self

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    BinaryOp,
    Expr,
    Fma,
    UnaryOp,
    binary,
    cast,
    const,
    equal,
    maximum,
    minimum,
    select,
    unary,
)
from tilewright.ops.axes import FLOATS, NUMBERS
from tilewright.ops.core.elementwise import SPECIAL, Elementwise, PairOperator, Pairwise, Variadic, normal
from tilewright.ops.opdef import OnnxNode, Sample, TensorType
from tilewright.support.arrays import Array

# ------------------------------------------------------------------------------------------------------ arithmetic


@dataclass(frozen=True, slots=True)
class Add(PairOperator):
    onnx = ("Add",)
    function = operator.add


@dataclass(frozen=True, slots=True)
class Sub(PairOperator):
    onnx = ("Sub",)
    function = operator.sub


@dataclass(frozen=True, slots=True)
class Mul(PairOperator):
    onnx = ("Mul",)
    function = operator.mul


def truncated_quotient(a: Expr, b: Expr) -> Expr:
    """a / b rounded towards zero, for integers. Floor division is one too low if the signs differ."""
    quotient = a // b
    if not a.dtype.is_signed:
        return quotient
    inexact = binary(BinaryOp.NE, quotient * b, a)
    return quotient + cast(a.dtype, logical_and(inexact, binary(BinaryOp.XOR, a < 0, b < 0)))


@dataclass(frozen=True, slots=True)
class Div(Pairwise):
    """Integers are divided towards zero."""

    onnx = ("Div",)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return a / b if a.dtype.is_float else truncated_quotient(a, b)

    def array(self, a: Array, b: Array) -> Array:
        if a.dtype.kind == "f":
            return a / b
        quotient = np.floor_divide(a, b)
        return quotient + ((quotient * b != a) & ((a < 0) != (b < 0)))


@dataclass(frozen=True, slots=True)
class Mod(Pairwise):
    """The remainder has the sign of the divisor; with `truncated`, of the dividend (C's fmod).

    It is exact, but for f64 with a quotient of 2^50 or more.
    """

    onnx = ("Mod",)
    truncated: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(bool(node.integer("fmod", 0))), node.present

    def scalar(self, a: Expr, b: Expr) -> Expr:
        if not a.dtype.is_float:
            return a - truncated_quotient(a, b) * b if self.truncated else a % b
        # The largest f32 is below 2^128, the smallest 2^-149.
        bits = 50 if a.dtype is DType.F64 else 277
        remainder = _fmod(cast(DType.F64, a), cast(DType.F64, b), bits)
        return cast(a.dtype, remainder if self.truncated else _towards(remainder, cast(DType.F64, b)))

    def array(self, a: Array, b: Array) -> Array:
        return np.fmod(a, b) if self.truncated else np.mod(a, b)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        a, b = np.array([7, -7, 7, -7, 0, 6], np.int32), np.array([2, 2, -2, -2, 5, -3], np.int32)
        yield cls.sample(a, b)
        yield cls.sample(a, b, fmod=1)
        for short in (np.uint8, np.uint16, np.uint32, np.uint64):
            yield cls.sample(abs(a).astype(short), abs(b).astype(short))
        for signed in (np.int8, np.int16, np.int64):
            yield cls.sample(a.astype(signed), b.astype(signed))
            yield cls.sample(a.astype(signed), b.astype(signed), fmod=1)
        x, y = normal(rng, 2, 3) * 9, normal(rng, 3)
        left, right = np.meshgrid(np.array(SPECIAL, np.float32), np.array(SPECIAL, np.float32))
        for dtype in (np.float16, np.float32, np.float64):
            floats = (x.astype(dtype), y.astype(dtype))
            yield cls.sample(*floats, fmod=1)
            yield Sample(cls(), floats)  # since opset 28, which onnxruntime does not have
        far = np.array([3e38, -1e30, 16777216.0, 1e-40, 5.0], np.float32)
        yield cls.sample(far[:, None], np.array([3.0, -0.7, 1e-45, 1e-38], np.float32), fmod=1)
        yield cls.sample(left, right, fmod=1)
        yield Sample(cls(), (left, right))


def _towards(remainder: Expr, b: Expr) -> Expr:
    """A remainder with the sign of the dividend, brought to that of the divisor."""
    moved = select(binary(BinaryOp.XOR, remainder < 0, b < 0), remainder + b, remainder)
    return select(equal(remainder, 0.0), select(b < 0, const(-0.0, DType.F64), const(0.0, DType.F64)), moved)


def _fmod(a: Expr, b: Expr, quotient_bits: int) -> Expr:
    """In f64, exact for quotients of up to `quotient_bits`: first multiples of b · 2^50k are taken away, then of
    b · 2^50(k-1), and so on, each of which is exact.
    """
    size = unary(UnaryOp.ABS, b)
    rest = a
    for k in reversed(range(-(-quotient_bits // 50))):
        rest = _less_multiples(rest, size * 2.0 ** (50 * k) if k else size)
    infinite = equal(size, float("inf"))
    return select(logical_and(infinite, unary(UnaryOp.ABS, a) < float("inf")), a, rest)


def _less_multiples(a: Expr, size: Expr) -> Expr:
    # The rounded quotient can be one too far from zero: then the remainder has the wrong sign, and the size brings it
    # back.
    rest = Fma(-unary(UnaryOp.TRUNC, a / size), size, a)
    return select(
        a < 0,
        select(const(0, DType.F64) < rest, rest - size, rest),
        select(rest < 0, rest + size, rest),
    )


@dataclass(frozen=True, slots=True)
class Pow(Elementwise):
    """base ** exponent, in the type of the base. Integers to a negative power are reciprocals rounded towards zero.

    An exponent that is known at compile time is an attribute, so that small powers and roots need no logarithm.
    """

    onnx = ("Pow",)
    arity = (1, 2)
    exponent: float | None = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        known = node.constant(1)
        if known is None or known.size != 1 or known.ndim > node.input(0).rank:
            return cls(), (0, 1)
        return cls(float(known.item())), (0,)

    def result(self, inputs: Sequence[TensorType]) -> DType:
        if len(inputs) != (1 if self.exponent is not None else 2):
            raise self.misfit(inputs, "the exponent is either an attribute or an input")
        if any(t.dtype not in NUMBERS for t in inputs):
            raise self.misfit(inputs, "not defined for bool")
        return inputs[0].dtype

    def value(self, args: Sequence[Expr]) -> Expr:
        x = args[0]
        if self.exponent is None:
            return _power(x, args[1])
        if x.dtype.is_int:
            whole = self.exponent.is_integer() and abs(self.exponent) < 2**63
            if whole and 0 <= self.exponent <= 63:
                return _natural_power(x, int(self.exponent))
            return _power(x, const(self.exponent, DType.I64 if whole else DType.F64))
        if self.exponent.is_integer() and 0 <= self.exponent <= 8:
            return _natural_power(x, int(self.exponent))
        if self.exponent == -1:
            return 1 / x
        if self.exponent in (0.5, -0.5):
            # Unlike the root, the power of -inf is inf and that of -0 is +0.
            root = unary(UnaryOp.SQRT, x + const(0.0, x.dtype))
            power = select(equal(x, float("-inf")), const(float("inf"), x.dtype), root)
            return power if self.exponent > 0 else 1 / power
        return binary(BinaryOp.POW, x, const(self.exponent, x.dtype))

    def values(self, args: Sequence[Array]) -> Array:
        x = args[0]
        # As an array: a scalar 0.5 would make numpy take the root.
        y: Array = args[1] if self.exponent is None else np.full_like(x, self.exponent, np.float64)
        if y.dtype.kind == "f" and x.dtype.kind != "f" and ((y == np.trunc(y)) & (abs(y) < 2**63)).all():
            y = y.astype(np.int64)
        if "f" in (x.dtype.kind, y.dtype.kind):
            return np.power(x.astype(np.float64), y.astype(np.float64))
        size = np.where((y >= -63) & (y <= 63), abs(y), 62 + (y & 1))
        power = np.power(x, size.astype(x.dtype))
        reciprocal = np.where(abs(power) == 1, power, 0).astype(x.dtype)
        return np.where(y < 0, reciprocal, power)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3)
        for exponent in (0.0, 1.0, 2.0, 3.0, 7.0, -1.0, 0.5, -2.0):
            yield cls.sample(x, np.array(exponent, np.float32))
        for exponent in (0.5, -0.5):
            yield cls.sample(np.array(SPECIAL, np.float32), np.array([exponent], np.float32))
        yield cls.sample(abs(x), normal(rng, 3), runtime=(1,))
        yield cls.sample(x, np.array([[2], [-3]], np.int64), runtime=(1,))
        yield cls.sample(abs(x), normal(rng, 3).astype(np.float64), runtime=(1,))
        yield cls.sample(abs(x).astype(np.float64), normal(rng, 3), runtime=(1,))
        yield cls.sample(abs(x).astype(np.float16), normal(rng, 3), runtime=(1,))
        n = np.arange(-3, 4, dtype=np.int32)
        for exponent in (3, 0):
            yield cls.sample(n, np.array(exponent, np.int64))
        yield Sample(cls(100.0), (n,))
        yield cls.sample(abs(n) + 1, np.array(-1, np.int64))
        yield cls.sample(abs(n), np.array(0.5, np.float32))
        yield cls.sample(n, np.array([[0], [1], [2], [5]], np.int32), runtime=(1,))
        yield cls.sample(n.astype(np.int64), np.array([[0.0], [2.0]], np.float32), runtime=(1,))
        # Where the result does not fit, or nothing is divided by, engines differ.
        yield Sample(cls(), (n, np.array([[-1], [-2], [31], [64], [65], [-(2**63)]], np.int64)))
        yield Sample(cls(), (abs(n).astype(np.uint8), np.array([[1], [9], [200]], np.uint8)))


def _power(x: Expr, y: Expr) -> Expr:
    """x ** y for an exponent that is data."""
    if x.dtype.is_float:
        wide = DType.F64 if DType.F64 in (x.dtype, y.dtype) else x.dtype
        return cast(x.dtype, binary(BinaryOp.POW, cast(wide, x), cast(wide, y)))
    if y.dtype.is_float:
        return cast(x.dtype, binary(BinaryOp.POW, cast(DType.F64, x), cast(DType.F64, y)))
    # Six bits of the exponent are enough: a larger one is of use only for -1, 0 and 1, for which its last bit counts.
    size, within = y, y <= 63
    if y.dtype.is_signed:
        size, within = unary(UnaryOp.ABS, y), logical_and(within, y >= -63)
    size = select(within, size, const(62, y.dtype) + binary(BinaryOp.AND, y, const(1, y.dtype)))
    power: Expr = const(1, x.dtype)
    square = x
    for bit in range(6):
        is_set = binary(BinaryOp.NE, binary(BinaryOp.AND, size, const(1 << bit, y.dtype)), const(0, y.dtype))
        power = select(is_set, power * square, power)
        square = square * square
    if not y.dtype.is_signed:
        return power
    is_one = equal(power, 1)
    if x.dtype.is_signed:
        is_one = binary(BinaryOp.OR, is_one, equal(power, -1))
    return select(y < 0, select(is_one, power, const(0, x.dtype)), power)


def _natural_power(x: Expr, n: int) -> Expr:
    """By repeated squaring: few multiplications, and their error is below that of a general power."""
    if n == 0:
        return const(1, x.dtype)
    if n == 1:
        return x
    half = _natural_power(x, n // 2)
    return half * half * x if n % 2 else half * half


# -------------------------------------------------------------------------------------------------- many inputs


@dataclass(frozen=True, slots=True)
class Max(Variadic):
    """NaN wins."""

    onnx = ("Max",)

    def combine(self, a: Expr, b: Expr) -> Expr:
        return maximum(a, b)

    def combine_arrays(self, a: Array, b: Array) -> Array:
        return np.maximum(a, b)


@dataclass(frozen=True, slots=True)
class Min(Variadic):
    """NaN wins."""

    onnx = ("Min",)

    def combine(self, a: Expr, b: Expr) -> Expr:
        return minimum(a, b)

    def combine_arrays(self, a: Array, b: Array) -> Array:
        return np.minimum(a, b)


@dataclass(frozen=True, slots=True)
class Sum(Variadic):
    onnx = ("Sum",)
    takes = FLOATS

    def combine(self, a: Expr, b: Expr) -> Expr:
        return a + b

    def combine_arrays(self, a: Array, b: Array) -> Array:
        return a + b


@dataclass(frozen=True, slots=True)
class Mean(Variadic):
    onnx = ("Mean",)
    takes = FLOATS

    def combine(self, a: Expr, b: Expr) -> Expr:
        return a + b

    def combine_arrays(self, a: Array, b: Array) -> Array:
        return a + b

    def value(self, args: Sequence[Expr]) -> Expr:
        return reduce(self.combine, args) / len(args)

    def values(self, args: Sequence[Array]) -> Array:
        return reduce(self.combine_arrays, args) / len(args)
