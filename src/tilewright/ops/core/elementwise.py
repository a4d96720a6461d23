"""What elementwise ops have in common.

An elementwise op says what it does to scalars (`scalar`) and to whole arrays (`array`); types, broadcasting, the
block and the default samples follow. Half precision is computed in f32 and rounded once, at the end.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Buffer, Expr, binary, cast
from tilewright.ops.axes import FLOATS, NUMBERS, accumulator, load_broadcast, narrow, try_broadcast, widen
from tilewright.ops.opdef import Kind, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder

SPECIAL = (0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"))


class Elementwise(Op):
    """Inputs broadcast against each other. `takes` are the element types; all inputs have one of them."""

    __slots__ = ()
    kind = Kind.ELEMENTWISE
    takes: ClassVar[frozenset[DType]] = NUMBERS
    arity: ClassVar[tuple[int, int | None]] = (1, None)
    widens: ClassVar[bool] = (
        True  # whether half precision is computed in f32; no need for ops that only choose
    )

    @abstractmethod
    def value(self, args: Sequence[Expr]) -> Expr:
        """One output element."""

    @abstractmethod
    def values(self, args: Sequence[Array]) -> Array:
        """All output elements; floats come as float64."""

    def result(self, inputs: Sequence[TensorType]) -> DType:
        """The output's element type; UserError if the inputs' do not fit."""
        dtype = inputs[0].dtype
        if any(t.dtype is not dtype for t in inputs):
            raise self.misfit(inputs, "element types differ")
        if dtype not in self.takes:
            raise self.misfit(inputs, f"not defined for {dtype.value}")
        return dtype

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, *self.arity)
        shape = try_broadcast([t.shape for t in inputs])
        if shape is None:
            raise self.misfit(inputs, "the shapes do not broadcast")
        return (TensorType(self.result(inputs), shape),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (out,) = self.infer([TensorType(x.dtype, x.shape) for x in inputs])

        def element(*i: Expr) -> Expr:
            args = [load_broadcast(x, i, out.shape) for x in inputs]
            return cast(
                out.dtype, self.value([cast(accumulator(x.dtype), x) for x in args] if self.widens else args)
            )

        return (b.compute(name, out.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(x) for x in inputs])
        with np.errstate(all="ignore"):
            return (narrow(np.broadcast_to(self.values([widen(x) for x in inputs]), out.shape), out.dtype),)


class Pointwise(Elementwise):
    """One input. `domain` is where the default samples lie."""

    __slots__ = ()
    takes = FLOATS
    arity = (1, None)
    domain: ClassVar[tuple[float, float]] = (-4.0, 4.0)

    @abstractmethod
    def scalar(self, x: Expr) -> Expr: ...

    @abstractmethod
    def array(self, x: Array) -> Array: ...

    def value(self, args: Sequence[Expr]) -> Expr:
        return self.scalar(args[0])

    def values(self, args: Sequence[Array]) -> Array:
        return self.array(args[0])

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield cls.sample(rng.uniform(*cls.domain, size=(3, 5)).astype(np.float32))
        yield cls.sample(np.array(SPECIAL, np.float32))
        yield cls.sample(np.asarray(rng.uniform(*cls.domain), dtype=np.float64))
        for half in (np.float16, ml_dtypes.bfloat16):
            op = cls.sample(np.zeros(1, np.float32)).op
            yield Sample(op, (rng.uniform(*cls.domain, size=5).astype(half),))
        if DType.I32 in cls.takes:
            yield cls.sample(rng.integers(-9, 9, size=(2, 4)).astype(np.int32))
        if DType.U8 in cls.takes:
            yield Sample(cls.sample(np.zeros(1, np.float32)).op, (np.array([0, 1, 128, 255], np.uint8),))


class Pairwise(Elementwise):
    """Two inputs."""

    __slots__ = ()
    arity = (2, None)

    @abstractmethod
    def scalar(self, a: Expr, b: Expr) -> Expr: ...

    @abstractmethod
    def array(self, a: Array, b: Array) -> Array: ...

    def value(self, args: Sequence[Expr]) -> Expr:
        return self.scalar(*args)

    def values(self, args: Sequence[Array]) -> Array:
        return self.array(*args)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        if DType.F32 in cls.takes:
            yield cls.sample(normal(rng, 2, 3, 4), normal(rng, 3, 1))
            yield cls.sample(normal(rng, 4), normal(rng))
            left, right = np.meshgrid(np.array(SPECIAL, np.float32), np.array(SPECIAL, np.float32))
            yield cls.sample(left, right)
            op = cls.sample(left, right).op
            for half in (np.float16, ml_dtypes.bfloat16):
                yield Sample(op, (normal(rng, 2, 3).astype(half), normal(rng, 3).astype(half)))
        if DType.I64 in cls.takes:
            yield cls.sample(
                np.array([7, -7, 7, -7, 0, 6], np.int64), np.array([2, 2, -2, -2, 5, -3], np.int64)
            )
        if DType.BOOL in cls.takes:
            yield cls.sample(np.array([[True], [False]]), np.array([True, False]))


class PairOperator(Pairwise):
    """One of Python's operators, which expressions and arrays both have."""

    __slots__ = ()
    function: ClassVar[Callable[..., Any]]

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return type(self).function(a, b)

    def array(self, a: Array, b: Array) -> Array:
        return type(self).function(a, b)


class PairFunction(Pairwise):
    """A function that TIR has as an operation."""

    __slots__ = ()
    op: ClassVar[BinaryOp]
    function: ClassVar[Callable[..., Any]]  # a numpy ufunc

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return binary(self.op, a, b)

    def array(self, a: Array, b: Array) -> Array:
        return type(self).function(a, b)


class Variadic(Elementwise):
    """One or more inputs, combined from left to right."""

    __slots__ = ()
    arity = (1, 256)

    @abstractmethod
    def combine(self, a: Expr, b: Expr) -> Expr: ...

    @abstractmethod
    def combine_arrays(self, a: Array, b: Array) -> Array: ...

    def value(self, args: Sequence[Expr]) -> Expr:
        return reduce(self.combine, args)

    def values(self, args: Sequence[Array]) -> Array:
        return reduce(self.combine_arrays, args)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield cls.sample(normal(rng, 2, 3), normal(rng, 3), normal(rng, 2, 1))
        yield cls.sample(normal(rng, 4))
        left, right = np.meshgrid(np.array(SPECIAL, np.float32), np.array(SPECIAL, np.float32))
        yield cls.sample(left, right)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Standard normal float32 numbers: what most samples are made of."""
    return np.asarray(rng.standard_normal(shape), dtype=np.float32)
