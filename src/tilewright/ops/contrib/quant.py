"""The quantised operators of com.microsoft that onnxruntime's quantizer writes: numbers are brought to f32, computed
with, and quantised again. The parts are grouped like any other nodes, so nothing of that goes through memory.

Most of them round as onnxruntime does; where it takes another order of operations, a result may differ by one step.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.axes import normal_axis
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.core.integer import random_bytes
from tilewright.ops.core.quantize import real
from tilewright.ops.hostop import HostSample
from tilewright.ops.opdef import ONNX_DTYPES, OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_DOMAIN = "com.microsoft"
ONNX_NUMBERS = {dtype: number for number, dtype in ONNX_DTYPES.items()}


def _dequantized(body: CompositeBody, i: int) -> Term:
    """Inputs i, its scale and its zero point, as f32."""
    return body.op("DequantizeLinear", body[i], body[i + 1], body.get(i + 2), dtype=DType.F32)


def _quantized(body: CompositeBody, value: Term, i: int, like: DType) -> Term:
    """A value by the scale and the zero point that are inputs i and i + 1; without the latter in the type `like`."""
    zero = body.get(i + 1)
    dtype = like if zero is None else zero.dtype
    return body.op("QuantizeLinear", value, body[i], zero, dtype=dtype, output_dtype=ONNX_NUMBERS[dtype])


class QLinearArithmetic(Composite):
    onnx = ("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul")

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        op_type = node.op_type.rpartition("QLinear")[2]
        value = body.op(op_type, _dequantized(body, 0), _dequantized(body, 3))
        return (_quantized(body, value, 6, node.input(0).dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        for name in ("QLinearAdd", "QLinearMul"):
            for t in (np.uint8, np.int8):
                a, b = _group(rng, t, 0.02, 5, 2, 3, 4), _group(rng, t, 0.05, 99, 3, 1)
                yield HostSample(name, (*a, *b, real(0.07), np.array(9, t)), domain=_DOMAIN)


class QLinearActivation(Composite):
    onnx = ("com.microsoft.QLinearSigmoid", "com.microsoft.QLinearLeakyRelu")

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        x = _dequantized(body, 0)
        if node.op_type.endswith("Sigmoid"):
            value = body.op("Sigmoid", x)
        else:
            value = body.op("LeakyRelu", x, alpha=node.real("alpha", 0.01))
        return (_quantized(body, value, 3, node.input(0).dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        for t in (np.uint8, np.int8):
            x = _group(rng, t, 0.05, 60, 2, 9)
            yield HostSample("QLinearSigmoid", (*x, real(0.004), np.array(0, t)), domain=_DOMAIN)
            yield HostSample(
                "QLinearLeakyRelu", (*x, real(0.05), np.array(20, t)), {"alpha": 0.2}, domain=_DOMAIN
            )


class QLinearSoftmax(Composite):
    """As ONNX has it since opset 13 along one axis, or before that along all from `axis` on."""

    onnx = ("com.microsoft.QLinearSoftmax",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        shape, x = node.input(0).shape, _dequantized(body, 0)
        axis = normal_axis(node.integer("axis", -1), len(shape))
        if node.integer("opset", 13) >= 13:
            value = body.op("Softmax", x, axis=axis)
        else:
            flat = body.reshape(x, math.prod(shape[:axis]), math.prod(shape[axis:]))
            value = body.reshape(body.op("Softmax", flat, axis=1), *shape)
        return (_quantized(body, value, 3, node.input(0).dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        for t in (np.uint8, np.int8):
            inputs = (*_group(rng, t, 0.05, 60, 2, 3, 4), real(1 / 256), np.array(np.iinfo(t).min, t))
            yield HostSample("QLinearSoftmax", inputs, {"opset": 13, "axis": -1}, domain=_DOMAIN)
            yield HostSample("QLinearSoftmax", inputs, {"opset": 13, "axis": 1}, domain=_DOMAIN)
            yield HostSample("QLinearSoftmax", inputs, {"opset": 12, "axis": 1}, domain=_DOMAIN)


class QLinearConcat(Composite):
    onnx = ("com.microsoft.QLinearConcat",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        if len(node.inputs) < 5 or (len(node.inputs) - 2) % 3:
            raise UserError(f"{len(node.inputs)} inputs are not a scale, a zero point, and parts with theirs")
        parts = [
            _quantized(body, _dequantized(body, i), 0, body[i].dtype) for i in range(2, len(node.inputs), 3)
        ]
        return (body.concat(normal_axis(node.integer("axis", 1), node.input(2).rank), *parts),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        for t in (np.uint8, np.int8):
            a, b = _group(rng, t, 0.02, 5, 2, 3, 4), _group(rng, t, 0.05, 99, 2, 1, 4)
            yield HostSample(
                "QLinearConcat", (real(0.05), np.array(3, t), *a, *b, *a), {"axis": 1}, domain=_DOMAIN
            )


class QLinearPool(Composite):
    """With `channels_last` the channels are the last axis."""

    onnx = ("com.microsoft.QLinearAveragePool", "com.microsoft.QLinearGlobalAveragePool")

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        rank = node.input(0).rank
        if rank < 3:
            raise UserError(f"a pool over {rank} axes")
        x, is_last = _dequantized(body, 0), bool(node.integer("channels_last", 0))
        if is_last:
            x = body.transpose(x, 0, rank - 1, *range(1, rank - 1))
        if node.op_type.endswith("GlobalAveragePool"):
            value = body.op("GlobalAveragePool", x)
        else:
            known = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
            value = body.op("AveragePool", x, **{k: v for k, v in node.attrs.items() if k in known})
        if is_last:
            value = body.transpose(value, 0, *range(2, rank), 1)
        return (_quantized(body, value, 3, node.input(0).dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        for t in (np.uint8, np.int8):
            inputs = (*_group(rng, t, 0.05, 60, 1, 4, 6, 5), real(0.047), np.array(9, t))
            for last in (0, 1):
                yield HostSample("QLinearGlobalAveragePool", inputs, {"channels_last": last}, domain=_DOMAIN)
            window = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "strides": [2, 1]}
            for include in (0, 1):
                yield HostSample(
                    "QLinearAveragePool", inputs, {**window, "count_include_pad": include}, domain=_DOMAIN
                )
            yield HostSample("QLinearAveragePool", inputs, {**window, "channels_last": 1}, domain=_DOMAIN)


class QLinearReduceMean(Composite):
    onnx = ("com.microsoft.QLinearReduceMean",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        axes = body.integers(*(node.integers("axes") or ()))
        value = body.op("ReduceMean", _dequantized(body, 0), axes, keepdims=node.integer("keepdims", 1))
        return (_quantized(body, value, 3, node.input(0).dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        inputs = (*_group(rng, np.uint8, 0.05, 60, 2, 3, 4), real(0.047), np.array(9, np.uint8))
        for attrs in ({"axes": [1, 2], "keepdims": 1}, {"axes": [-1], "keepdims": 0}):
            yield HostSample("QLinearReduceMean", inputs, attrs, domain=_DOMAIN)


class QLinearWhere(Composite):
    onnx = ("com.microsoft.QLinearWhere",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        value = body.op("Where", body[0], _dequantized(body, 1), _dequantized(body, 4), dtype=DType.F32)
        return (_quantized(body, value, 7, node.input(1).dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        for t in (np.uint8, np.int8):
            a, b = _group(rng, t, 0.02, 5, 2, 3, 4), _group(rng, t, 0.05, 99, 1, 4)
            chosen = rng.random((2, 3, 1)) < 0.5
            yield HostSample("QLinearWhere", (chosen, *a, *b, real(0.05), np.array(3, t)), domain=_DOMAIN)


def _group(
    rng: np.random.Generator, dtype: type[np.integer], scale: float, zero: int, *shape: int
) -> tuple[Array, ...]:
    """Quantised numbers, their scale and their zero point."""
    return random_bytes(rng, dtype, *shape), real(scale), np.array(zero, dtype)
