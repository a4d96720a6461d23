"""Activations: pointwise functions that networks put between layers. NaN stays NaN unless a class says otherwise."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.expr import Expr, UnaryOp, const, maximum, minimum, select, unary
from tilewright.ops.axes import FLOATS, NUMBERS
from tilewright.ops.elementwise import SPECIAL, Elementwise, Pairwise, Pointwise, normal
from tilewright.ops.opdef import Array, OnnxNode, Sample, TensorType
from tilewright.ops.pointwise import erf
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
    takes = FLOATS

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (out,) = Elementwise.infer(self, inputs)
        if out.shape != inputs[0].shape:
            raise self.misfit(inputs, "the slope must broadcast to the shape of x")
        return (out,)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return select(a < 0, a * b, a)

    def array(self, a: Array, b: Array) -> Array:
        return np.where(a < 0, a * b, a)


@dataclass(frozen=True, slots=True)
class Clip(Pointwise):
    """min(max(x, low), high); None leaves a side open."""

    onnx = ("Clip",)
    takes = NUMBERS
    low: float | None = None
    high: float | None = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        if node.opset < 11:
            low, high = node.attrs.get("min"), node.attrs.get("max")
        else:
            low = node.value(1, "the lower bound").item() if node.has(1) else None
            high = node.value(2, "the upper bound").item() if node.has(2) else None
        return cls(low, high), (0,)

    def scalar(self, x: Expr) -> Expr:
        above = x if self.low is None else maximum(x, self.low)
        return above if self.high is None else minimum(above, self.high)

    def array(self, x: Array) -> Array:
        above = x if self.low is None else np.maximum(x, self.low)
        return above if self.high is None else np.minimum(above, self.high)

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
        yield cls.sample(
            rng.integers(-9, 9, size=6).astype(np.int32), np.array(-2, np.int32), np.array(3, np.int32)
        )


@dataclass(frozen=True, slots=True)
class Sigmoid(Pointwise):
    onnx = ("Sigmoid",)

    def scalar(self, x: Expr) -> Expr:
        return unary(UnaryOp.SIGMOID, x)

    def array(self, x: Array) -> Array:
        return 1 / (1 + np.exp(-x))


@dataclass(frozen=True, slots=True)
class Gelu(Pointwise):
    """x times the normal distribution function of x; `tanh` is the usual approximation of it."""

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
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
            return 0.5 * x * (1 + unary(UnaryOp.TANH, inner))
        return 0.5 * x * (1 + unary(UnaryOp.ERF, x * math.sqrt(0.5)))

    def array(self, x: Array) -> Array:
        if self.tanh:
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for how in ("none", "tanh"):
            yield cls.sample(normal(rng, 3, 5), opset=20, approximate=how)
            yield cls.sample(np.array(SPECIAL, np.float32), opset=20, approximate=how)


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
    return unary(UnaryOp.LOG, 1 + unary(UnaryOp.EXP, -unary(UnaryOp.ABS, x)))


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
