"""QuantizeLinear and DequantizeLinear for types that native code does not have: floats of 8, 6 and 4 bits, integers of
4 and 2. Weights of these types are constants, so what dequantises them is computed once, when a model is imported.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import ml_dtypes
import numpy as np

from tilewright.ops.core.quantize import Granularity
from tilewright.ops.host.cast import FEW_BITS, convert_array, element_type
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_WHY = "it has elements that only the host computes with"


@dataclass(frozen=True, slots=True)
class QuantizeLinearOnHost(HostOp):
    onnx = ("QuantizeLinear", "com.microsoft.QuantizeLinear")
    why = _WHY
    axis: int = 1
    block: int = 0
    to: int = 0
    precision: int = 0
    saturate: bool = True

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(
            node.integer("axis", 1),
            node.integer("block_size", 0),
            node.integer("output_dtype", 0),
            node.integer("precision", 0),
            bool(node.integer("saturate", 1)),
        )

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x, scale = tensor(inputs[0], "x"), tensor(inputs[1], "the scale")
        zero = None if len(inputs) < 3 or inputs[2] is None else tensor(inputs[2], "the zero point")
        dtype = element_type(self.to or 2) if zero is None else zero.dtype
        if self.to and dtype != element_type(self.to):
            raise UserError(f"output_dtype is {element_type(self.to)}, and the zero point is {dtype}")
        granularity = Granularity.of(x.shape, scale.shape, self.axis, self.block)
        short = element_type(self.precision) if self.precision else scale.dtype
        if short.kind in "iu" or short == ml_dtypes.float8_e8m0fnu:
            short = np.dtype(np.float64)
        wide = np.float64 if short == np.float64 else np.float32
        with np.errstate(all="ignore"):
            step = granularity.spread(scale, x.shape).astype(short).astype(wide)
            ratio = (x.astype(short).astype(wide) / step).astype(short).astype(wide)
            offset = None if zero is None else granularity.spread(zero, x.shape).astype(wide)
            return (_quantized(ratio, offset, dtype, self.saturate),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = (rng.standard_normal((3, 4)) * 9).astype(np.float32)
        scale, scales = np.array(2.0, np.float32), np.array([2.0, 0.5, 1.0, 3.0], np.float32)
        for t in (ml_dtypes.int4, ml_dtypes.uint4):
            yield HostSample("QuantizeLinear", (x, scale, np.array(1, t)), opset=21)
            yield HostSample("QuantizeLinear", (x, scales, np.array([0, 1, 2, 3]).astype(t)), opset=21)
        for to in (17, 18, 19, 20):
            for saturate in (0, 1):
                yield HostSample(
                    "QuantizeLinear", (x * 99, scale), {"output_dtype": to, "saturate": saturate}, opset=21
                )
        for to in (23, 25, 26):
            yield HostSample("QuantizeLinear", (x, scale), {"output_dtype": to})
        blocks = abs(rng.standard_normal((2, 4))).astype(np.float32) + 1
        yield HostSample(
            "QuantizeLinear", (x, blocks), {"output_dtype": 22, "axis": 0, "block_size": 2}, opset=21
        )
        yield HostSample("QuantizeLinear", (x, scale, np.array(1, ml_dtypes.int4)), domain="com.microsoft")


def _quantized(ratio: Array, offset: Array | None, dtype: np.dtype[Any], saturate: bool) -> Array:
    if dtype in FEW_BITS or dtype.kind in "iu":
        value = np.rint(ratio) if offset is None else np.rint(ratio) + offset
        info = ml_dtypes.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        whole = np.where(np.isnan(value), low, np.clip(value, low, high)).astype(np.int32)
        return convert_array(whole, dtype)
    return convert_array(ratio if offset is None else ratio + offset, dtype, saturate)


@dataclass(frozen=True, slots=True)
class DequantizeLinearOnHost(HostOp):
    onnx = ("DequantizeLinear", "com.microsoft.DequantizeLinear")
    why = _WHY
    axis: int = 1
    block: int = 0
    to: int = 0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node.integer("axis", 1), node.integer("block_size", 0), node.integer("output_dtype", 0))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x, scale = tensor(inputs[0], "x"), tensor(inputs[1], "the scale")
        zero = None if len(inputs) < 3 or inputs[2] is None else tensor(inputs[2], "the zero point")
        dtype = element_type(self.to) if self.to else scale.dtype
        granularity = Granularity.of(x.shape, scale.shape, self.axis, self.block)
        with np.errstate(all="ignore"):
            value = x.astype(np.float32)
            if zero is not None:
                value = value - granularity.spread(zero, x.shape).astype(np.float32)
            value = value * granularity.spread(scale, x.shape).astype(np.float32)
            return (np.asarray(value).astype(dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        scale, scales = np.array(2.0, np.float32), np.array([2.0, 0.5, 1.0, 3.0], np.float32)
        numbers = rng.integers(0, 4, (3, 4))
        blocks = abs(rng.standard_normal((2, 4))).astype(np.float32)
        for t in (ml_dtypes.int4, ml_dtypes.uint4):
            x = numbers.astype(t)
            yield HostSample("DequantizeLinear", (x, scale, np.array(1, t)), opset=21)
            yield HostSample("DequantizeLinear", (x, scales, np.array([0, 1, 2, 3]).astype(t)), opset=21)
            yield HostSample("DequantizeLinear", (x, blocks), {"axis": 0, "block_size": 2}, opset=21)
            yield HostSample("DequantizeLinear", (x, scale), domain="com.microsoft")
        for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz):
            yield HostSample("DequantizeLinear", (numbers.astype(t), scale), opset=21)
        for t in (ml_dtypes.float4_e2m1fn, ml_dtypes.int2):
            yield HostSample("DequantizeLinear", ((numbers % 2).astype(t), scale.astype(np.float16)))
