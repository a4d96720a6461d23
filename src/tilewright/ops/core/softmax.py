"""Softmax, its logarithm, and Hardmax.

The maximum is subtracted first, so nothing overflows; half precision runs in f32.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.expr import (
    BinaryOp,
    Buffer,
    Expr,
    UnaryOp,
    as_index,
    binary,
    cast,
    const,
    equal,
    select,
    unary,
)
from tilewright.ops.axes import FLOATS, accumulator, narrow, normal_axis, widen
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.reduce import inner_index, kept_shape, read_kept, reduce_axes
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder


def _joint_axes(node: OnnxNode) -> tuple[int, ...]:
    """Before opset 13 ONNX flattened all axes from `axis` on, which is softmax along several axes."""
    rank = node.input(0).rank
    if node.opset < 13:
        return tuple(range(normal_axis(node.integer("axis", 1), rank), rank))
    return (normal_axis(node.integer("axis", -1), rank),)


def _check(op: Op, inputs: Sequence[TensorType], axes: Sequence[int]) -> None:
    op.check_arity(inputs, 1)
    (x,) = inputs
    if x.dtype not in FLOATS:
        raise op.misfit(inputs, "only floats")
    if not axes or any(not 0 <= a < x.rank for a in axes):
        raise op.misfit(inputs, f"has no axes {list(axes)}")


@dataclass(frozen=True, slots=True)
class Softmax(Op):
    """exp(x) over its sum, jointly along `axes`; with `log`, the logarithm of that."""

    onnx = ("Softmax", "LogSoftmax")
    kind = Kind.REDUCTION
    axes: tuple[int, ...]
    log: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(_joint_axes(node), node.op_type == "LogSoftmax"), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        _check(self, inputs, self.axes)
        return (inputs[0],)

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
                lambda *i: unary(UnaryOp.EXP_NONPOSITIVE, shifted[inner_index(i, axes, rank)]),
                axes=names,
            )
            rest = b.compute(f"{name}_log", kept, lambda *i: unary(UnaryOp.LOG, total[i]))
            return (
                b.compute(name, x.shape, lambda *i: cast(x.dtype, shifted[i] - read_kept(rest, i, axes))),
            )

        powers = b.compute(f"{name}_exp", x.shape, lambda *i: unary(UnaryOp.EXP_NONPOSITIVE, shift(*i)))
        total = b.reduce(f"{name}_sum", kept, over, lambda *i: powers[inner_index(i, axes, rank)], axes=names)
        # One division a row: a product with the reciprocal is within an ulp of the quotient. The sum is at least one.
        scale = b.compute(f"{name}_scale", kept, lambda *i: const(1, wide) / total[i])
        return (b.compute(name, x.shape, lambda *i: cast(x.dtype, powers[i] * read_kept(scale, i, axes))),)

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
class Hardmax(Op):
    """1 at the first largest element along `axes` (in the order of memory), and 0 elsewhere. NaN is largest."""

    onnx = ("Hardmax",)
    kind = Kind.REDUCTION
    axes: tuple[int, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(_joint_axes(node)), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        _check(self, inputs, self.axes)
        return (inputs[0],)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        axes, rank = self.axes, len(x.shape)
        kept, over = kept_shape(x.shape, axes), [x.shape[a] for a in axes]
        names = reduce_axes(axes, rank)
        top = b.reduce(f"{name}_max", kept, over, lambda *i: x[inner_index(i, axes, rank)], "max", axes=names)

        def place(i: Sequence[Expr]) -> Expr:
            """The number of an element among those it is compared with."""
            flat: Expr = const(0)
            for a in axes:
                flat = flat * x.shape[a] + i[a]
            return flat

        def found(*i: Expr) -> Expr:
            at = inner_index(i, axes, rank)
            is_top = binary(BinaryOp.OR, equal(x[at], top[i[:rank]]), binary(BinaryOp.NE, x[at], x[at]))
            return select(is_top, place(at), as_index(math.prod(over)))

        first = b.reduce(f"{name}_first", kept, over, found, "min", axes=names)

        def element(*i: Expr) -> Expr:
            return cast(x.dtype, equal(read_kept(first, i, axes), place(i)))

        return (b.compute(name, x.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        rows = np.moveaxis(widen(x), self.axes, range(-len(self.axes), 0))
        flat = rows.reshape((*rows.shape[: x.ndim - len(self.axes)], -1))
        hits = np.zeros(flat.shape, x.dtype)
        if flat.size:
            np.put_along_axis(hits, flat.argmax(-1)[..., None], np.ones((), x.dtype), -1)
        back = np.moveaxis(hits.reshape(rows.shape), range(-len(self.axes), 0), self.axes)
        return (np.ascontiguousarray(back).reshape(x.shape),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = rng.integers(0, 3, size=(2, 3, 4)).astype(np.float32)
        for axis in (0, 1, -1):
            yield cls.sample(x, axis=axis)
        yield cls.sample(x, opset=11)
        yield cls.sample(x, opset=11, axis=0)
        yield cls.sample(x.astype(np.float64))
        yield Sample(cls((1,)), (x.astype(np.float16),))
        yield Sample(
            cls((1,)), (np.array([[1, np.nan, 7, np.nan], [-np.inf] * 4, [2, np.inf, 3, 4]], np.float32),)
        )
