"""CumSum and CumProd: the sum, or the product, of all elements up to each place.

Every element is combined with the result of its neighbour, so the block is linear in the axis and runs along it in
order. Half precision is accumulated in f32.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Buffer, Expr, as_index, binary, cast, equal, maximum, select
from tilewright.ops.axes import NUMBERS, accumulator, narrow, normal_axis, widen
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder, identity
from tilewright.tir.stmt import Store


@dataclass(frozen=True, slots=True)
class Cumulation(Op):
    """Base of both: up to and including each element, or without it if `exclusive`; from the end if `reverse`."""

    kind = Kind.REDUCTION
    combine: ClassVar[str]
    operation: ClassVar[BinaryOp]
    function: ClassVar[Any]  # numpy's, of all elements up to each place
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
        (x,), axis = inputs, self.axis
        wide = accumulator(x.dtype)
        label = name if wide is x.dtype else f"{name}_{self.combine}"
        total = b.ahead(label, x.shape, wide)

        def step(*i: Expr) -> Store:
            def at(place: Expr) -> tuple[Expr, ...]:
                flipped = as_index(x.shape[axis] - 1) - place if self.reverse else place
                return (*i[:axis], flipped, *i[axis + 1 :])

            here, before = at(i[axis]), at(maximum(i[axis] - 1, 0))
            new = cast(wide, x[before if self.exclusive else here])
            first = identity(self.combine, wide) if self.exclusive else new
            so_far = binary(self.operation, total[before], new)
            return Store(total, here, select(equal(i[axis], 0), first, so_far))

        # Each iteration stores another element, though it reads what the one before has stored.
        b.update(label, x.shape, (), step)
        if wide is x.dtype:
            return (total,)
        return (b.compute(name, x.shape, lambda *i: cast(x.dtype, total[i])),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = widen(inputs[0])
        x = np.flip(x, self.axis) if self.reverse else x
        total = type(self).function(x, self.axis, dtype=x.dtype)
        if self.exclusive:
            first = [slice(None)] * x.ndim
            first[self.axis] = slice(0, 1)
            total = np.roll(total, 1, self.axis)
            total[tuple(first)] = 0 if self.combine == "sum" else 1
        return (narrow(np.flip(total, self.axis) if self.reverse else total, DType.of(inputs[0].dtype)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        opset = 26 if cls.onnx == ("CumProd",) else 18
        x, axis = normal(rng, 2, 5), np.array(-1, np.int64)
        for exclusive in (0, 1):
            for reverse in (0, 1):
                yield cls.sample(x, axis, exclusive=exclusive, reverse=reverse, opset=opset)
        whole = rng.integers(-9, 9, size=(3, 2, 2))
        yield cls.sample(whole.astype(np.int64), np.array(0, np.int64), opset=opset)
        yield cls.sample(whole.astype(np.int32), np.array(1, np.int32), opset=opset)
        for d in range(3):  # rows and vectors, with what is left over of each
            yield cls.sample(normal(rng, 3, 7, 19), np.array(d, np.int64), opset=opset)
        yield cls.sample(normal(rng, 7, 24), np.array(0, np.int64), exclusive=1, reverse=1, opset=opset)
        yield Sample(cls(0), (normal(rng, 6).astype(np.float16),))
        yield Sample(cls(0, exclusive=True), (rng.integers(0, 9, size=6).astype(np.uint8),))


@dataclass(frozen=True, slots=True)
class CumSum(Cumulation):
    onnx = ("CumSum",)
    combine = "sum"
    operation = BinaryOp.ADD
    function = np.cumsum


@dataclass(frozen=True, slots=True)
class CumProd(Cumulation):
    onnx = ("CumProd",)
    combine = "prod"
    operation = BinaryOp.MUL
    function = np.cumprod
