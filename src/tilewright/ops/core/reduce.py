"""Reductions over axes, and ArgMax. A reduction block, then, where the result is scaled or mapped, a block for that.

Half precision is accumulated in f32. An empty sum is 0; the extremes of nothing are infinite, or the last numbers of
their type. NaN wins in Max and Min. Roots and logarithms of integers are computed in f64 and rounded towards zero.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import ml_dtypes
import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    BinaryOp,
    Buffer,
    Const,
    Expr,
    UnaryOp,
    as_index,
    binary,
    cast,
    const,
    equal,
    lift,
    select,
    unary,
)
from tilewright.ops.axes import ANY, NUMBERS, accumulator, narrow, normal_axes, normal_axis, widen
from tilewright.ops.core.arithmetic import truncated_quotient
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder, identity


def kept_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """The shape with `axes` reduced to 1."""
    return tuple(1 if d in axes else n for d, n in enumerate(shape))


def reduce_axes(axes: Sequence[int], rank: int) -> list[str]:
    """Names for the iterators of a reduction that keeps its axes: all output axes, then the reduced ones."""
    return [f"i{d}" for d in range(rank)] + [f"k{d}" for d in axes]


def inner_index(i: Sequence[Expr], axes: Sequence[int], rank: int) -> tuple[Expr, ...]:
    """The input's index, given the iterators that `reduce_axes` names."""
    over = dict(zip(axes, i[rank:], strict=True))
    return tuple(over.get(d, i[d]) for d in range(rank))


def read_kept(kept: Buffer, i: Sequence[Expr], axes: Sequence[int]) -> Expr:
    """The reduced value that belongs to index `i` of the whole shape."""
    return kept[tuple(0 if d in axes else v for d, v in enumerate(i))]


def _extreme(combine: str, x: Array) -> float | int | bool:
    """The maximum or minimum of no elements of this type."""
    value = identity(combine, DType.of(x.dtype))
    assert isinstance(value, Const)
    return value.value


def _real(total: Expr) -> Expr:
    return total if total.dtype.is_float else cast(DType.F64, total)


@dataclass(frozen=True, slots=True)
class Reduction(Op):
    """`axes` are sorted; they stay with extent 1 if `keep`."""

    kind = Kind.REDUCTION
    takes: ClassVar[frozenset[DType]] = NUMBERS
    combine: ClassVar[str] = "sum"
    integers: ClassVar[tuple[str, ...]] = ("int32", "int64", "uint32", "uint64")  # that samples are made of
    axes: tuple[int, ...]
    keep: bool = True

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        rank = node.input(0).rank
        if node.op_type.startswith("Global"):
            return cls(tuple(range(2, rank))), (0,)
        given = node.given_integers(1, "axes")
        if given:
            axes = normal_axes(given, rank)
        else:
            axes = () if node.integer("noop_with_empty_axes", 0) else tuple(range(rank))
        return cls(axes, bool(node.integer("keepdims", 1))), (0,)

    @abstractmethod
    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        """The result with `axes` kept; floats come as float64."""

    def element(self, x: Expr) -> Expr | tuple[Expr, Expr]:
        """What is combined: a value, or for sums a pair of factors."""
        return x

    def finish(self, total: Expr, count: int) -> Expr:
        """The result, from the combined value of `count` elements. It is converted to the output's type."""
        return total

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.dtype not in self.takes:
            raise self.misfit(inputs, f"not defined for {x.dtype.value}")
        if any(not 0 <= a < x.rank for a in self.axes):
            raise self.misfit(inputs, f"has no axes {list(self.axes)}")
        kept = kept_shape(x.shape, self.axes)
        return (
            TensorType(
                x.dtype, kept if self.keep else tuple(n for d, n in enumerate(kept) if d not in self.axes)
            ),
        )

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape)])
        wide = accumulator(x.dtype)
        rank = len(x.shape)
        count = math.prod(x.shape[a] for a in self.axes)
        plain = wide is x.dtype and type(self).finish is Reduction.finish
        places = range(rank) if self.keep else [d for d in range(rank) if d not in self.axes]

        def element(*i: Expr) -> Expr | tuple[Expr, Expr]:
            at = dict(zip((*places, *((rank + a) for a in self.axes)), i, strict=True))
            return self.element(
                cast(wide, x[tuple(at.get(rank + d, at.get(d, const(0))) for d in range(rank))])
            )

        axes = [f"i{d}" for d in places] + [f"k{d}" for d in self.axes]
        total = b.reduce(
            name if plain else f"{name}_{self.combine}",
            out.shape,
            [x.shape[a] for a in self.axes],
            element,
            self.combine,
            axes=axes,
        )
        if plain:
            return (total,)
        return (
            b.compute(
                name,
                out.shape,
                lambda *i: cast(out.dtype, self.finish(total[i], count)),
                axes=axes[: len(places)],
            ),
        )

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(x) for x in inputs])
        with np.errstate(all="ignore"):
            return (narrow(self.numpy(widen(inputs[0]), self.axes).reshape(out.shape), out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3, 4)
        yield cls.sample(x, np.array([-1], np.int64))
        yield cls.sample(x, np.array([0, 2], np.int64), keepdims=0)
        yield cls.sample(x, keepdims=0)
        yield cls.sample(x, np.array([], np.int64), noop_with_empty_axes=1)
        yield cls.sample(x, axes=[1], opset=11)
        special = np.array([[1, np.nan, 2], [np.inf, 1, 3], [-np.inf, -np.inf, -np.inf]], np.float32)
        yield cls.sample(special, np.array([1], np.int64))
        yield cls.sample(x.astype(np.float16), np.array([2], np.int64))
        yield Sample(cls((1,)), (x.astype(ml_dtypes.bfloat16),))
        for axes in ((1,), (0, 1)):  # of nothing
            yield Sample(cls(axes), (np.zeros((2, 0, 3), np.float32),))
        for dtype in cls.integers:
            n = rng.integers(0, 9, size=(2, 5)) + (0 if dtype.startswith("int") else 1)
            yield Sample(cls((1,), False), (n.astype(dtype),))
        yield from (
            cls.sample(normal(rng, 2, 2, 3, 3), op_type=name)
            for name in cls.onnx
            if name.startswith("Global")
        )


@dataclass(frozen=True, slots=True)
class ReduceSum(Reduction):
    onnx = ("ReduceSum",)

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return x.sum(axes, keepdims=True, dtype=x.dtype)


@dataclass(frozen=True, slots=True)
class ReduceMean(Reduction):
    """Of integers it is rounded towards zero; of nothing it is NaN, or 0."""

    onnx = ("ReduceMean", "GlobalAveragePool")

    def finish(self, total: Expr, count: int) -> Expr:
        if total.dtype.is_float:
            return total / count
        return truncated_quotient(total, lift(count, total.dtype)) if count else const(0, total.dtype)

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        total = x.sum(axes, keepdims=True, dtype=x.dtype)
        count = math.prod(x.shape[a] for a in axes)
        if x.dtype.kind == "f":
            return total / count
        sign = np.where(total < 0, -1, 1).astype(x.dtype)
        return sign * (total * sign // count) if count else total

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield from super(ReduceMean, cls).samples(rng)
        yield cls.sample(np.array([[-1, -4, 0], [5, 5, 4]], np.int32), np.array([1], np.int64))
        yield Sample(cls((1,)), (np.zeros((2, 0), np.int64),))


@dataclass(frozen=True, slots=True)
class ReduceMax(Reduction):
    onnx = ("ReduceMax", "GlobalMaxPool")
    takes = ANY
    integers = ("int8", "uint8", "int32", "int64", "uint32", "uint64", "bool")
    combine = "max"

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return x.max(axes, keepdims=True, initial=_extreme(self.combine, x))


@dataclass(frozen=True, slots=True)
class ReduceMin(Reduction):
    onnx = ("ReduceMin",)
    takes = ANY
    integers = ("int8", "uint8", "int32", "int64", "uint32", "uint64", "bool")
    combine = "min"

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return x.min(axes, keepdims=True, initial=_extreme(self.combine, x))


@dataclass(frozen=True, slots=True)
class ReduceProd(Reduction):
    onnx = ("ReduceProd",)
    combine = "prod"

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return x.prod(axes, keepdims=True, dtype=x.dtype)


@dataclass(frozen=True, slots=True)
class ReduceL1(Reduction):
    onnx = ("ReduceL1",)

    def element(self, x: Expr) -> Expr | tuple[Expr, Expr]:
        return unary(UnaryOp.ABS, x)

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return abs(x).sum(axes, keepdims=True, dtype=x.dtype)


@dataclass(frozen=True, slots=True)
class ReduceSumSquare(Reduction):
    onnx = ("ReduceSumSquare",)

    def element(self, x: Expr) -> Expr | tuple[Expr, Expr]:
        return x, x

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return (x * x).sum(axes, keepdims=True, dtype=x.dtype)


@dataclass(frozen=True, slots=True)
class ReduceL2(Reduction):
    onnx = ("ReduceL2",)

    def element(self, x: Expr) -> Expr | tuple[Expr, Expr]:
        return x, x

    def finish(self, total: Expr, count: int) -> Expr:
        return unary(UnaryOp.SQRT, _real(total))

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.sqrt((x * x).sum(axes, keepdims=True, dtype=x.dtype).astype(np.float64))


@dataclass(frozen=True, slots=True)
class ReduceLogSum(Reduction):
    onnx = ("ReduceLogSum",)

    def finish(self, total: Expr, count: int) -> Expr:
        return unary(UnaryOp.LOG, _real(total))

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.log(x.sum(axes, keepdims=True, dtype=x.dtype).astype(np.float64))


@dataclass(frozen=True, slots=True)
class ReduceLogSumExp(Reduction):
    """The largest element is taken out of the sum first, unless it is infinite: then its exponential is exact."""

    onnx = ("ReduceLogSumExp",)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape)])
        rank, wide = len(x.shape), accumulator(x.dtype) if x.dtype.is_float else DType.F64
        kept, over = kept_shape(x.shape, self.axes), [x.shape[a] for a in self.axes]
        names = reduce_axes(self.axes, rank)

        def inner(*i: Expr) -> Expr:
            return cast(wide, x[inner_index(i, self.axes, rank)])

        top = b.reduce(f"{name}_max", kept, over, inner, "max", axes=names)

        def shift(*i: Expr) -> Expr:
            infinite = equal(unary(UnaryOp.ABS, top[i]), float("inf"))
            return select(infinite, const(0, wide), top[i])

        shifts = b.compute(f"{name}_shift", kept, shift, axes=names[:rank])

        def power(*i: Expr) -> Expr:
            return unary(UnaryOp.EXP, inner(*i) - shifts[i[:rank]])

        total = b.reduce(f"{name}_sum", kept, over, power, axes=names)

        def result(*i: Expr) -> Expr:
            places = iter(i)
            at = i if self.keep else tuple(const(0) if d in self.axes else next(places) for d in range(rank))
            return cast(out.dtype, unary(UnaryOp.LOG, total[at]) + shifts[at])

        return (b.compute(name, out.shape, result),)

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        x = x.astype(np.float64)
        top = x.max(axes, keepdims=True, initial=-np.inf)
        top = np.where(np.isinf(top), 0, top)
        return np.log(np.exp(x - top).sum(axes, keepdims=True)) + top


@dataclass(frozen=True, slots=True)
class ArgExtreme(Op):
    """Base of ArgMax and ArgMin: where the extreme value along `axis` is, the first or the `last` time. NaN wins."""

    kind = Kind.REDUCTION
    combine: ClassVar[str]
    axis: int
    keep: bool = True
    last: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        axis = normal_axis(node.integer("axis", 0), node.input(0).rank)
        return cls(axis, bool(node.integer("keepdims", 1)), bool(node.integer("select_last_index", 0))), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.dtype not in NUMBERS:
            raise self.misfit(inputs, f"not defined for {x.dtype.value}")
        if not 0 <= self.axis < x.rank or not x.shape[self.axis]:
            raise self.misfit(inputs, f"has no axis {self.axis}, or it is empty")
        one = (1,) if self.keep else ()
        return (TensorType(DType.I64, (*x.shape[: self.axis], *one, *x.shape[self.axis + 1 :])),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape)])
        extent = x.shape[self.axis]

        def inner(*i: Expr) -> Expr:
            *at, k = i
            return x[(*at[: self.axis], k, *at[self.axis + self.keep :])]

        best = b.reduce(f"{name}_{self.combine}", out.shape, (extent,), inner, self.combine)

        def place(*i: Expr) -> Expr:
            value, k = inner(*i), i[-1]
            found = equal(value, best[i[:-1]])
            if x.dtype.is_float:
                found = binary(BinaryOp.OR, found, binary(BinaryOp.NE, value, value))
            return select(found, k, as_index(-1 if self.last else extent))

        return (b.reduce(name, out.shape, (extent,), place, "max" if self.last else "min"),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        find = np.argmax if self.combine == "max" else np.argmin
        if self.last:
            at = x.shape[self.axis] - 1 - find(np.flip(x, self.axis), self.axis, keepdims=self.keep)
        else:
            at = find(x, self.axis, keepdims=self.keep)
        return (np.asarray(at, np.int64),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = rng.integers(0, 3, size=(2, 5, 3)).astype(np.float32)
        yield cls.sample(x, axis=1)
        yield cls.sample(x, axis=-1, keepdims=0)
        yield cls.sample(x, axis=1, select_last_index=1)
        yield cls.sample(x.astype(np.int32))
        nan = np.array([[1, np.nan, 7, np.nan], [np.inf, 2, -np.inf, np.inf]], np.float32)
        yield Sample(cls(1), (nan,))


@dataclass(frozen=True, slots=True)
class ArgMax(ArgExtreme):
    onnx = ("ArgMax",)
    combine = "max"


@dataclass(frozen=True, slots=True)
class ArgMin(ArgExtreme):
    onnx = ("ArgMin",)
    combine = "min"
