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
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.reduce import inner_index, kept_shape, read_kept, reduce_axes
from tilewright.ops.opdef import ONNX_DTYPES, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
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

    def squares(self, b: FuncBuilder, mean: Buffer | None, name: str) -> Buffer:
        """The sum of the squares, of the values less their mean if it is given."""

        def square(*i: Expr) -> tuple[Expr, Expr]:
            value = self.element(*i)
            value = value if mean is None else value - mean[i[: len(self.kept)]]
            return value, value

        return b.reduce(f"{name}_squares", self.kept, self.over, square, axes=self.axes)

    def scale(self, b: FuncBuilder, mean: Buffer | None, epsilon: float, name: str) -> Buffer:
        """1 / sqrt(mean square + epsilon), of the values less their mean if it is given."""
        total = self.squares(b, mean, name)

        def root(*i: Expr) -> Expr:
            return 1 / unary(UnaryOp.SQRT, total[i] / self.count + epsilon)

        return b.compute(f"{name}_scale", self.kept, root, axes=self.axes[: len(self.kept)])


def _check_floats(op: Op, inputs: Sequence[TensorType]) -> None:
    if any(t.dtype is not inputs[0].dtype for t in inputs) or inputs[0].dtype not in FLOATS:
        raise op.misfit(inputs, "all must have the same float type")


@dataclass(frozen=True, slots=True)
class LayerNormalization(Op):
    """(x − mean) / sqrt(variance + epsilon) · scale + bias, with the statistics of the axes from `axis` on.

    Without `centred`, the mean is taken as 0: root mean square normalisation. Further outputs are the mean and
    1 / sqrt(variance + epsilon), in the type `stash`.
    """

    onnx = ("LayerNormalization", "RMSNormalization")
    kind = Kind.REDUCTION
    axis: int
    epsilon: float = 1e-5
    centred: bool = True
    outputs: int = 1
    stash: DType = DType.F32

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        axis = normal_axis(node.integer("axis", -1), node.input(0).rank)
        stash = ONNX_DTYPES.get(node.integer("stash_type", 1))
        if stash not in FLOATS:
            raise UserError(f"{node.op_type}: stash_type {node.integer('stash_type', 1)} is no float type")
        centred = node.op_type == "LayerNormalization"
        return cls(axis, node.real("epsilon", 1e-5), centred, node.outputs, stash), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2, 3)
        x, gain = inputs[:2]
        if any(t.dtype not in FLOATS for t in inputs):
            raise self.misfit(inputs, "only floats")
        if self.centred and any(t.dtype is not x.dtype for t in inputs):
            raise self.misfit(inputs, "all must have the same float type")
        if not 0 <= self.axis < x.rank:
            raise self.misfit(inputs, f"has no axis {self.axis}")
        for t in inputs[1:]:
            if try_broadcast([t.shape, x.shape]) != x.shape:
                raise self.misfit(inputs, "scale and bias must broadcast to the first input")
        statistic = TensorType(self.stash, kept_shape(x.shape, range(self.axis, x.rank)))
        return (TensorType(gain.dtype, x.shape), statistic, statistic)[: self.outputs]

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
            return cast(gain.dtype, value)

        def stashed(statistic: Buffer, k: int) -> Buffer:
            return b.compute(f"{name}_{k}", domain.kept, lambda *i: cast(self.stash, statistic[i]))

        statistics = [t for t in (mean, scale) if t is not None][: self.outputs - 1]
        return b.compute(name, x.shape, element), *(stashed(t, k) for k, t in enumerate(statistics, 1))

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        types = self.infer([TensorType.of(t) for t in inputs])
        x, gain, *bias = (widen(t) for t in inputs)
        axes = tuple(range(self.axis, x.ndim))
        with np.errstate(all="ignore"):
            mean = x.mean(axes, keepdims=True) if self.centred else np.zeros(())
            scale = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + self.epsilon)
            y = (x - mean) * scale * gain + (bias[0] if bias else 0)
            return tuple(narrow(v, t.dtype) for v, t in zip((y, mean, scale), types, strict=False))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3, 4) + 2
        yield cls.sample(x, normal(rng, 4), normal(rng, 4))
        yield cls.sample(x, normal(rng, 4), epsilon=0.1)
        yield cls.sample(x, normal(rng, 3, 4), normal(rng, 3, 4), axis=1)
        yield cls.sample(x, normal(rng, 3, 4), normal(rng, 3, 4), axis=1, outputs=3)
        yield cls.sample(x, normal(rng, 4), axis=-1, outputs=2)
        yield cls.sample(x + 1000, normal(rng, 4), normal(rng, 4), axis=-1)
        yield cls.sample(np.array([[1, np.nan, 0], [1, 1, 1]], np.float32), normal(rng, 3), normal(rng, 3))
        halves = [normal(rng, *s).astype(np.float16) for s in ((2, 4), (4,), (4,))]
        yield cls.sample(*halves)
        yield cls.sample(*halves, outputs=3)
        yield cls.sample(x, normal(rng, 4), op_type="RMSNormalization", opset=23)
        yield cls.sample(x, normal(rng, 3, 4), op_type="RMSNormalization", opset=23, axis=1)
        yield Sample(cls(1, centred=False), (halves[0], normal(rng, 4)))


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


def _check_channels(op: Op, inputs: Sequence[TensorType]) -> None:
    op.check_arity(inputs, 5)
    x = inputs[0]
    if any(t.dtype not in FLOATS for t in inputs):
        raise op.misfit(inputs, "only floats")
    if x.rank < 2 or any(t.shape != x.shape[1:2] for t in inputs[1:]):
        raise op.misfit(inputs, "scale, bias, mean and variance need one element per channel (axis 1)")


@dataclass(frozen=True, slots=True)
class BatchNormalization(Op):
    """(x − mean) / sqrt(variance + epsilon) · scale + bias per channel, with stored statistics.

    Scale and shift of a channel are blocks of their own: they read only weights.
    """

    onnx = ("BatchNormalization",)
    kind = Kind.ELEMENTWISE
    epsilon: float = 1e-5

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Op, tuple[int, ...]]:
        if not node.integer("spatial", 1):
            raise UserError("BatchNormalization with spatial=0 is not supported")
        epsilon, taken = node.real("epsilon", 1e-5), (0, 1, 2, 3, 4)
        # Before opset 14, a node that is asked for statistics is in training.
        if node.integer("training_mode", int(node.outputs > 1 and node.opset < 14)):
            return BatchNormalizationInTraining(epsilon, node.real("momentum", 0.9), node.outputs), taken
        node.one_output("of statistics, outside of training")
        return cls(epsilon), taken

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        _check_channels(self, inputs)
        return (inputs[0],)

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
        x = normal(rng, 2, 3, 2, 2) + 1
        yield cls.sample(x, *weights(3), momentum=0.8, opset=15, training_mode=1, outputs=3)
        for outputs in (1, 5):  # before opset 14
            yield Sample(BatchNormalizationInTraining(1e-3, 0.8, outputs), (x, *weights(3)))
        halves = (t.astype(np.float16) for t in (normal(rng, 3, 2), *weights(2)))
        yield cls.sample(*halves, opset=15, training_mode=1, outputs=3)


@dataclass(frozen=True, slots=True)
class BatchNormalizationInTraining(Op):
    """BatchNormalization with the statistics of x itself; further outputs are the given mean and variance moved towards
    those by 1 − `momentum`, and then (before opset 14) the statistics of x.
    """

    kind = Kind.REDUCTION
    epsilon: float
    momentum: float
    outputs: int = 1

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        _check_channels(self, inputs)
        x, _, _, mean, variance = inputs
        return (x, mean, variance, mean, variance)[: self.outputs]

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, gain, bias, *running = inputs
        wide, channels = accumulator(x.dtype), x.shape[1:2]

        def inner(c: Expr, n: Expr, *i: Expr) -> Expr:
            return cast(wide, x[(n, c, *i)])

        places = [f"i{d}" for d in range(2, len(x.shape))]
        domain = _Domain(channels, (x.shape[0], *x.shape[2:]), ["c", "n", *places], inner)
        mean = domain.mean(b, name)
        squares = domain.squares(b, mean, name)
        variance = b.compute(f"{name}_variance", channels, lambda *c: squares[c] / domain.count, axes=["c"])

        def factor(c: Expr) -> Expr:
            return cast(wide, gain[c]) / unary(UnaryOp.SQRT, variance[c] + self.epsilon)

        scale = b.compute(f"{name}_scale", channels, factor)

        def element(*i: Expr) -> Expr:
            c = i[1]
            return cast(x.dtype, (cast(wide, x[i]) - mean[c]) * scale[c] + cast(wide, bias[c]))

        def statistic(k: int) -> Buffer:
            old, new = running[k % 2], (mean, variance)[k % 2]

            def moved(c: Expr) -> Expr:
                value = cast(wide, old[c]) * self.momentum + new[c] * (1 - self.momentum) if k < 2 else new[c]
                return cast(old.dtype, value)

            return b.compute(f"{name}_{k + 1}", channels, moved)

        return b.compute(name, x.shape, element), *(statistic(k) for k in range(self.outputs - 1))

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        types = self.infer([TensorType.of(t) for t in inputs])
        x, gain, bias, *running = (widen(t) for t in inputs)
        axes, column = (0, *range(2, x.ndim)), (-1, *[1] * (x.ndim - 2))
        with np.errstate(all="ignore"):
            new = x.mean(axes), x.var(axes)
            root = np.sqrt(new[1] + self.epsilon).reshape(column)
            y = (x - new[0].reshape(column)) / root * gain.reshape(column) + bias.reshape(column)
            moved = [o * self.momentum + n * (1 - self.momentum) for o, n in zip(running, new, strict=True)]
        return tuple(narrow(v, t.dtype) for v, t in zip((y, *moved, *new), types, strict=False))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        return ()
