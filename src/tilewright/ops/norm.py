"""Normalisations: softmax, layer and batch normalisation.

Softmax subtracts the maximum first, and variances are sums of squares of centred values: neither overflows nor
cancels. Half precision is computed in f32 inside.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.expr import Buffer, Expr, UnaryOp, cast, unary
from tilewright.ops.axes import FLOATS, accumulator, load_broadcast, narrow, normal_axis, try_broadcast, widen
from tilewright.ops.elementwise import normal
from tilewright.ops.opdef import Array, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.ops.reduce import inner_index, kept_shape, read_kept, reduce_axes
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class Softmax(Op):
    """exp(x) over its sum, jointly along `axes`; with `log`, the logarithm of that.

    Before opset 13 ONNX flattened all axes from `axis` on, which is softmax along several axes.
    """

    onnx = ("Softmax", "LogSoftmax")
    kind = Kind.REDUCTION
    axes: tuple[int, ...]
    log: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        rank = node.input(0).rank
        axis = normal_axis(node.integer("axis", 1 if node.opset < 13 else -1), rank)
        axes = tuple(range(axis, rank)) if node.opset < 13 else (axis,)
        return cls(axes, node.op_type == "LogSoftmax"), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.dtype not in FLOATS:
            raise self.misfit(inputs, "only floats")
        if not self.axes or any(not 0 <= a < x.rank for a in self.axes):
            raise self.misfit(inputs, f"has no axes {list(self.axes)}")
        return (x,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        axes, rank, wide = self.axes, len(x.shape), accumulator(x.dtype)
        kept, over = kept_shape(x.shape, axes), [x.shape[a] for a in axes]
        names = reduce_axes(axes, rank)
        top = b.reduce(f"{name}_max", kept, over, lambda *i: x[inner_index(i, axes, rank)], "max", axes=names)

        def shift(*i: Expr) -> Expr:
            return cast(wide, x[i]) - cast(wide, read_kept(top, i, axes))

        if self.log:
            shifted = b.compute(f"{name}_shift", x.shape, shift)
            total = b.reduce(
                f"{name}_sum",
                kept,
                over,
                lambda *i: unary(UnaryOp.EXP, shifted[inner_index(i, axes, rank)]),
                axes=names,
            )
            rest = b.compute(f"{name}_log", kept, lambda *i: unary(UnaryOp.LOG, total[i]))
            return (
                b.compute(name, x.shape, lambda *i: cast(x.dtype, shifted[i] - read_kept(rest, i, axes))),
            )

        powers = b.compute(f"{name}_exp", x.shape, lambda *i: unary(UnaryOp.EXP, shift(*i)))
        total = b.reduce(f"{name}_sum", kept, over, lambda *i: powers[inner_index(i, axes, rank)], axes=names)
        return (b.compute(name, x.shape, lambda *i: cast(x.dtype, powers[i] / read_kept(total, i, axes))),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(x) for x in inputs])
        x = widen(inputs[0])
        with np.errstate(all="ignore"):
            shifted = x - x.max(self.axes, keepdims=True)
            total = np.exp(shifted).sum(self.axes, keepdims=True)
            return (narrow(shifted - np.log(total) if self.log else np.exp(shifted) / total, out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3, 4) * 3
        special = np.array(
            [[1, np.nan], [np.inf, 1], [-np.inf, 1], [-np.inf, -np.inf], [1e30, 1e30]], np.float32
        )
        for name in cls.onnx:
            yield cls.sample(x, op_type=name)
            yield cls.sample(x, op_type=name, axis=1)
            yield cls.sample(x, op_type=name, opset=11)
            yield cls.sample(special, op_type=name)
            yield cls.sample(x.astype(np.float16), op_type=name, axis=0)


@dataclass(frozen=True, slots=True)
class LayerNormalization(Op):
    """(x − mean) / sqrt(variance + epsilon) · scale + bias, with the statistics of the axes from `axis` on."""

    onnx = ("LayerNormalization",)
    kind = Kind.REDUCTION
    axis: int
    epsilon: float = 1e-5

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        node.one_output("mean")
        return cls(
            normal_axis(node.integer("axis", -1), node.input(0).rank), node.real("epsilon", 1e-5)
        ), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2, 3)
        x = inputs[0]
        if any(t.dtype is not x.dtype for t in inputs) or x.dtype not in FLOATS:
            raise self.misfit(inputs, "all must have the same float type")
        if not 0 <= self.axis < x.rank:
            raise self.misfit(inputs, f"has no axis {self.axis}")
        for t in inputs[1:]:
            if try_broadcast([t.shape, x.shape]) != x.shape:
                raise self.misfit(inputs, "scale and bias must broadcast to the first input")
        return (x,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, scale, *bias = inputs
        rank, wide = len(x.shape), accumulator(x.dtype)
        axes = tuple(range(self.axis, rank))
        kept, over, names = kept_shape(x.shape, axes), x.shape[self.axis :], reduce_axes(axes, rank)
        count = math.prod(over)

        total = b.reduce(
            f"{name}_sum", kept, over, lambda *i: cast(wide, x[inner_index(i, axes, rank)]), axes=names
        )
        mean = b.compute(f"{name}_mean", kept, lambda *i: total[i] / count)

        def centred(i: Sequence[Expr]) -> Expr:
            return cast(wide, x[tuple(i)]) - read_kept(mean, i, axes)

        def square(*i: Expr) -> tuple[Expr, Expr]:
            value = centred(inner_index(i, axes, rank))
            return value, value

        squares = b.reduce(f"{name}_squares", kept, over, square, axes=names)
        rsqrt = b.compute(
            f"{name}_rsqrt", kept, lambda *i: 1 / unary(UnaryOp.SQRT, squares[i] / count + self.epsilon)
        )

        def element(*i: Expr) -> Expr:
            value = centred(i) * read_kept(rsqrt, i, axes) * cast(wide, load_broadcast(scale, i, x.shape))
            for t in bias:
                value = value + cast(wide, load_broadcast(t, i, x.shape))
            return cast(x.dtype, value)

        return (b.compute(name, x.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        x, scale, *bias = (widen(t) for t in inputs)
        axes = tuple(range(self.axis, x.ndim))
        with np.errstate(all="ignore"):
            centred = x - x.mean(axes, keepdims=True)
            normed = centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + self.epsilon)
            return (narrow(normed * scale + (bias[0] if bias else 0), out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3, 4) + 2
        yield cls.sample(x, normal(rng, 4), normal(rng, 4))
        yield cls.sample(x, normal(rng, 4), epsilon=0.1)
        yield cls.sample(x, normal(rng, 3, 4), normal(rng, 3, 4), axis=1)
        yield cls.sample(x + 1000, normal(rng, 4), normal(rng, 4), axis=-1)
        yield cls.sample(np.array([[1, np.nan, 0], [1, 1, 1]], np.float32), normal(rng, 3), normal(rng, 3))
        yield cls.sample(
            x.astype(np.float16), normal(rng, 4).astype(np.float16), normal(rng, 4).astype(np.float16)
        )
