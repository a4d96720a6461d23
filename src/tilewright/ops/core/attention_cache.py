"""TensorScatter: new keys or values are written into a cache, at another place for each batch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import (
    Buffer,
    Expr,
    cast,
    const,
    maximum,
    minimum,
    select,
)
from tilewright.ops.axes import normal_axis
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class TensorScatter(Op):
    """The cache, with `update` in it from place `at[b]` of `axis` on (0 if there is no `at`), for each batch b.

    What would lie beyond the end of the cache is dropped; or starts again at 0 if `circular`.
    """

    onnx = ("TensorScatter",)
    kind = Kind.MOVEMENT
    moves_only = True
    axis: int
    circular: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        mode = node.text("mode", "linear")
        if mode not in ("linear", "circular"):
            raise UserError(f"TensorScatter: mode='{mode}' is neither 'linear' nor 'circular'")
        return cls(
            normal_axis(node.integer("axis", -2), node.input(0).rank), mode == "circular"
        ), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2, 3)
        cache, update, *at = inputs
        if cache.dtype is not update.dtype:
            raise self.misfit(inputs, "cache and update have different element types")
        if not 0 < self.axis < cache.rank or update.rank != cache.rank:
            raise self.misfit(inputs, f"both need the same axes, and an axis {self.axis} after the batch")
        rest = (*update.shape[: self.axis], *update.shape[self.axis + 1 :])
        if rest != (*cache.shape[: self.axis], *cache.shape[self.axis + 1 :]) or not (
            1 <= update.shape[self.axis] <= cache.shape[self.axis]
        ):
            raise self.misfit(inputs, "the update does not fit into the cache")
        if at and (at[0].shape != cache.shape[:1] or at[0].dtype not in (DType.I32, DType.I64)):
            raise self.misfit(inputs, "there must be one place per batch, i32 or i64")
        return (cache,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        cache, update, *at = inputs
        extent, count = cache.shape[self.axis], update.shape[self.axis]

        def element(*i: Expr) -> Expr:
            place = i[self.axis]
            for start in at:
                place = place - cast(INDEX, start[i[0]])
            place = place % extent if self.circular else place
            safe = minimum(maximum(place, 0), count - 1)
            new = update[(*i[: self.axis], safe, *i[self.axis + 1 :])]
            return select(logical_and(const(0) <= place, place < count), new, cache[i])

        return (b.compute(name, cache.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        cache, update, *at = inputs
        extent, count = cache.shape[self.axis], update.shape[self.axis]
        out = np.moveaxis(cache.copy(), self.axis, 1)
        new = np.moveaxis(update, self.axis, 1)
        starts = at[0].tolist() if at else [0] * len(cache)
        for b, start in enumerate(starts):
            for k in range(count):
                place = (start + k) % extent if self.circular else start + k
                if 0 <= place < extent:
                    out[b, place] = new[b, k]
        return (np.ascontiguousarray(np.moveaxis(out, 1, self.axis)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        cache, update = normal(rng, 2, 2, 5, 3), normal(rng, 2, 2, 2, 3)
        yield cls.sample(cache, update, np.array([1, 3], np.int64), opset=24)
        yield cls.sample(cache, update, opset=24)
        yield cls.sample(cache, update, np.array([4, 7], np.int64), mode="circular", opset=24)
        places = np.array([0, 2], np.int64)
        yield cls.sample(normal(rng, 2, 4, 3), normal(rng, 2, 1, 3), places, axis=1, opset=24)
        yield Sample(cls(2), (cache, update, np.array([4, -1], np.int64)))
