"""Conversion of elements among the types of native code. What else ONNX has (strings, floats of 8 bits and fewer, the
integers of 4 and 2 bits) is in `ops/host/cast.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import ml_dtypes
import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import apply_cast
from tilewright.ir.expr import BinaryOp, Expr, binary, cast, const
from tilewright.ops.axes import ANY
from tilewright.ops.core.elementwise import SPECIAL, Elementwise
from tilewright.ops.opdef import ONNX_DTYPES, OnHost, OnnxNode, Sample, TensorType
from tilewright.support.arrays import Array

_NARROW = frozenset({DType.I8, DType.I16, DType.U8, DType.U16})


def convert(x: Expr, dtype: DType) -> Expr:
    """`x` as `dtype`. Integers keep their low bits, and so do floats on their way to short ones."""
    if dtype is DType.BOOL and x.dtype is not DType.BOOL:
        return binary(BinaryOp.NE, x, const(0, x.dtype))
    if x.dtype.is_float and dtype in _NARROW:
        return cast(dtype, cast(DType.I32, x))
    if x.dtype.is_float and dtype is DType.U32:
        return cast(dtype, cast(DType.I64, x))
    return cast(dtype, x)


@dataclass(frozen=True, slots=True)
class RoundTo(Elementwise):
    """Floats of 32 bits, rounded to the nearest of `dtype`, which are halves."""

    takes = frozenset({DType.F32})
    arity = (1, 1)
    widens = False
    dtype: DType

    def value(self, args: Sequence[Expr]) -> Expr:
        return cast(DType.F32, cast(self.dtype, args[0]))

    def values(self, args: Sequence[Array]) -> Array:
        return args[0].astype(np.float32).astype(self.dtype.numpy).astype(np.float64)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = np.array([*SPECIAL, 1e-8, 65519.0, 65520.0, 1 + 2**-11, *rng.standard_normal(8)], np.float32)
        yield Sample(cls(DType.F16), (x,))
        yield Sample(cls(DType.BF16), (x,))


@dataclass(frozen=True, slots=True)
class Cast(Elementwise):
    """Floats become integers by truncation towards zero, and booleans by comparison with zero."""

    onnx = ("Cast", "CastLike")
    takes = ANY
    widens = False
    dtype: DType

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        if node.op_type == "CastLike":
            return cls(node.input(1).dtype), (0,)
        to = node.integer("to", 0)
        if to not in ONNX_DTYPES:
            raise OnHost("it gives elements that only the host computes with")
        return cls(ONNX_DTYPES[to]), (0,)

    def result(self, inputs: Sequence[TensorType]) -> DType:
        return self.dtype

    def value(self, args: Sequence[Expr]) -> Expr:
        return convert(args[0], self.dtype)

    def values(self, args: Sequence[Array]) -> Array:
        return args[0]

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        # Not by way of float64: from integers of 64 bits to halves that would round twice.
        (x,) = inputs
        source = DType.of(x.dtype)
        with np.errstate(all="ignore"):
            if source.is_float and self.dtype.is_int and self.dtype.bits < 64:
                return (x.astype(np.int64).astype(self.dtype.numpy),)
            return (np.asarray(apply_cast(self.dtype, source, x)).reshape(x.shape),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = np.array([0.0, -0.0, 1.5, -1.5, 2.5, 100.25], np.float32)
        for to in ONNX_DTYPES:
            signed = abs(x) if ONNX_DTYPES[to] in (DType.U32, DType.U64) else x
            yield cls.sample(signed, to=to)
            yield cls.sample(np.array([-3, 0, 300, 70000], np.int64), to=to)
            yield cls.sample(np.array([True, False]), to=to)
        for to in (1, 9, 10, 11, 16):
            yield cls.sample(np.array(SPECIAL, np.float32), to=to)
        # Halfway between two halves, and a little more, which a first rounding to f32 would hide.
        tie = np.array([1 + 2**-11, 1 + 2**-11 + 2**-40, 1 + 2**-8, 1 + 2**-8 + 2**-40, 65520, 1e-8])
        for to in (10, 16):
            yield Sample(cls(ONNX_DTYPES[to]), (tie,))
            yield Sample(cls(ONNX_DTYPES[to]), (np.array([2**60 + 2**52 + 1, -(2**63), 2**40], np.int64),))
        for half in (np.float16, ml_dtypes.bfloat16):
            for to in (1, 3, 6, 7, 9, 10, 11, 16):
                yield cls.sample(x.astype(half), to=to)
        yield cls.sample(np.array([2**63, 5], np.uint64), to=11)
        yield cls.sample(x, np.array(1, np.int32), op_type="CastLike")
        yield cls.sample(x, np.array([], ml_dtypes.bfloat16), op_type="CastLike", opset=19)
