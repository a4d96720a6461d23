"""Softmax and its logarithm. The maximum is subtracted first, so nothing overflows; half precision runs in f32."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.expr import Buffer, Expr, UnaryOp, cast, const, unary
from tilewright.ops.axes import FLOATS, accumulator, narrow, normal_axis, widen
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
