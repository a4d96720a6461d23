"""One step of an optimiser: new weights and statistics from weights, gradients and statistics.

A node updates any number of tensors: its inputs are the learning rate, the number of the step, and then each of X
(weights), G (gradients) and the statistics for all tensors; its outputs are the new X and the new statistics. Each
output is one block, computed from the inputs alone.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Buffer, Expr, UnaryOp, binary, cast, const, select, unary
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder

_TYPES = (DType.F32, DType.F64)


class Optimizer(Op):
    """Subclasses say what becomes of the elements of one tensor."""

    __slots__ = ()
    kind = Kind.ELEMENTWISE
    statistics: ClassVar[int]  # how many tensors are kept for each one that is trained

    @abstractmethod
    def updated(self, rate: Expr, step: Expr, x: Expr, g: Expr, kept: Sequence[Expr]) -> list[Expr]:
        """New weight and new statistics. The rate is of their type, the step of type f64."""

    @abstractmethod
    def updated_arrays(
        self, rate: float, step: int, x: Array, g: Array, kept: Sequence[Array]
    ) -> list[Array]:
        """The same of arrays, in f64."""

    def _count(self, inputs: Sequence[TensorType]) -> int:
        """How many tensors are trained."""
        groups = 2 + self.statistics
        if len(inputs) < 2 + groups or (len(inputs) - 2) % groups:
            raise self.misfit(inputs, f"takes a rate, a step and {groups} tensors for each that is trained")
        return (len(inputs) - 2) // groups

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        count = self._count(inputs)
        rate, step, *tensors = inputs
        if any(t.shape not in ((), (1,)) for t in (rate, step)) or step.dtype is not DType.I64:
            raise self.misfit(inputs, "the rate must be one float and the step one i64")
        for k, t in enumerate(tensors):
            if t != tensors[k % count] or t.dtype not in _TYPES:
                raise self.misfit(
                    inputs, "weights, gradients and statistics of a tensor must have one float type"
                )
        if rate.dtype not in _TYPES:
            raise self.misfit(inputs, "the rate must be f32 or f64")
        return tuple(
            t for k in (0, *range(2, 2 + self.statistics)) for t in tensors[k * count : (k + 1) * count]
        )

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        count = self._count([TensorType(x.dtype, x.shape) for x in inputs])
        rate, step, *tensors = inputs
        outputs: list[Buffer] = []
        for which in range(1 + self.statistics):
            for n in range(count):
                own = tensors[n::count]

                def element(*i: Expr, own: Sequence[Buffer] = own, which: int = which) -> Expr:
                    r, t = (s[(0,) * len(s.shape)] for s in (rate, step))
                    x, g, *kept = (tensor[i] for tensor in own)
                    return self.updated(cast(x.dtype, r), cast(DType.F64, t), x, g, kept)[which]

                label = f"{name}_{len(outputs)}" if outputs else name
                axes = [f"i{d}" for d in range(len(own[0].shape))]
                outputs.append(b.compute(label, own[0].shape, element, axes=axes))
        return tuple(outputs)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        count = self._count([TensorType.of(x) for x in inputs])
        rate, step, *tensors = inputs
        done: list[list[Array]] = []
        with np.errstate(all="ignore"):
            for n in range(count):
                x, g, *kept = (t.astype(np.float64) for t in tensors[n::count])
                new = self.updated_arrays(float(rate.item()), int(step.item()), x, g, kept)
                done.append([np.asarray(v).astype(tensors[n].dtype) for v in new])
        return tuple(column for which in zip(*done, strict=True) for column in which)

    @classmethod
    def cases(cls, rng: np.random.Generator, **attrs: Any) -> Iterable[Sample]:
        """At the first step and later, of one tensor and of two."""
        groups, outputs = 2 + cls.statistics, 1 + cls.statistics
        for t in (0, 3):
            rate, step = np.array(0.1, np.float32), np.array(t, np.int64)
            one = [abs(normal(rng, 2, 3)) for _ in range(groups)]
            yield cls.sample(rate, step, *one, opset=1, outputs=outputs, **attrs)
            two = [abs(normal(rng, *s)).astype(np.float64) for _ in range(groups) for s in ((4,), (2, 2))]
            yield cls.sample(rate, step.reshape(1), *two, opset=1, outputs=2 * outputs, **attrs)


@dataclass(frozen=True, slots=True)
class Adagrad(Optimizer):
    """x - r · g / (√h + epsilon), where h sums the squares of the gradients."""

    onnx = ("ai.onnx.preview.training.Adagrad",)
    statistics = 1
    epsilon: float
    decay: float
    weight: float  # of the regularisation

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        decay, weight = node.real("decay_factor", 0.0), node.real("norm_coefficient", 0.0)
        return cls(node.real("epsilon", 1e-6), decay, weight), node.present

    def updated(self, rate: Expr, step: Expr, x: Expr, g: Expr, kept: Sequence[Expr]) -> list[Expr]:
        now = cast(x.dtype, cast(DType.F64, rate) / (1.0 + step * self.decay))
        slope = self.weight * x + g
        squares = kept[0] + slope * slope
        return [x - now * slope / (unary(UnaryOp.SQRT, squares) + self.epsilon), squares]

    def updated_arrays(
        self, rate: float, step: int, x: Array, g: Array, kept: Sequence[Array]
    ) -> list[Array]:
        slope = self.weight * x + g
        squares = kept[0] + slope * slope
        now = rate / (1 + step * self.decay)
        return [x - now * slope / (np.sqrt(squares) + self.epsilon), squares]

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield from cls.cases(rng)
        yield from cls.cases(rng, norm_coefficient=0.001, epsilon=1e-5, decay_factor=0.1)


@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """x - r · v / (√h + epsilon), where v and h are running means of the gradients and of their squares.

    After the first step the rate makes up for means that began at zero.
    """

    onnx = ("ai.onnx.preview.training.Adam",)
    statistics = 2
    alpha: float
    beta: float
    epsilon: float
    weight: float
    weight_after: float

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        alpha, beta, epsilon = node.real("alpha", 0.9), node.real("beta", 0.999), node.real("epsilon", 1e-6)
        weight, after = node.real("norm_coefficient", 0.0), node.real("norm_coefficient_post", 0.0)
        return cls(alpha, beta, epsilon, weight, after), node.present

    def updated(self, rate: Expr, step: Expr, x: Expr, g: Expr, kept: Sequence[Expr]) -> list[Expr]:
        def rest(base: float) -> Expr:
            return 1.0 - binary(BinaryOp.POW, const(base, DType.F64), step)

        first = cast(DType.F64, rate)
        later = first * unary(UnaryOp.SQRT, rest(self.beta)) / rest(self.alpha)
        now = cast(x.dtype, select(step > 0.0, later, first))
        slope = self.weight * x + g
        v = self.alpha * kept[0] + (1 - self.alpha) * slope
        h = self.beta * kept[1] + (1 - self.beta) * (slope * slope)
        new = x - now * (v / (unary(UnaryOp.SQRT, h) + self.epsilon))
        return [(1 - self.weight_after) * new, v, h]

    def updated_arrays(
        self, rate: float, step: int, x: Array, g: Array, kept: Sequence[Array]
    ) -> list[Array]:
        now = rate * math.sqrt(1 - self.beta**step) / (1 - self.alpha**step) if step > 0 else rate
        slope = self.weight * x + g
        v = self.alpha * kept[0] + (1 - self.alpha) * slope
        h = self.beta * kept[1] + (1 - self.beta) * (slope * slope)
        new = x - now * (v / (np.sqrt(h) + self.epsilon))
        return [(1 - self.weight_after) * new, v, h]

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield from cls.cases(rng)
        yield from cls.cases(
            rng, alpha=0.95, beta=0.85, epsilon=1e-2, norm_coefficient=0.001, norm_coefficient_post=0.01
        )


@dataclass(frozen=True, slots=True)
class Momentum(Optimizer):
    """x - r · v, where v is a decaying sum of gradients; with `nesterov`, x - r · (g + alpha · v)."""

    onnx = ("ai.onnx.preview.training.Momentum",)
    statistics = 1
    alpha: float
    beta: float
    weight: float
    nesterov: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        mode = node.text("mode", "")
        if mode not in ("standard", "nesterov"):
            raise UserError(f"Momentum: mode='{mode}' is neither 'standard' nor 'nesterov'")
        alpha, beta = node.real("alpha", 0.0), node.real("beta", 0.0)
        return cls(alpha, beta, node.real("norm_coefficient", 0.0), mode == "nesterov"), node.present

    def updated(self, rate: Expr, step: Expr, x: Expr, g: Expr, kept: Sequence[Expr]) -> list[Expr]:
        slope = self.weight * x + g
        share = select(step > 0.0, const(self.beta, x.dtype), const(1, x.dtype))
        v = self.alpha * kept[0] + share * slope
        return [x - rate * (slope + self.alpha * v if self.nesterov else v), v]

    def updated_arrays(
        self, rate: float, step: int, x: Array, g: Array, kept: Sequence[Array]
    ) -> list[Array]:
        slope = self.weight * x + g
        v = self.alpha * kept[0] + (self.beta if step > 0 else 1) * slope
        return [x - rate * (slope + self.alpha * v if self.nesterov else v), v]

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for mode in ("standard", "nesterov"):
            yield from cls.cases(rng, alpha=0.95, beta=0.1, norm_coefficient=0.001, mode=mode)
