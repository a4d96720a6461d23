"""Ops without inputs: their elements follow from the attributes, so a graph folds them.

ONNX gives them inputs (a shape, bounds), which have to be known at compile time, because shapes are static.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Buffer, Expr, as_index, cast, const, equal, lift, select
from tilewright.ops.axes import NUMBERS
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import ONNX_DTYPES, Kind, OnHost, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder

_NATIVE = frozenset(d.numpy for d in DType)
_MOST_BYTES = 1 << 36


@dataclass(frozen=True, slots=True)
class Fill(Op):
    """One value everywhere."""

    onnx = ("ConstantOfShape",)
    kind = Kind.MOVEMENT
    moves_only = True
    shape: tuple[int, ...]
    value: float
    dtype: DType

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        shape = node.value_integers(0, "the shape")
        if any(n < 0 for n in shape):
            raise UserError(f"ConstantOfShape: a negative extent in {list(shape)}")
        value = _filling(node)
        if value.dtype not in _NATIVE:
            raise OnHost(f"native code does not know {value.dtype}")
        return cls(shape, value.item(), DType.of(value.dtype)), ()

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 0)
        return (TensorType(self.dtype, self.shape),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        return (b.compute(name, self.shape, lambda *i: const(self.value, self.dtype)),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.full(self.shape, self.value, self.dtype.numpy),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield cls.sample(np.array([2, 3], np.int64))
        yield cls.sample(np.array([], np.int64), value=np.array([-1], np.int64))
        yield cls.sample(np.array([4], np.int64), value=np.array([True]))


@dataclass(frozen=True, slots=True, eq=False)
class FillOfAnyType(HostOp):
    onnx = ("ConstantOfShape",)
    why = "its shape is computed at run time, or native code does not know the type of its elements"
    value: Array

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(_filling(node))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        shape = tuple(int(n) for n in tensor(inputs[0], "the shape").reshape(-1))
        if min(shape, default=0) < 0 or math.prod(shape) * self.value.itemsize > _MOST_BYTES:
            raise UserError(f"{list(shape)} is not the shape of a tensor that there is room for")
        return (np.full(shape, self.value.reshape(()), self.value.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        for n in (3, 0):
            shape = np.array([2, n], np.int64)
            yield HostSample("ConstantOfShape", (shape,))
            value = np.array([7], np.int8)
            yield HostSample("ConstantOfShape", (shape,), {"value": value})


def _filling(node: OnnxNode) -> Array:
    value = np.asarray(node.attrs.get("value", np.zeros(1, np.float32)))
    if value.size != 1:
        raise UserError(f"ConstantOfShape: {value.size} values are given for all elements")
    return value


@dataclass(frozen=True, slots=True)
class Sizes(Op):
    """Numbers, some of which are sizes of open dimensions: what Shape gives. A scalar if it is `single`."""

    kind = Kind.MOVEMENT
    moves_only = True
    sizes: tuple[int, ...]
    single: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 0)
        return (TensorType(DType.I64, () if self.single else (len(self.sizes),)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        def element(*i: Expr) -> Expr:
            found: Expr = as_index(self.sizes[-1])
            for at, size in reversed(list(enumerate(self.sizes[:-1]))):
                found = select(equal(i[0], at), as_index(size), found)
            return found

        return (b.compute(name, () if self.single else (len(self.sizes),), element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.array([int(n) for n in self.sizes], np.int64).reshape(() if self.single else -1),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield Sample(cls((3, 1, 7)), ())
        yield Sample(cls((5,), True), ())


@dataclass(frozen=True, slots=True)
class Eye(Op):
    """Ones on diagonal `k` of a matrix, zeros elsewhere."""

    onnx = ("EyeLike",)
    kind = Kind.MOVEMENT
    moves_only = True
    shape: tuple[int, ...]
    k: int
    dtype: DType

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x = node.input(0)
        number = node.attrs.get("dtype")
        if number is not None and number not in ONNX_DTYPES:
            raise UserError(f"EyeLike: element type {number} is not supported")
        return cls(x.shape, node.integer("k", 0), x.dtype if number is None else ONNX_DTYPES[number]), ()

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 0)
        if len(self.shape) != 2:
            raise self.misfit(inputs, f"{list(self.shape)} is not the shape of a matrix")
        return (TensorType(self.dtype, self.shape),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        one, zero = const(1, self.dtype), const(0, self.dtype)

        def element(i: Expr, j: Expr) -> Expr:
            return select(equal(i + self.k, j), one, zero)

        return (b.compute(name, self.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        rows, columns = (np.arange(n) for n in self.shape)
        return ((rows[:, None] + self.k == columns).astype(self.dtype.numpy),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = np.zeros((3, 5), np.int32)
        yield cls.sample(x)
        yield cls.sample(x, k=2, dtype=1)
        yield cls.sample(x.astype(np.float32), k=-1, dtype=11)
        yield cls.sample(x.T.copy(), k=-9)
        yield Sample(cls((2, 2), 0, DType.BOOL), ())


@dataclass(frozen=True, slots=True)
class Range(Op):
    """start, start + step, …: `count` numbers."""

    onnx = ("Range",)
    kind = Kind.MOVEMENT
    moves_only = True
    start: float
    step: float
    count: int
    dtype: DType

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        what = ("the start", "the limit", "the step")
        exact = node.input(0).dtype.is_int
        if exact:
            start, limit, step = (node.value_integers(i, w)[0] for i, w in enumerate(what))
        else:
            start, limit, step = (node.value(i, w).item() for i, w in enumerate(what))
        if step == 0:
            raise UserError("Range: the step is 0")
        count = -((start - limit) // step) if exact else int(np.ceil((limit - start) / step))
        return cls(start, step, max(0, count), node.input(0).dtype), ()

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 0)
        if self.dtype not in NUMBERS:
            raise self.misfit(inputs, f"not defined for {self.dtype.value}")
        return (TensorType(self.dtype, (self.count,)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        kind = self.dtype if self.dtype.is_float else INDEX
        first, step = lift(self.start, kind), lift(self.step, kind)

        def element(i: Expr) -> Expr:
            return cast(self.dtype, first + cast(kind, i) * step)

        return (b.compute(name, (self.count,), element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return ((self.start + np.arange(self.count) * self.step).astype(self.dtype.numpy),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for start, limit, step in ((1, 8, 3), (1, 7, 3), (5, -3, -2), (0, 4, 1)):
            bounds = [np.array(v, np.int64) for v in (start, limit, step)]
            yield cls.sample(*bounds)
            yield cls.sample(*(np.asarray(v / 2, np.float32) for v in bounds))
