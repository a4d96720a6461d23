"""BitCast: the same bits, read as another type of the same size."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import ml_dtypes
import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Bitcast, Expr, cast
from tilewright.ops.axes import ANY
from tilewright.ops.core.cast import convert
from tilewright.ops.core.elementwise import SPECIAL, Elementwise
from tilewright.ops.host.cast import element_type
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import ONNX_DTYPES, OnHost, OnnxNode, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_OPSET = 26  # the first that has it


@dataclass(frozen=True, slots=True)
class BitCast(Elementwise):
    """A bool is a byte of 0 or 1; of other bytes only whether they are 0 is kept."""

    onnx = ("BitCast",)
    takes = ANY
    widens = False
    dtype: DType

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        to = node.integer("to", 0)
        if to not in ONNX_DTYPES:
            raise OnHost("it gives elements that only the host computes with")
        return cls(ONNX_DTYPES[to]), (0,)

    def result(self, inputs: Sequence[TensorType]) -> DType:
        if inputs[0].dtype.bytes != self.dtype.bytes:
            raise self.misfit(inputs, f"{self.dtype.value} has another size")
        return self.dtype

    def value(self, args: Sequence[Expr]) -> Expr:
        (x,) = args
        if x.dtype is DType.BOOL:
            return cast(self.dtype, x)
        if self.dtype is DType.BOOL:
            return convert(x, self.dtype)
        return x if x.dtype is self.dtype else Bitcast(self.dtype, x)

    def values(self, args: Sequence[Array]) -> Array:
        raise AssertionError("its reference does not widen")

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        whole = np.ascontiguousarray(x).reshape(x.shape)
        return (whole != 0 if self.dtype is DType.BOOL else whole.view(self.dtype.numpy),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = np.array(SPECIAL, np.float32)
        yield cls.sample(x, to=6, opset=_OPSET)
        yield cls.sample(np.array([[0, 1, -1, 1 << 30]], np.int32), to=1, opset=_OPSET)
        yield cls.sample(x.astype(np.float64), to=13, opset=_OPSET)
        yield cls.sample(x.astype(ml_dtypes.bfloat16), to=4, opset=_OPSET)
        yield cls.sample(np.array([-1, -128, 127], np.int8), to=2, opset=_OPSET)
        yield cls.sample(np.array([True, False]), to=2, opset=_OPSET)
        yield cls.sample(np.array([1, 0], np.uint8), to=9, opset=_OPSET)
        yield cls.sample(np.array(1.0, np.float32), to=1, opset=_OPSET)


@dataclass(frozen=True, slots=True)
class BitCastOnHost(HostOp):
    onnx = ("BitCast",)
    why = "it has elements that only the host computes with"
    to: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node.integer("to", 0))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x, dtype = tensor(inputs[0], "input 0"), element_type(self.to)
        if x.dtype.kind == "O" or dtype.kind == "O" or _bits(x.dtype) != _bits(dtype):
            raise UserError(f"{x.dtype} and {dtype} have different sizes")
        whole = np.ascontiguousarray(x).reshape(x.shape)
        bits = _bits(dtype)
        if bits >= 8:
            return (whole.view(dtype),)
        low = whole.view(np.uint8) & np.uint8((1 << bits) - 1)
        if dtype.name.startswith("int"):  # ml_dtypes keeps them sign extended
            half = 1 << (bits - 1)
            return (((low.astype(np.int8) ^ half) - half).astype(np.int8).view(dtype),)
        return (low.view(dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = np.array([0.0, 1.5, -3.0, 448.0], np.float32).astype(ml_dtypes.float8_e4m3fn)
        yield HostSample("BitCast", (x,), {"to": 2}, opset=_OPSET)
        yield HostSample("BitCast", (x.view(np.uint8),), {"to": 17}, opset=_OPSET)
        yield HostSample("BitCast", (np.arange(4).astype(ml_dtypes.uint4),), {"to": 22}, opset=_OPSET)


def _bits(dtype: np.dtype[Any]) -> int:
    few = {
        "int4": 4,
        "uint4": 4,
        "float4_e2m1fn": 4,
        "int2": 2,
        "uint2": 2,
        "float6_e2m3fn": 6,
        "float6_e3m2fn": 6,
    }
    return few.get(dtype.name, dtype.itemsize * 8)
