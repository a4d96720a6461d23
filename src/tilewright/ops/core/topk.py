"""TopK: the largest or smallest elements along an axis, in order.

Of equal elements the first is better. NaN counts as larger than every number.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Buffer, Expr
from tilewright.ops.axes import NUMBERS, normal_axis
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.order_key import order_key
from tilewright.ops.core.row_program import RowProgram
from tilewright.ops.core.row_select import best_of_row
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder
from tilewright.tir.stmt import If, Stmt, Store, seq


def top(x: Array, axis: int, k: int, largest: bool) -> tuple[Array, Array]:
    """Values and places, best first; of equal ones the first."""
    if largest:  # stable from the back: equal elements keep their order when the order is reversed
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    places = np.asarray(np.take(order, np.arange(k), axis), np.int64)
    return np.take_along_axis(x, places, axis), places


@dataclass(frozen=True, slots=True)
class TopK(Op):
    onnx = ("TopK",)
    kind = Kind.REDUCTION
    axis: int
    k: int
    largest: bool = True

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        axis = normal_axis(node.integer("axis", -1), node.input(0).rank)
        (k,) = node.value_integers(1, "k") if node.opset >= 10 else (node.integer("k", 0),)
        return cls(axis, k, bool(node.integer("largest", 1))), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.dtype not in NUMBERS:
            raise self.misfit(inputs, f"not defined for {x.dtype.value}")
        if not 0 <= self.axis < x.rank or not 0 <= self.k <= x.shape[self.axis]:
            raise self.misfit(inputs, f"has no {self.k} elements on axis {self.axis}")
        shape = (*x.shape[: self.axis], self.k, *x.shape[self.axis + 1 :])
        return TensorType(x.dtype, shape), TensorType(INDEX, shape)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,), axis, k = inputs, self.axis, self.k
        kept, _ = self.infer([TensorType(x.dtype, x.shape)])
        values = b.ahead(name, kept.shape, x.dtype)
        places = b.ahead(f"{name}_1", kept.shape, INDEX)
        rows = (*x.shape[:axis], *x.shape[axis + 1 :])

        def body(*i: Expr) -> Stmt:
            row = i[:-1]

            def at(j: Expr) -> tuple[Expr, ...]:
                return (*row[:axis], j, *row[axis:])

            def keep(place: Expr, rank: Expr) -> Stmt:
                both = seq(Store(values, at(rank), x[at(place)]), Store(places, at(rank), place))
                return both if k == x.shape[axis] else If(rank < k, both)

            p = RowProgram(b, name, rows, row)
            return best_of_row(
                p, x.shape[axis], k, x.dtype, lambda j: order_key(x[at(j)], self.largest), keep
            )

        b.update(name, (*rows, 1), (len(rows),), body)
        return values, places

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return top(inputs[0], self.axis, self.k, self.largest)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = rng.integers(-3, 3, size=(3, 6, 2)).astype(np.float32)

        def count(k: int) -> Array:
            return np.array([k], np.int64)

        for largest in (0, 1):
            yield cls.sample(x, count(3), axis=1, largest=largest, outputs=2)
            yield cls.sample(x.astype(np.int64), count(6), axis=1, largest=largest, outputs=2)
            yield cls.sample(normal(rng, 5), count(1), largest=largest, outputs=2)
            yield cls.sample(x.astype(np.int32), count(2), axis=0, largest=largest, outputs=2)
            special = np.array([1, np.nan, -np.inf, 7, np.nan, np.inf, -np.inf], np.float32)
            yield Sample(cls(0, 5, bool(largest)), (special,))
            yield Sample(cls(0, 3, bool(largest)), (np.array([3, 250, 0, 250, 9], np.uint8),))
            ends = np.iinfo(np.int64)
            yield Sample(cls(0, 4, bool(largest)), (np.array([ends.max, 0, ends.min, -1, ends.max]),))
            yield Sample(cls(0, 3, bool(largest)), (normal(rng, 7).astype(np.float16),))
            many = rng.integers(-9, 9, size=(2, 40)).astype(np.float64)
            yield cls.sample(many, count(17), largest=largest, outputs=2)
        yield cls.sample(x, k=2, opset=9, outputs=2)
