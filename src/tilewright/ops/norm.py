"""Normalisations by mean and variance: of layers, groups of channels, and with stored statistics (batch).

Variances are mean squares of centred values, which do not cancel. Half precision is computed in f32.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Fma, UnaryOp, cast, unary
from tilewright.ops.axes import FLOATS, accumulator, load_broadcast, narrow, normal_axis, try_broadcast, widen
from tilewright.ops.elementwise import normal
from tilewright.ops.opdef import Array, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.ops.reduce import inner_index, kept_shape, read_kept, reduce_axes
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class _Domain:
    """What statistics are taken over: `kept` places, and for each of them the elements `over`. `element` reads one,
    given the iterators named `axes` (first those of `kept`, then those of `over`)."""

    kept: tuple[int, ...]
    over: tuple[int, ...]
    axes: list[str]
    element: Callable[..., Expr]

    @property
    def count(self) -> int:
        return math.prod(self.over)

    def mean(self, b: FuncBuilder, name: str) -> Buffer:
        total = b.reduce(f"{name}_sum", self.kept, self.over, self.element, axes=self.axes)
        return b.compute(
            f"{name}_mean", self.kept, lambda *i: total[i] / self.count, axes=self.axes[: len(self.kept)]
        )

    def scale(self, b: FuncBuilder, mean: Buffer | None, epsilon: float, name: str) -> Buffer:
        """1 / sqrt(mean square + epsilon), of the values less their mean if it is given."""

        def square(*i: Expr) -> tuple[Expr, Expr]:
            value = self.element(*i)
            value = value if mean is None else value - mean[i[: len(self.kept)]]
            return value, value

        total = b.reduce(f"{name}_squares", self.kept, self.over, square, axes=self.axes)

        def root(*i: Expr) -> Expr:
            return 1 / unary(UnaryOp.SQRT, total[i] / self.count + epsilon)

        return b.compute(f"{name}_scale", self.kept, root, axes=self.axes[: len(self.kept)])


def _check_floats(op: Op, inputs: Sequence[TensorType]) -> None:
    if any(t.dtype is not inputs[0].dtype for t in inputs) or inputs[0].dtype not in FLOATS:
        raise op.misfit(inputs, "all must have the same float type")


@dataclass(frozen=True, slots=True)
class LayerNormalization(Op):
    """(x − mean) / sqrt(variance + epsilon) · scale + bias, with the statistics of the axes from `axis` on.

    Without `centred`, the mean is taken as 0: root mean square normalisation.
    """

    onnx = ("LayerNormalization", "RMSNormalization")
    kind = Kind.REDUCTION
    axis: int
    epsilon: float = 1e-5
    centred: bool = True

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        node.one_output("mean")
        axis = normal_axis(node.integer("axis", -1), node.input(0).rank)
        return cls(axis, node.real("epsilon", 1e-5), node.op_type == "LayerNormalization"), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2, 3)
        x = inputs[0]
        _check_floats(self, inputs)
        if not 0 <= self.axis < x.rank:
            raise self.misfit(inputs, f"has no axis {self.axis}")
        for t in inputs[1:]:
            if try_broadcast([t.shape, x.shape]) != x.shape:
                raise self.misfit(inputs, "scale and bias must broadcast to the first input")
        return (x,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, gain, *bias = inputs
        rank, wide = len(x.shape), accumulator(x.dtype)
        axes = tuple(range(self.axis, rank))

        def inner(*i: Expr) -> Expr:
            return cast(wide, x[inner_index(i, axes, rank)])

        domain = _Domain(kept_shape(x.shape, axes), x.shape[self.axis :], reduce_axes(axes, rank), inner)
        mean = domain.mean(b, name) if self.centred else None
        scale = domain.scale(b, mean, self.epsilon, name)

        def element(*i: Expr) -> Expr:
            value = cast(wide, x[i])
            value = value if mean is None else value - read_kept(mean, i, axes)
            value = value * read_kept(scale, i, axes) * cast(wide, load_broadcast(gain, i, x.shape))
            for t in bias:
                value = value + cast(wide, load_broadcast(t, i, x.shape))
            return cast(x.dtype, value)

        return (b.compute(name, x.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        x, gain, *bias = (widen(t) for t in inputs)
        axes = tuple(range(self.axis, x.ndim))
        with np.errstate(all="ignore"):
            centred = x - x.mean(axes, keepdims=True) if self.centred else x
            normed = centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + self.epsilon)
            return (narrow(normed * gain + (bias[0] if bias else 0), out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3, 4) + 2
        yield cls.sample(x, normal(rng, 4), normal(rng, 4))
        yield cls.sample(x, normal(rng, 4), epsilon=0.1)
        yield cls.sample(x, normal(rng, 3, 4), normal(rng, 3, 4), axis=1)
        yield cls.sample(x + 1000, normal(rng, 4), normal(rng, 4), axis=-1)
        yield cls.sample(np.array([[1, np.nan, 0], [1, 1, 1]], np.float32), normal(rng, 3), normal(rng, 3))
        yield cls.sample(*(normal(rng, *s).astype(np.float16) for s in ((2, 4), (4,), (4,))))
        yield cls.sample(x, normal(rng, 4), op_type="RMSNormalization", opset=23)
        yield cls.sample(x, normal(rng, 3, 4), op_type="RMSNormalization", opset=23, axis=1)


@dataclass(frozen=True, slots=True)
class GroupNormalization(Op):
    """Each group of channels of x[n, c, …] is brought to mean 0 and variance 1, then scaled and shifted.

    Scale and bias have one element per channel, or (before opset 21) per group. With as many groups as channels it is
    instance normalisation.
    """

    onnx = ("GroupNormalization", "InstanceNormalization")
    kind = Kind.REDUCTION
    groups: int
    epsilon: float = 1e-5

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x = node.input(0)
        instance = node.op_type == "InstanceNormalization" and x.rank > 1
        return cls(x.shape[1] if instance else node.integer("num_groups", 1), node.real("epsilon", 1e-5)), (
            0,
            1,
            2,
        )

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 3)
        x, gain, bias = inputs
        _check_floats(self, inputs)
        if x.rank < 2 or self.groups < 1 or x.shape[1] % self.groups:
            raise self.misfit(inputs, f"the channels do not make {self.groups} groups")
        if gain.shape != bias.shape or gain.shape not in ((x.shape[1],), (self.groups,)):
            raise self.misfit(inputs, "scale and bias need one element per channel or group")
        return (x,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, gain, bias = inputs
        wide, spatial = accumulator(x.dtype), x.shape[2:]
        each = x.shape[1] // self.groups
        places = [f"i{d}" for d in range(2, len(x.shape))]

        # A group of one channel needs no iterator inside the group.
        def inner(n: Expr, g: Expr, *i: Expr) -> Expr:
            return cast(wide, x[(n, g, *i)] if each == 1 else x[(n, g * each + i[0], *i[1:])])

        over = spatial if each == 1 else (each, *spatial)
        axes = ["n", "g", *places] if each == 1 else ["n", "g", "c", *places]
        domain = _Domain((x.shape[0], self.groups), over, axes, inner)
        mean = domain.mean(b, name)
        scale = domain.scale(b, mean, self.epsilon, name)

        def element(n: Expr, c: Expr, *i: Expr) -> Expr:
            g = c // each
            at = c if gain.shape[0] == x.shape[1] else g
            value = (cast(wide, x[(n, c, *i)]) - mean[n, g]) * scale[n, g]
            return cast(x.dtype, value * cast(wide, gain[at]) + cast(wide, bias[at]))

        return (b.compute(name, x.shape, element, axes=["n", "c", *places]),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        x, gain, bias = (widen(t) for t in inputs)
        groups = x.reshape(x.shape[0], self.groups, -1)
        column = (-1, *[1] * (x.ndim - 2))
        gain, bias = (np.repeat(t, x.shape[1] // t.size).reshape(column) for t in (gain, bias))
        with np.errstate(all="ignore"):
            centred = groups - groups.mean(2, keepdims=True)
            normed = centred / np.sqrt((centred * centred).mean(2, keepdims=True) + self.epsilon)
            return (narrow(normed.reshape(x.shape) * gain + bias, out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 4, 3, 2) + 1
        yield cls.sample(x, normal(rng, 4), normal(rng, 4), num_groups=2, opset=21)
        yield cls.sample(x, normal(rng, 2), normal(rng, 2), num_groups=2, opset=18)
        yield cls.sample(x, normal(rng, 4), normal(rng, 4), op_type="InstanceNormalization", epsilon=0.01)
        yield cls.sample(*(normal(rng, *s) for s in ((1, 2, 5), (2,), (2,))), op_type="InstanceNormalization")


@dataclass(frozen=True, slots=True)
class BatchNormalization(Op):
    """(x − mean) / sqrt(variance + epsilon) · scale + bias per channel, with stored statistics.

    Scale and shift of a channel are blocks of their own: they read only weights.
    """

    onnx = ("BatchNormalization",)
    kind = Kind.ELEMENTWISE
    epsilon: float = 1e-5

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        if node.outputs > 1 or node.integer("training_mode", 0):
            raise UserError("BatchNormalization in training mode", hint="export the model for inference")
        if not node.integer("spatial", 1):
            raise UserError("BatchNormalization with spatial=0 is not supported")
        return cls(node.real("epsilon", 1e-5)), (0, 1, 2, 3, 4)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 5)
        x = inputs[0]
        if any(t.dtype not in FLOATS for t in inputs):
            raise self.misfit(inputs, "only floats")
        if x.rank < 2 or any(t.shape != x.shape[1:2] for t in inputs[1:]):
            raise self.misfit(inputs, "scale, bias, mean and variance need one element per channel (axis 1)")
        return (x,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, gain, bias, mean, variance = inputs
        wide, channels = accumulator(x.dtype), x.shape[1:2]

        def factor(c: Expr) -> Expr:
            return cast(wide, gain[c]) / unary(UnaryOp.SQRT, cast(wide, variance[c]) + self.epsilon)

        scale = b.compute(f"{name}_scale", channels, factor)

        def offset(c: Expr) -> Expr:
            return cast(wide, bias[c]) - cast(wide, mean[c]) * scale[c]

        shift = b.compute(f"{name}_shift", channels, offset)

        def element(*i: Expr) -> Expr:
            return cast(x.dtype, Fma(cast(wide, x[i]), scale[i[1]], shift[i[1]]))

        return (b.compute(name, x.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, *channels = (widen(t) for t in inputs)
        gain, bias, mean, variance = (t.reshape(-1, *[1] * (x.ndim - 2)) for t in channels)
        with np.errstate(all="ignore"):
            value = (x - mean) / np.sqrt(variance + self.epsilon) * gain + bias
        return (narrow(value, DType.of(inputs[0].dtype)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        def weights(n: int) -> tuple[Array, ...]:
            return normal(rng, n), normal(rng, n), normal(rng, n), abs(normal(rng, n)) + 0.1

        yield cls.sample(normal(rng, 2, 3, 2, 2), *weights(3))
        yield cls.sample(normal(rng, 4, 3), *weights(3), epsilon=0.01)
        yield cls.sample(normal(rng, 2, 2, 5), *weights(2), opset=9)
