"""Softmax in two parts: powers, and by what their rows have yet to be scaled.

A MatMul with the weights of a softmax can scale its own rows instead: there are fewer columns than keys, and what is
scaled is in registers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, UnaryOp, const, unary
from tilewright.ops.axes import narrow, widen
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.reduce import inner_index, kept_shape, read_kept, reduce_axes
from tilewright.ops.opdef import Kind, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class SoftmaxParts(Op):
    """exp(x - max x) along `axis`, and one over its sum: their product is the softmax of x."""

    kind = Kind.REDUCTION
    axis: int

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.dtype not in (DType.F32, DType.F64):
            raise self.misfit(inputs, "only f32 and f64: the sum of halves is no half")
        if not 0 <= self.axis < x.rank:
            raise self.misfit(inputs, f"has no axis {self.axis}")
        return x, TensorType(x.dtype, kept_shape(x.shape, (self.axis,)))

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        axes, rank = (self.axis,), len(x.shape)
        kept, over, names = kept_shape(x.shape, axes), x.shape[self.axis :][:1], reduce_axes(axes, rank)
        top = b.reduce(f"{name}_max", kept, over, lambda *i: x[inner_index(i, axes, rank)], "max", axes=names)

        def power(*i: Expr) -> Expr:
            return unary(UnaryOp.EXP_NONPOSITIVE, x[i] - read_kept(top, i, axes))

        powers = b.compute(name, x.shape, power)
        total = b.reduce(f"{name}_sum", kept, over, lambda *i: powers[inner_index(i, axes, rank)], axes=names)
        return powers, b.compute(f"{name}_scale", kept, lambda *i: const(1, x.dtype) / total[i])

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        types = self.infer([TensorType.of(x) for x in inputs])
        x = widen(inputs[0])
        with np.errstate(all="ignore"):
            powers = np.exp(x - x.max(self.axis, keepdims=True))
            scale = 1 / powers.sum(self.axis, keepdims=True)
        return tuple(narrow(v, t.dtype) for v, t in zip((powers, scale), types, strict=True))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3, 4) * 3
        special = np.array([[1, np.nan], [np.inf, 1], [-np.inf, 1], [-np.inf, -np.inf]], np.float32)
        yield Sample(cls(2), (x,))
        yield Sample(cls(1), (x.astype(np.float64),))
        yield Sample(cls(1), (special,))
