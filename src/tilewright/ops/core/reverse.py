"""ReverseSequence: the first elements of each sequence of a batch, reversed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Buffer, Expr, cast, maximum, minimum, select
from tilewright.ops.axes import normal_axis
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.gather import INDEX_TYPES
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class ReverseSequence(Op):
    """Along `time`, as many elements as the second input has for each place on `batch`; the others stay."""

    onnx = ("ReverseSequence",)
    kind = Kind.MOVEMENT
    moves_only = True
    batch: int
    time: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        rank = node.input(0).rank
        batch = normal_axis(node.integer("batch_axis", 1), rank)
        return cls(batch, normal_axis(node.integer("time_axis", 0), rank)), (0, 1)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2)
        x, lengths = inputs
        if not 0 <= self.batch < x.rank or not 0 <= self.time < x.rank or self.batch == self.time:
            raise self.misfit(inputs, f"{self.batch} and {self.time} are not two of its axes")
        if lengths.dtype not in INDEX_TYPES or lengths.shape != (x.shape[self.batch],):
            raise self.misfit(inputs, f"there must be an integer length for each place on axis {self.batch}")
        return (x,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, lengths = inputs

        def element(*i: Expr) -> Expr:
            at = i[self.time]
            length = minimum(maximum(cast(INDEX, lengths[i[self.batch]]), 0), x.shape[self.time])
            there = select(at < length, length - 1 - at, at)
            return x[(*i[: self.time], there, *i[self.time + 1 :])]

        return (b.compute(name, x.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, lengths = inputs
        whole = np.moveaxis(x, (self.batch, self.time), (0, 1))
        n, steps = x.shape[self.batch], x.shape[self.time]
        at: Array = np.arange(int(steps))
        length = np.clip(lengths.astype(np.int64), 0, steps)[:, None]
        flipped = whole[np.arange(n)[:, None], np.where(at < length, length - 1 - at, at)]
        return (np.moveaxis(flipped, (0, 1), (self.batch, self.time)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 4, 3, 2)
        yield cls.sample(x, np.array([4, 1, 3], np.int64))
        yield cls.sample(x, np.array([1, 3, 2, 3], np.int64), batch_axis=0, time_axis=1)
        yield Sample(cls(1, 0), (x.astype(np.int8), np.array([0, 9, -2], np.int64)))
