"""Activations: pointwise functions that networks put between layers. NaN stays NaN unless a class says otherwise."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Self

import ml_dtypes
import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, UnaryOp, cast, const, maximum, minimum, select, unary
from tilewright.ops.axes import NUMBERS
from tilewright.ops.core.elementwise import SPECIAL, Elementwise, Pairwise, Pointwise, normal
from tilewright.ops.core.pointwise import erf_array
from tilewright.ops.opdef import OnnxNode, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError


@dataclass(frozen=True, slots=True)
class Relu(Pointwise):
    onnx = ("Relu",)
    takes = NUMBERS

    def scalar(self, x: Expr) -> Expr:
        return select(x < 0, const(0, x.dtype), x)

    def array(self, x: Array) -> Array:
        return np.where(x < 0, 0, x)


@dataclass(frozen=True, slots=True)
class LeakyRelu(Pointwise):
    onnx = ("LeakyRelu",)
    alpha: float = 0.01

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(node.real("alpha", 0.01)), (0,)

    def scalar(self, x: Expr) -> Expr:
        return select(x < 0, x * self.alpha, x)

    def array(self, x: Array) -> Array:
        return np.where(x < 0, x * self.alpha, x)


@dataclass(frozen=True, slots=True)
class PRelu(Pairwise):
    """LeakyRelu whose slope is an input that broadcasts to x."""

    onnx = ("PRelu",)
    takes = NUMBERS

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (out,) = Elementwise.infer(self, inputs)
        if out.shape != inputs[0].shape:
            raise self.misfit(inputs, "the slope must broadcast to the shape of x")
        return (out,)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return select(a < 0, a * b, a)

    def array(self, a: Array, b: Array) -> Array:
        return np.where(a < 0, a * b, a)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3, 4)
        yield cls.sample(x, normal(rng, 3, 1))
        yield cls.sample(x, normal(rng, 2, 3, 4))
        yield cls.sample(x, normal(rng, 1))
        yield cls.sample(np.array(SPECIAL, np.float32), normal(rng, 1))
        yield cls.sample(x.astype(np.float16), normal(rng, 4).astype(np.float16))
        yield Sample(cls(), (np.array([-3, 0, 5]), np.array(2)))


@unique
class ClipBound(Enum):
    """Where a bound of Clip is if it is neither known nor absent."""

    INPUT = "input"


@dataclass(frozen=True, slots=True)
class Clip(Elementwise):
    """min(max(x, low), high); None leaves a side open. A bound that is computed at run time is a further input."""

    onnx = ("Clip",)
    arity = (1, 3)
    low: float | ClipBound | None = None
    high: float | ClipBound | None = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        if node.opset < 11:
            return cls(node.attrs.get("min"), node.attrs.get("max")), (0,)
        bounds: list[float | ClipBound | None] = []
        for i in (1, 2):
            known = node.constant(i) if node.has(i) else None
            if known is not None and known.size != 1:
                raise UserError(f"Clip: a bound of {known.size} elements")
            bounds.append(known.item() if known is not None else ClipBound.INPUT if node.has(i) else None)
        return cls(*bounds), (0, *(i for i, bound in enumerate(bounds, 1) if bound is ClipBound.INPUT))

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1 + (self.low, self.high).count(ClipBound.INPUT))
        x, *bounds = inputs
        if any(math.prod(t.shape) != 1 or t.rank > x.rank for t in bounds):
            raise self.misfit(inputs, "the bounds must be scalars")
        return (TensorType(self.result(inputs), x.shape),)

    def value(self, args: Sequence[Expr]) -> Expr:
        x, *bounds = args
        given = iter(bounds)
        if self.low is not None:
            x = maximum(x, next(given) if isinstance(self.low, ClipBound) else self.low)
        if self.high is not None:
            x = minimum(x, next(given) if isinstance(self.high, ClipBound) else self.high)
        return x

    def values(self, args: Sequence[Array]) -> Array:
        x, *bounds = args
        given = iter(bounds)
        if self.low is not None:
            x = np.maximum(x, next(given) if isinstance(self.low, ClipBound) else self.low)
        if self.high is not None:
            x = np.minimum(x, next(given) if isinstance(self.high, ClipBound) else self.high)
        return x

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = np.append(normal(rng, 9) * 5, np.array(SPECIAL, np.float32)).reshape(4, 4)
        low, high = np.array(0, np.float32), np.array(6, np.float32)
        yield cls.sample(normal(rng, 2, 3) * 5, low, high)
        yield cls.sample(x, low, high)
        yield cls.sample(x, None, high)
        yield cls.sample(x, low)
        yield cls.sample(x, high, low)
        yield cls.sample(x)
        yield cls.sample(x, opset=6, min=-1.0, max=1.0)
        y = normal(rng, 2, 3) * 5
        yield cls.sample(y, low, high, runtime=(1, 2))
        yield cls.sample(y, low, high, runtime=(1,))
        yield cls.sample(y, None, high, runtime=(2,))
        yield Sample(cls(ClipBound.INPUT, 6.0), (x, np.array([np.nan], np.float32)))
        for half in (np.float16, ml_dtypes.bfloat16):
            yield Sample(cls(-1.0, ClipBound.INPUT), (y.astype(half), high.astype(half)))
        for dtype in (np.int8, np.uint64):
            n = rng.integers(0, 99, size=6).astype(dtype)
            yield cls.sample(n, np.array(20, dtype), np.array(70, dtype))
            yield cls.sample(n, np.array(20, dtype), np.array(70, dtype), runtime=(1, 2))


@dataclass(frozen=True, slots=True)
class Sigmoid(Pointwise):
    onnx = ("Sigmoid",)

    def scalar(self, x: Expr) -> Expr:
        return unary(UnaryOp.SIGMOID, x)

    def array(self, x: Array) -> Array:
        return 1 / (1 + np.exp(-x))


@dataclass(frozen=True, slots=True)
class Gelu(Pointwise):
    """x times the normal distribution function of x, 0 at -∞; `tanh` is the usual approximation of it, NaN there."""

    onnx = ("Gelu",)
    tanh: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        how = node.text("approximate", "none")
        if how not in ("none", "tanh"):
            raise UserError(f"Gelu: approximate='{how}' is neither 'none' nor 'tanh'")
        return cls(how == "tanh"), (0,)

    def scalar(self, x: Expr) -> Expr:
        if self.tanh:
            # ½·(1 + tanh u) is the sigmoid of 2u, which does not cancel where u < 0.
            inner = x * (2 * math.sqrt(2 / math.pi) + 2 * math.sqrt(2 / math.pi) * 0.044715 * (x * x))
            return x * unary(UnaryOp.SIGMOID, inner)
        return unary(UnaryOp.GELU, x)

    def array(self, x: Array) -> Array:
        if self.tanh:
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return np.where(np.isneginf(x), 0, 0.5 * x * (1 + erf_array(x * math.sqrt(0.5))))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for how in ("none", "tanh"):
            yield cls.sample(normal(rng, 3, 5), opset=20, approximate=how)
            known = [v for v in SPECIAL if how == "tanh" or v != -math.inf]  # where onnxruntime has NaN
            yield cls.sample(np.array(known, np.float32), opset=20, approximate=how)
        yield Sample(cls(), (np.array(SPECIAL, np.float32),))


@dataclass(frozen=True, slots=True)
class HardSigmoid(Pointwise):
    onnx = ("HardSigmoid",)
    alpha: float = 0.2
    beta: float = 0.5

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(node.real("alpha", 0.2), node.real("beta", 0.5)), (0,)

    def scalar(self, x: Expr) -> Expr:
        return minimum(maximum(x * self.alpha + self.beta, 0), 1)

    def array(self, x: Array) -> Array:
        return np.minimum(np.maximum(x * self.alpha + self.beta, 0), 1)


@dataclass(frozen=True, slots=True)
class HardSwish(Pointwise):
    onnx = ("HardSwish",)

    def scalar(self, x: Expr) -> Expr:
        return x * minimum(maximum(x * (1 / 6) + 0.5, 0), 1)

    def array(self, x: Array) -> Array:
        return x * np.minimum(np.maximum(x / 6 + 0.5, 0), 1)


@dataclass(frozen=True, slots=True)
class Elu(Pointwise):
    onnx = ("Elu",)
    alpha: float = 1.0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(node.real("alpha", 1.0)), (0,)

    def scalar(self, x: Expr) -> Expr:
        return select(x < 0, self.alpha * (unary(UnaryOp.EXP, x) - 1), x)

    def array(self, x: Array) -> Array:
        return np.where(x < 0, self.alpha * np.expm1(x), x)


@dataclass(frozen=True, slots=True)
class Selu(Pointwise):
    onnx = ("Selu",)
    alpha: float = 1.67326319217681884765625
    gamma: float = 1.05070102214813232421875

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        default = cls()
        return cls(node.real("alpha", default.alpha), node.real("gamma", default.gamma)), (0,)

    def scalar(self, x: Expr) -> Expr:
        return self.gamma * select(x < 0, self.alpha * (unary(UnaryOp.EXP, x) - 1), x)

    def array(self, x: Array) -> Array:
        return self.gamma * np.where(x < 0, self.alpha * np.expm1(x), x)


@dataclass(frozen=True, slots=True)
class Softplus(Pointwise):
    """log(1 + exp(x)), in a form that does not overflow."""

    onnx = ("Softplus",)

    def scalar(self, x: Expr) -> Expr:
        return maximum(x, 0) + softplus_tail(x)

    def array(self, x: Array) -> Array:
        return np.logaddexp(x, 0)


def softplus_tail(x: Expr) -> Expr:
    return unary(UnaryOp.LOG, 1 + unary(UnaryOp.EXP_NONPOSITIVE, -unary(UnaryOp.ABS, x)))


@dataclass(frozen=True, slots=True)
class Softsign(Pointwise):
    onnx = ("Softsign",)

    def scalar(self, x: Expr) -> Expr:
        return x / (1 + unary(UnaryOp.ABS, x))

    def array(self, x: Array) -> Array:
        return x / (1 + abs(x))


@dataclass(frozen=True, slots=True)
class Mish(Pointwise):
    """x · tanh(softplus(x))."""

    onnx = ("Mish",)

    def scalar(self, x: Expr) -> Expr:
        return x * unary(UnaryOp.TANH, maximum(x, 0) + softplus_tail(x))

    def array(self, x: Array) -> Array:
        return x * np.tanh(np.logaddexp(x, 0))


@dataclass(frozen=True, slots=True)
class ThresholdedRelu(Pointwise):
    """x above alpha, else 0, also for NaN."""

    onnx = ("ThresholdedRelu",)
    alpha: float = 1.0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(node.real("alpha", 1.0)), (0,)

    def scalar(self, x: Expr) -> Expr:
        return select(const(self.alpha, x.dtype) < x, x, const(0, x.dtype))

    def array(self, x: Array) -> Array:
        return np.where(x > self.alpha, x, 0)


@dataclass(frozen=True, slots=True)
class Celu(Pointwise):
    """x, and alpha · (exp(x / alpha) - 1) below 0."""

    onnx = ("Celu",)
    alpha: float = 1.0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(node.real("alpha", 1.0)), (0,)

    def scalar(self, x: Expr) -> Expr:
        return select(x < 0, self.alpha * (unary(UnaryOp.EXP, x / self.alpha) - 1), x)

    def array(self, x: Array) -> Array:
        return np.where(x < 0, self.alpha * np.expm1(x / self.alpha), x)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield cls.sample(normal(rng, 3, 4) * 3)
        yield cls.sample(normal(rng, 3, 4) * 3, alpha=2.0)
        yield cls.sample(np.array(SPECIAL, np.float32))
        for dtype in (
            np.float64,
            np.float16,
            ml_dtypes.bfloat16,
        ):  # since opset 28, which onnxruntime does not have
            yield Sample(cls(1.5), (normal(rng, 5).astype(dtype),))


@dataclass(frozen=True, slots=True)
class Swish(Pointwise):
    """x · sigmoid(alpha · x)."""

    onnx = ("Swish",)
    alpha: float = 1.0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(node.real("alpha", 1.0)), (0,)

    def scalar(self, x: Expr) -> Expr:
        return x * unary(UnaryOp.SIGMOID, x * self.alpha)

    def array(self, x: Array) -> Array:
        return x / (1 + np.exp(-self.alpha * x))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield cls.sample(normal(rng, 3, 5) * 4, opset=24)
        yield cls.sample(normal(rng, 3, 5) * 4, opset=24, alpha=1.5)
        yield Sample(cls(), (np.array((0.0, -0.0, 1.0, -50.0, np.inf, np.nan), np.float32),))
        for dtype in (np.float64, np.float16, ml_dtypes.bfloat16):
            yield Sample(cls(1.5), (normal(rng, 5).astype(dtype),))


@dataclass(frozen=True, slots=True)
class Shrink(Pointwise):
    """Moved towards 0 by `bias` where it is farther from it than `threshold`, else 0, also for NaN.

    Integers are computed in f64, and what comes out is rounded towards zero.
    """

    onnx = ("Shrink",)
    takes = NUMBERS
    bias: float = 0.0
    threshold: float = 0.5

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(node.real("bias", 0.0), node.real("lambd", 0.5)), (0,)

    def scalar(self, x: Expr) -> Expr:
        x = x if x.dtype.is_float else cast(DType.F64, x)
        inner = select(const(self.threshold, x.dtype) < x, x - self.bias, const(0, x.dtype))
        return select(x < -self.threshold, x + self.bias, inner)

    def array(self, x: Array) -> Array:
        x = x.astype(np.float64)
        return np.where(x < -self.threshold, x + self.bias, np.where(x > self.threshold, x - self.bias, 0.0))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield from super(Shrink, cls).samples(rng)
        yield cls.sample(normal(rng, 3, 4) * 3, bias=1.5, lambd=1.5)
        yield cls.sample(np.arange(-5, 6, dtype=np.int64), bias=1.0, lambd=2.0)
        yield cls.sample(np.arange(9, dtype=np.uint8), bias=1.0, lambd=2.0)
