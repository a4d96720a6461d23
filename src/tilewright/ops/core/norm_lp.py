"""LpNormalization: vectors of length 1, by the sum of magnitudes or by the root of the sum of squares."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.expr import Buffer, Expr, UnaryOp, cast, const, equal, select, unary
from tilewright.ops.axes import FLOATS, accumulator, narrow, normal_axis, widen
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.reduce import inner_index, kept_shape, read_kept, reduce_axes
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class LpNormalization(Op):
    """x / its norm along `axis`; a vector of zeros stays one."""

    onnx = ("LpNormalization",)
    kind = Kind.REDUCTION
    axis: int
    p: int = 2

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        p = node.integer("p", 2)
        if p not in (1, 2):
            raise UserError(f"LpNormalization: p = {p} is neither 1 nor 2")
        return cls(normal_axis(node.integer("axis", -1), node.input(0).rank), p), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.dtype not in FLOATS or not 0 <= self.axis < x.rank:
            raise self.misfit(inputs, f"needs floats and an axis {self.axis}")
        return (x,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        rank, wide, axes = len(x.shape), accumulator(x.dtype), (self.axis,)

        def term(*i: Expr) -> Expr | tuple[Expr, Expr]:
            value = cast(wide, x[inner_index(i, axes, rank)])
            return unary(UnaryOp.ABS, value) if self.p == 1 else (value, value)

        kept, names = kept_shape(x.shape, axes), reduce_axes(axes, rank)
        total = b.reduce(f"{name}_sum", kept, (x.shape[self.axis],), term, axes=names)

        def length(*i: Expr) -> Expr:
            norm: Expr = total[i] if self.p == 1 else unary(UnaryOp.SQRT, total[i])
            return select(equal(norm, 0), const(1, wide), norm)

        norm = b.compute(f"{name}_norm", kept, length, axes=names[:rank])
        return (
            b.compute(name, x.shape, lambda *i: cast(x.dtype, cast(wide, x[i]) / read_kept(norm, i, axes))),
        )

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(x) for x in inputs])
        x = widen(inputs[0])
        with np.errstate(all="ignore"):
            norm = abs(x).sum(self.axis, keepdims=True) if self.p == 1 else None
            norm = np.sqrt((x * x).sum(self.axis, keepdims=True)) if norm is None else norm
            return (narrow(x / np.where(norm == 0, 1, norm), out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3, 4)
        for p in (1, 2):
            yield cls.sample(x, p=p)
            yield cls.sample(x, p=p, axis=1)
        yield cls.sample(np.array([[0, 0, 0], [1, np.nan, 2], [3, 0, -4]], np.float32))
        yield cls.sample(x.astype(np.float16), axis=0, opset=22)
