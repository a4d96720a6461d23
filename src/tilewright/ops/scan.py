"""CumSum: sums of all elements up to each place.

It is written as one reduction of guarded elements, quadratic in the axis: it is used on masks and positions, where
that is small, and the block needs nothing that reductions do not have.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, cast, const, select
from tilewright.ops.axes import NUMBERS, accumulator, narrow, normal_axis, widen
from tilewright.ops.elementwise import normal
from tilewright.ops.opdef import Array, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class CumSum(Op):
    """The sum up to and including each element, or without it if `exclusive`; from the end if `reverse`."""

    onnx = ("CumSum",)
    kind = Kind.REDUCTION
    axis: int
    exclusive: bool = False
    reverse: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        axis = normal_axis(int(node.value(1, "the axis").item()), node.input(0).rank)
        return cls(axis, bool(node.integer("exclusive", 0)), bool(node.integer("reverse", 0))), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.dtype not in NUMBERS or not 0 <= self.axis < x.rank:
            raise self.misfit(inputs, f"needs numbers and an axis {self.axis}")
        return (x,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        wide = accumulator(x.dtype)

        def term(*i: Expr) -> Expr:
            *at, k = i
            here = at[self.axis]
            first, second = (here, k) if self.reverse else (k, here)
            counts = first < second if self.exclusive else first <= second
            return select(counts, cast(wide, x[(*at[: self.axis], k, *at[self.axis + 1 :])]), const(0, wide))

        axes = [f"i{d}" for d in range(len(x.shape))]
        extent = x.shape[self.axis : self.axis + 1]
        if wide is x.dtype:
            return (b.reduce(name, x.shape, extent, term, axes=[*axes, "k"]),)
        total = b.reduce(f"{name}_sum", x.shape, extent, term, axes=[*axes, "k"])
        return (b.compute(name, x.shape, lambda *i: cast(x.dtype, total[i]), axes=axes),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = widen(inputs[0])
        x = np.flip(x, self.axis) if self.reverse else x
        total = np.cumsum(x, self.axis, dtype=x.dtype)
        if self.exclusive:
            first = [slice(None)] * x.ndim
            first[self.axis] = slice(0, 1)
            total = np.roll(total, 1, self.axis)
            total[tuple(first)] = 0
        return (narrow(np.flip(total, self.axis) if self.reverse else total, DType.of(inputs[0].dtype)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x, axis = normal(rng, 2, 5), np.array(-1, np.int64)
        for exclusive in (0, 1):
            for reverse in (0, 1):
                yield cls.sample(x, axis, exclusive=exclusive, reverse=reverse)
        yield cls.sample(rng.integers(-9, 9, size=(3, 2)).astype(np.int64), np.array(0, np.int64))
