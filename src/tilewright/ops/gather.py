"""Gather: elements chosen by indices that are data.

An index is counted from the back if negative, and then brought into range: a wrong one reads the nearest element,
never memory that is not ours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Buffer, Expr, cast, maximum, minimum, select
from tilewright.ops.axes import normal_axis
from tilewright.ops.elementwise import normal
from tilewright.ops.opdef import Array, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.tir.build import FuncBuilder

_INDEX_TYPES = (DType.I32, DType.I64)


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
        if not x.shape[self.axis]:
            raise self.misfit(inputs, f"axis {self.axis} is empty")
        if self.at is not None:
            if not 0 <= self.at < x.shape[self.axis]:
                raise self.misfit(inputs, f"index {self.at} is out of range on axis {self.axis}")
            places: tuple[int, ...] = ()
        else:
            if inputs[1].dtype not in _INDEX_TYPES:
                raise self.misfit(inputs, "indices must be i32 or i64")
            places = inputs[1].shape
        return (TensorType(x.dtype, (*x.shape[: self.axis], *places, *x.shape[self.axis + 1 :])),)

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
