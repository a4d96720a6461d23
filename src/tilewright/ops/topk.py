"""TopK: the largest or smallest elements along an axis, in order.

Equal elements keep their order. NaN counts as larger than every number.

Native code keeps the best `k` so far, sorted, and lets each element sink in where it belongs. Most elements do not
beat even the last of them, so that is one pass and little more while `k` is small; otherwise the host sorts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import (
    TRUE,
    BinaryOp,
    Buffer,
    Expr,
    as_index,
    binary,
    cast,
    equal,
    logical_and,
    maximum,
    select,
)
from tilewright.ops.axes import NUMBERS, accumulator, normal_axis
from tilewright.ops.elementwise import normal
from tilewright.ops.hostop import Body, HostOp, HostSample, HostValue, tensor
from tilewright.ops.opdef import Array, Kind, OnHost, OnnxNode, Op, Sample, TensorType
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.stmt import For, If, Stmt, Store, seq

_MOST_KEPT = 256  # elements that another one sinks into step by step


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
        if k > _MOST_KEPT:
            raise OnHost(f"native code takes the first {_MOST_KEPT} at most, not {k}")
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
        step = b.var(f"{name}_step")

        def sink(*i: Expr) -> Stmt:
            here, new = i[axis], x[i]

            def at(p: Expr) -> tuple[Expr, ...]:
                return (*i[:axis], p, *i[axis + 1 :])

            def beats(p: Expr) -> Expr:
                """Is place `p` free, since fewer elements came before, or is what it holds worse?"""
                return select(here <= p, TRUE, self._is_better(new, values[at(p)]))

            # From the last place up: what the new element beats moves down by one and makes room for it.
            p = as_index(k - 1) - step
            above = maximum(p - 1, 0)
            moves, takes = logical_and(step < k - 1, beats(above)), beats(p)
            shift = seq(
                Store(places, at(p), select(moves, places[at(above)], select(takes, here, places[at(p)]))),
                Store(values, at(p), select(moves, values[at(above)], select(takes, new, values[at(p)]))),
            )
            return If(beats(as_index(k - 1)), For(step, k, shift))

        b.update(name, x.shape, (axis,), sink)
        return values, places

    def _is_better(self, new: Expr, old: Expr) -> Expr:
        wide = accumulator(new.dtype)
        larger, smaller = (cast(wide, e) for e in ((new, old) if self.largest else (old, new)))
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
            yield Sample(cls(0, 3, bool(largest)), (normal(rng, 7).astype(np.float16),))
        yield cls.sample(x, k=2, opset=9, outputs=2)


@dataclass(frozen=True, slots=True)
class TopKOnHost(HostOp):
    """How many are wanted is known late, or they are many."""

    onnx = ("TopK",)
    why = "the number of elements is computed at run time, or large"
    axis: int = -1
    k: int | None = None
    largest: bool = True

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        k = None if node.opset >= 10 else node.integer("k", 0)
        return cls(node.integer("axis", -1), k, bool(node.integer("largest", 1)))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Body]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0")
        axis = normal_axis(self.axis, x.ndim)
        k = self.k if self.k is not None else int(tensor(inputs[1], "k").item())
        if not 0 <= k <= x.shape[axis]:
            raise UserError(f"{k} of {x.shape[axis]} elements are wanted")
        return top(x, axis, k, self.largest)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = rng.integers(-99, 99, size=(2, 300)).astype(np.float32)
        for largest in (0, 1):
            yield HostSample("TopK", (x, np.array([290], np.int64)), {"largest": largest}, outputs=2)
            yield HostSample("TopK", (x, np.array([1], np.int64)), {"axis": 0, "largest": largest}, outputs=2)
