"""Gather, GatherElements, GatherND and OneHot: elements chosen by indices that are data.

An index is counted from the back if negative, and then brought into range: a wrong one reads the nearest element,
never memory that is not ours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Buffer, Expr, cast, equal, maximum, minimum, select
from tilewright.ops.axes import normal_axis
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import IndexInput, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder

INDEX_TYPES = (DType.I32, DType.I64)


def checked_index(i: Expr, extent: int) -> Expr:
    """A run-time index as a safe place on an axis of `extent`."""
    wide = cast(INDEX, i)
    return minimum(maximum(select(wide < 0, wide + extent, wide), 0), extent - 1)


def checked_indices(i: Array, extent: int) -> Array:
    wide = i.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + extent, wide), 0, extent - 1)


@dataclass(frozen=True, slots=True)
class Gather(Op):
    """The axis is replaced by those of the indices. A single index that is known at compile time is an attribute."""

    onnx = ("Gather",)
    kind = Kind.MOVEMENT
    moves_only = True
    axis: int
    at: int | None = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x = node.input(0)
        axis = normal_axis(node.integer("axis", 0), x.rank)
        known = node.constant(1)
        if known is None or known.ndim:
            return cls(axis), (0, 1)
        return cls(axis, normal_axis(int(known.item()), x.shape[axis], "index")), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2 if self.at is None else 1)
        x = inputs[0]
        if not 0 <= self.axis < x.rank:
            raise self.misfit(inputs, f"has no axis {self.axis}")
        if not x.shape[self.axis] and (self.at is not None or 0 not in inputs[1].shape):
            raise self.misfit(inputs, f"axis {self.axis} is empty")
        if self.at is not None:
            if not 0 <= self.at < x.shape[self.axis]:
                raise self.misfit(inputs, f"index {self.at} is out of range on axis {self.axis}")
            places: tuple[int, ...] = ()
        else:
            if inputs[1].dtype not in INDEX_TYPES:
                raise self.misfit(inputs, "indices must be i32 or i64")
            places = inputs[1].shape
        return (TensorType(x.dtype, (*x.shape[: self.axis], *places, *x.shape[self.axis + 1 :])),)

    def indices(self, inputs: Sequence[TensorType]) -> Sequence[IndexInput]:
        return () if self.at is not None else (IndexInput(1, (inputs[0].shape[self.axis],)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])
        x, axis = inputs[0], self.axis
        rank = 0 if self.at is not None else len(inputs[1].shape)

        def element(*i: Expr) -> Expr:
            before, places, after = i[:axis], i[axis : axis + rank], i[axis + rank :]
            at = self.at if self.at is not None else checked_index(inputs[1][places], x.shape[axis])
            return x[(*before, at, *after)]

        return (b.compute(name, out.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = inputs[0]
        at = self.at if self.at is not None else checked_indices(inputs[1], x.shape[self.axis])
        return (np.asarray(np.take(x, at, self.axis)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 4, 3)
        yield cls.sample(x, np.array([[0, 3], [-1, -4]], np.int64))
        yield cls.sample(x, np.array([2, 0], np.int32), axis=-1)
        yield cls.sample(x, np.array(-1, np.int64), axis=1)
        yield cls.sample(x, np.array(1, np.int64), runtime=(1,))
        yield Sample(cls(0), (x, np.array([7, -9], np.int64)))
        rows = normal(rng, 9, 70)
        yield cls.sample(rows, rng.integers(-9, 9, size=130), runtime=(1,))
        yield Sample(cls(0), (rows, np.array([8, 1 << 40, -(1 << 40)], np.int64)))


@dataclass(frozen=True, slots=True)
class GatherElements(Op):
    """The output has the shape of the indices; each of them replaces the place on `axis`."""

    onnx = ("GatherElements",)
    kind = Kind.MOVEMENT
    moves_only = True
    axis: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(normal_axis(node.integer("axis", 0), node.input(0).rank)), (0, 1)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2)
        x, at = inputs
        if at.dtype not in INDEX_TYPES:
            raise self.misfit(inputs, "indices must be i32 or i64")
        is_empty = at.rank == x.rank > self.axis and not x.shape[self.axis] and 0 not in at.shape
        if at.rank != x.rank or not 0 <= self.axis < x.rank or is_empty:
            raise self.misfit(inputs, f"both need the same axes, and an axis {self.axis} that is not empty")
        if any(m > n for d, (n, m) in enumerate(zip(x.shape, at.shape, strict=True)) if d != self.axis):
            raise self.misfit(inputs, "the indices reach beyond the first input")
        return (TensorType(x.dtype, at.shape),)

    def indices(self, inputs: Sequence[TensorType]) -> Sequence[IndexInput]:
        return (IndexInput(1, (inputs[0].shape[self.axis],)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, at = inputs

        def element(*i: Expr) -> Expr:
            return x[(*i[: self.axis], checked_index(at[i], x.shape[self.axis]), *i[self.axis + 1 :])]

        return (b.compute(name, at.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, at = inputs
        part = x[tuple(slice(None) if d == self.axis else slice(n) for d, n in enumerate(at.shape))]
        return (np.take_along_axis(part, checked_indices(at, x.shape[self.axis]), self.axis),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 3, 4)
        yield cls.sample(x, np.array([[0, 2, -1], [1, -3, 0]], np.int64))
        yield cls.sample(x, np.array([[0, 3], [-1, 1], [2, 2]], np.int32), axis=1)
        wide, far = normal(rng, 5, 21), np.array([1 << 40, -(1 << 40)], np.int64)
        for axis, extent in enumerate(wide.shape):
            yield cls.sample(wide, rng.integers(-extent, extent, size=(5, 21)), axis=axis, runtime=(1,))
        yield Sample(cls(1), (wide, np.resize(far, (5, 21))))


@dataclass(frozen=True, slots=True)
class GatherND(Op):
    """The last axis of the indices holds places on the axes of the tensor, after the first `batch` that both share."""

    onnx = ("GatherND",)
    kind = Kind.MOVEMENT
    moves_only = True
    batch: int = 0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(node.integer("batch_dims", 0)), (0, 1)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2)
        x, at = inputs
        if at.dtype not in INDEX_TYPES:
            raise self.misfit(inputs, "indices must be i32 or i64")
        if not 0 <= self.batch < min(x.rank, at.rank) or x.shape[: self.batch] != at.shape[: self.batch]:
            raise self.misfit(inputs, f"there are no {self.batch} axes that both share")
        last = self.batch + at.shape[-1]
        if not self.batch < last <= x.rank:
            raise self.misfit(inputs, f"indices choose places on {at.shape[-1]} axes")
        shape = (*at.shape[:-1], *x.shape[last:])
        if 0 in x.shape[self.batch : last] and 0 not in shape:
            raise self.misfit(inputs, "an axis that is indexed is empty")
        return (TensorType(x.dtype, shape),)

    def indices(self, inputs: Sequence[TensorType]) -> Sequence[IndexInput]:
        x, at = inputs
        return (IndexInput(1, x.shape[self.batch : self.batch + at.shape[-1]]),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, at = inputs
        (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])
        lead, depth = len(at.shape) - 1, at.shape[-1]

        def element(*i: Expr) -> Expr:
            chosen = [checked_index(at[(*i[:lead], d)], x.shape[self.batch + d]) for d in range(depth)]
            return x[(*i[: self.batch], *chosen, *i[lead:])]

        return (b.compute(name, out.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, at = inputs
        chosen = [checked_indices(at[..., d], x.shape[self.batch + d]) for d in range(at.shape[-1])]
        return (x[(*np.indices(at.shape[:-1], sparse=True)[: self.batch], *chosen)],)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3, 4)
        yield cls.sample(x, np.array([[0, 2], [1, -1]], np.int64))
        yield cls.sample(x, np.array([[[1]], [[-2]]], np.int64))
        yield cls.sample(x, np.array([[2], [-3]], np.int64), batch_dims=1)
        yield cls.sample(x, np.array([[[2, 0], [0, -1]], [[1, 1], [1, 2]]], np.int64), batch_dims=1)
        yield cls.sample(x, rng.integers(-4, 4, size=(2, 3, 2, 1)), batch_dims=2)
        yield cls.sample(x.astype(np.int64), np.array([1, 2, 3], np.int64))
        yield Sample(cls(), (x, np.array([[9, -9]], np.int32)))


@dataclass(frozen=True, slots=True)
class OneHot(Op):
    """A new axis of `depth` that holds the second of two values where it equals the index, and the first elsewhere."""

    onnx = ("OneHot",)
    kind = Kind.ELEMENTWISE
    moves_only = True
    axis: int
    depth: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        axis = normal_axis(node.integer("axis", -1), node.input(0).rank + 1)
        (depth,) = node.value_integers(1, "the depth")
        return cls(axis, depth), (0, 2)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2)
        at, values = inputs
        if at.dtype is DType.BOOL or values.shape != (2,) or self.depth < 1 or not 0 <= self.axis <= at.rank:
            raise self.misfit(
                inputs, f"numbers and two values are needed, and an axis {self.axis} of {self.depth}"
            )
        return (TensorType(values.dtype, (*at.shape[: self.axis], self.depth, *at.shape[self.axis :])),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        at, values = inputs
        (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])

        def element(*i: Expr) -> Expr:
            k, wanted = i[self.axis], cast(INDEX, at[(*i[: self.axis], *i[self.axis + 1 :])])
            return select(equal(select(wanted < 0, wanted + self.depth, wanted), k), values[1], values[0])

        return (b.compute(name, out.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        at, values = inputs
        wanted = np.expand_dims(at.astype(np.int64), self.axis)
        wanted = np.where(wanted < 0, wanted + self.depth, wanted)
        k = np.arange(self.depth).reshape(-1, *[1] * (at.ndim - self.axis))
        return (values[(wanted == k).astype(np.int64)],)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        values = np.array([-1, 5], np.float32)
        yield cls.sample(np.array([[0, 2], [-1, 9]], np.int64), np.array(3, np.int64), values)
        yield cls.sample(np.array([1, 0], np.int64), np.array(3, np.int64), values.astype(np.int64), axis=0)
        yield cls.sample(np.array([1, -2], np.int32), np.array([4], np.int32), values)
        yield cls.sample(np.array([1, 2], np.float32), np.array(3, np.float32), values)
        yield Sample(cls(0, 2), (np.array([1, 200, 0], np.uint8), np.array([True, False])))
