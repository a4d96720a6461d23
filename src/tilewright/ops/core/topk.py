"""TopK: the largest or smallest elements along an axis, in order.

Of equal elements the first is better. NaN counts as larger than every number.

The best so far are a heap whose root is the worst of them. An element that beats the root takes its place and sinks
to where it belongs, which few do after the first; in the end the root is taken out again and again, and the best sinks
in instead. So the work is that of one pass over the elements and of sorting few.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import (
    BinaryOp,
    Buffer,
    Expr,
    Var,
    as_index,
    binary,
    cast,
    const,
    equal,
    minimum,
    select,
)
from tilewright.ops.axes import NUMBERS, accumulator, normal_axis
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder, identity
from tilewright.tir.stmt import For, If, Stmt, Store, seq


def top(x: Array, axis: int, k: int, largest: bool) -> tuple[Array, Array]:
    """Values and places, best first; of equal ones the first."""
    if largest:  # stable from the back: equal elements keep their order when all is turned around
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
        k = int(node.value(1, "k").item()) if node.opset >= 10 else node.integer("k", 0)
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
        worst, best = self._extremes(x.dtype)
        heap = _Heap(
            self,
            b.ahead(f"{name}_heap", kept.shape, x.dtype),
            b.ahead(f"{name}_heap_places", kept.shape, INDEX),
            b.ahead(f"{name}_here", kept.shape[:axis] + kept.shape[axis + 1 :], INDEX),
            b.ahead(f"{name}_next", kept.shape[:axis] + kept.shape[axis + 1 :], INDEX),
        )
        values = b.ahead(name, kept.shape, x.dtype)
        places = b.ahead(f"{name}_1", kept.shape, INDEX)
        # The heap starts full, of what is worse than every element, since it comes after the last.
        b.compute(f"{name}_no_values", kept.shape, lambda *i: worst, out=heap.values)
        b.compute(f"{name}_no_places", kept.shape, lambda *i: const(x.shape[axis]), out=heap.places)

        def keep(*i: Expr) -> Stmt:
            row, new = (*i[:axis], *i[axis + 1 :]), (x[i], i[axis])
            return If(heap.is_worse(row, as_index(0), new), heap.sink(row, new, b.var(f"{name}_down")))

        def take(*i: Expr) -> Stmt:
            row = (*i[:axis], *i[axis + 1 :])
            at = (*i[:axis], as_index(k - 1) - i[axis], *i[axis + 1 :])
            value, place = heap.at(row, as_index(0))
            down = b.var(f"{name}_out")
            return seq(
                Store(values, at, value), Store(places, at, place), heap.sink(row, (best, const(-1)), down)
            )

        b.update(f"{name}_keep", x.shape, (axis,), keep)
        b.update(name, kept.shape, (axis,), take)
        return values, places

    def _extremes(self, dtype: DType) -> tuple[Expr, Expr]:
        """The worst value that there is, and the best."""
        top: Expr = const(math.nan, dtype) if dtype.is_float else identity("min", dtype)
        ends = (identity("max", dtype), top)
        return ends if self.largest else (ends[1], ends[0])

    def is_better(self, a: Expr, b: Expr) -> Expr:
        """Of two values; neither is if they are equal."""
        wide = accumulator(a.dtype)
        larger, smaller = (cast(wide, e) for e in ((a, b) if self.largest else (b, a)))
        better = smaller < larger
        if not wide.is_float:
            return better
        is_nan = logical_and(binary(BinaryOp.NE, larger, larger), equal(smaller, smaller))
        return binary(BinaryOp.OR, better, is_nan)

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


@dataclass(frozen=True, slots=True)
class _Heap:
    """A heap for each row, along the axis of `op`: at place p an element that is worse than those at 2p + 1 and 2p + 2.
    `here` and `next` are where an element that sinks is, and where it goes.
    """

    op: TopK
    values: Buffer
    places: Buffer
    here: Buffer
    next: Buffer

    def at(self, row: tuple[Expr, ...], p: Expr) -> tuple[Expr, Expr]:
        """The value at place `p`, and where it came from."""
        return self.values[self._index(row, p)], self.places[self._index(row, p)]

    def is_worse(self, row: tuple[Expr, ...], p: Expr, other: tuple[Expr, Expr]) -> Expr:
        """Is what is at place `p` worse than another element?"""
        (value, place), (other_value, other_place) = self.at(row, p), other
        better, worse = self.op.is_better(value, other_value), self.op.is_better(other_value, value)
        return binary(BinaryOp.OR, worse, select(better, const(False, DType.BOOL), other_place < place))

    def sink(self, row: tuple[Expr, ...], new: tuple[Expr, Expr], level: Var) -> Stmt:
        """Put an element in the place of the root, and exchange it with the worse one below until it is the worst."""
        k = self.op.k
        here, below = self.here[row], self.next[row]
        left, right = (minimum(here * 2 + n, k - 1) for n in (1, 2))
        child = select(self.is_worse(row, right, self.at(row, left)), right, left)
        goes = logical_and(here * 2 + 1 < k, self.is_worse(row, child, new))
        value, place = self.at(row, below)
        step = seq(
            Store(self.next, row, select(goes, child, here)),
            Store(self.values, self._index(row, here), value),
            Store(self.places, self._index(row, here), place),
            Store(self.here, row, below),
        )
        return seq(
            Store(self.here, row, const(0)),
            *([For(level, k.bit_length() - 1, step)] if k > 1 else []),
            Store(self.values, self._index(row, here), new[0]),
            Store(self.places, self._index(row, here), new[1]),
        )

    def _index(self, row: tuple[Expr, ...], p: Expr) -> tuple[Expr, ...]:
        return (*row[: self.op.axis], p, *row[self.op.axis :])
