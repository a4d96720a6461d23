"""Activations, kept whole where ONNX has them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.frontend.torch.emitter import NodeEmitter, Tensor
from tilewright.frontend.torch.unsupported import UnsupportedOperator


def _plain(op: str, e: NodeEmitter, x: Tensor) -> str:
    return e.op(op, x)


def _gelu(e: NodeEmitter, x: Tensor, *, approximate: str = "none") -> str:
    return e.op("Gelu", x, approximate=approximate)


def _silu(e: NodeEmitter, x: Tensor) -> str:
    return e.op("Mul", x, e.op("Sigmoid", x))


def _hardsigmoid(e: NodeEmitter, x: Tensor) -> str:
    return e.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)


def _hardtanh(e: NodeEmitter, x: Tensor, low: float = -1, high: float = 1) -> str:
    return e.op("Clip", x, e.number(low, x.dtype), e.number(high, x.dtype))


def _relu6(e: NodeEmitter, x: Tensor) -> str:
    return _hardtanh(e, x, 0, 6)


def _leaky_relu(e: NodeEmitter, x: Tensor, slope: float = 0.01) -> str:
    return e.op("LeakyRelu", x, alpha=float(slope))


def _elu(e: NodeEmitter, x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> str:
    if input_scale != 1:
        raise UnsupportedOperator("an ELU whose input is scaled")
    name = e.op("Elu", x, alpha=float(alpha))
    return name if scale == 1 else e.op("Mul", name, e.number(scale, x.dtype))


def _softplus(e: NodeEmitter, x: Tensor, beta: float = 1, threshold: float = 20) -> str:
    scaled = x.name if beta == 1 else e.op("Mul", x, e.number(beta, x.dtype))
    name = e.op("Softplus", scaled)
    if beta != 1:
        name = e.op("Div", name, e.number(beta, x.dtype))
    return e.op("Where", e.op("Greater", scaled, e.number(threshold, x.dtype)), x, name)


def _prelu(e: NodeEmitter, x: Tensor, slope: Tensor) -> str:
    name = slope.name
    if x.rank > 2 and slope.rank == 1:
        name = e.op("Reshape", slope, e.integers(-1, *[1] * (x.rank - 2)))
    return e.op("PRelu", x, name)


def _log_sigmoid(e: NodeEmitter, x: Tensor) -> str:
    return e.op("Neg", e.op("Softplus", e.op("Neg", x)))


def _log_sigmoid_forward(e: NodeEmitter, x: Tensor) -> tuple[str, None]:
    return _log_sigmoid(e, x), None


def _threshold(e: NodeEmitter, x: Tensor, threshold: float, value: float) -> str:
    is_above = e.op("Greater", x, e.number(threshold, x.dtype))
    return e.op("Where", is_above, x, e.number(value, x.dtype))


def _hardshrink(e: NodeEmitter, x: Tensor, lambd: float = 0.5) -> str:
    return e.op("Shrink", x, lambd=float(lambd), bias=0.0)


def _softshrink(e: NodeEmitter, x: Tensor, lambd: float = 0.5) -> str:
    return e.op("Shrink", x, lambd=float(lambd), bias=float(lambd))


def _glu(e: NodeEmitter, x: Tensor, dim: int = -1) -> str:
    axis = x.axis(dim)
    half = x.extent(axis) // 2
    a, b = e.ops(2, "Split", x, e.integers(half, half), axis=axis)
    return e.op("Mul", a, e.op("Sigmoid", b))


def _softmax(op: str, e: NodeEmitter, x: Tensor, dim: int, half_to_float: object = False, **_: Any) -> str:
    """Also `softmax.int`, whose last argument is an element type."""
    name = e.to(x, e.out.dtype)
    if x.rank == 0:
        return e.op("Sub", name, name) if op == "LogSoftmax" else e.number(1, e.out.dtype)
    return e.op(op, name, axis=x.axis(dim))


def _safe_softmax(e: NodeEmitter, x: Tensor, dim: int, dtype: object = None) -> str:
    """Rows of nothing but -∞ become zeros."""
    target = e.out.dtype
    name, axis = e.to(x, target), x.axis(dim)
    weights = e.op("Softmax", name, axis=axis)
    most = e.op("ReduceMax", name, e.integers(axis), keepdims=1)
    is_empty = e.op("Equal", most, e.number(float("-inf"), target))
    return e.op("Where", is_empty, e.number(0, target), weights)


ENTRIES: Mapping[str, Callable[..., Any]] = {
    "aten.relu.default": partial(_plain, "Relu"),
    "aten.hardswish.default": partial(_plain, "HardSwish"),
    "aten.mish.default": partial(_plain, "Mish"),
    "aten.selu.default": partial(_plain, "Selu"),
    "aten.relu6.default": _relu6,
    "aten.gelu.default": _gelu,
    "aten.silu.default": _silu,
    "aten.hardsigmoid.default": _hardsigmoid,
    "aten.hardtanh.default": _hardtanh,
    "aten.leaky_relu.default": _leaky_relu,
    "aten.elu.default": _elu,
    "aten.softplus.default": _softplus,
    "aten.prelu.default": _prelu,
    "aten._prelu_kernel.default": _prelu,
    "aten.log_sigmoid.default": _log_sigmoid,
    "aten.log_sigmoid_forward.default": _log_sigmoid_forward,
    "aten.threshold.default": _threshold,
    "aten.hardshrink.default": _hardshrink,
    "aten.softshrink.default": _softshrink,
    "aten.glu.default": _glu,
    "aten._softmax.default": partial(_softmax, "Softmax"),
    "aten.softmax.int": partial(_softmax, "Softmax"),
    "aten._log_softmax.default": partial(_softmax, "LogSoftmax"),
    "aten.log_softmax.int": partial(_softmax, "LogSoftmax"),
    "aten._safe_softmax.default": _safe_softmax,
}
