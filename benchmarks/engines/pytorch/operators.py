"""The operators that have a translation: OPERATORS, by their names in ONNX."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from . import movement
from .recurrent import gru, lstm
from .trace import is_known, numbers
from .windows import average_pool, conv, conv_transpose, max_pool, resize

torch: Any = import_module("torch")
F: Any = import_module("torch.nn.functional")
onnx: Any = import_module("onnx")

Operator = Callable[..., Any]

# ---------------------------------------------------------------------------------------------------------- elementwise


def _numbers_apart(inputs: tuple[Any, ...]) -> list[Any]:
    """Constants of one element are numbers beside a tensor, as they are in what people write."""
    if all(map(is_known, inputs)):
        return list(inputs)
    most = max(v.ndim for v in inputs if not is_known(v))
    return [v.item() if is_known(v) and v.numel() == 1 and v.ndim <= most else v for v in inputs]


def _named(name: str) -> Operator:
    """A function of PyTorch."""
    compute = getattr(torch, name)
    return lambda *inputs: compute(*inputs)


def _infix(name: str) -> Operator:
    """One of Python's, which takes a number on either side."""
    compute: Operator = getattr(operator, name)

    def call(x: Any, y: Any) -> Any:
        return compute(*_numbers_apart((x, y)))

    return call


def _functional(name: str) -> Operator:
    compute: Operator = getattr(F, name)

    def call(x: Any) -> Any:
        return compute(x)

    return call


def _joined(name: str) -> Operator:
    """Of any number of inputs, two by two."""
    compute = getattr(torch, name)
    return lambda *inputs: functools.reduce(compute, inputs)


def divide(x: Any, y: Any) -> Any:
    """Integers are rounded towards zero."""
    if not x.dtype.is_floating_point:
        return torch.div(x, y, rounding_mode="trunc")
    a, b = _numbers_apart((x, y))
    return a / b


def mod(x: Any, y: Any, *, fmod: int = 0) -> Any:
    return (torch.fmod if fmod else torch.remainder)(x, y)


def clip(x: Any, low: Any = None, high: Any = None) -> Any:
    if low is None and high is None:
        return x
    bounds = [v.item() if v is not None and is_known(v) else v for v in (low, high)]
    return torch.clamp(x, *bounds)


def _type_of(to: int) -> Any:
    return torch.from_numpy(np.zeros(0, onnx.helper.tensor_dtype_to_np_dtype(to))).dtype


def cast(x: Any, *, to: int) -> Any:
    return x.to(_type_of(to))


def cast_like(x: Any, like: Any) -> Any:
    return x.to(like.dtype)


def dropout(x: Any, ratio: Any = None, training: Any = None, *, seed: int = 0) -> Any:
    return x


def elu(x: Any, *, alpha: float = 1.0) -> Any:
    return F.elu(x, alpha)


def gelu(x: Any, *, approximate: str = "none") -> Any:
    return F.gelu(x, approximate=approximate)


def hard_sigmoid(x: Any, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    return torch.clamp(alpha * x + beta, 0, 1)


def leaky_relu(x: Any, *, alpha: float = 0.01) -> Any:
    return F.leaky_relu(x, alpha)


def parametric_relu(x: Any, slope: Any) -> Any:
    return torch.where(x < 0, slope * x, x)


def swish(x: Any, *, alpha: float = 1.0) -> Any:
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


def _steps(v: Any, x: Any, axis: int) -> Any:
    """A scale or zero point: a number, or one for each slice along the axis."""
    if not is_known(v):
        raise LookupError("a scale that is no constant has no translation to PyTorch")
    return v.item() if v.numel() == 1 else v.reshape([-1, *[1] * (x.ndim - 1 - axis % x.ndim)])


def quantize(x: Any, scale: Any, zero: Any = None, *, axis: int = 1) -> Any:
    kind = torch.uint8 if zero is None else zero.dtype
    limits = torch.iinfo(kind)
    y = torch.round(x / _steps(scale, x, axis))
    y = y if zero is None else y + _steps(zero, x, axis)
    return torch.clamp(y, limits.min, limits.max).to(kind)


def dequantize(x: Any, scale: Any, zero: Any = None, *, axis: int = 1) -> Any:
    y = x.to(torch.float32)
    y = y if zero is None else y - _steps(zero, x, axis)
    return y * _steps(scale, x, axis)


# ----------------------------------------------------------------------------- contractions, reductions, normalisations


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    a, b = a.t() if transA else a, b if transB else b.t()
    if alpha == 1 and beta == 1 and (c is None or c.ndim == 1):
        return F.linear(a, b, c)
    y = alpha * (a @ b.t())
    return y if c is None else y + beta * c


def einsum(*inputs: Any, equation: str) -> Any:
    return torch.einsum(equation, *inputs)


def _reduction(compute: Callable[[Any, list[int], bool], Any]) -> Operator:
    """Axes are an input, or an attribute as they were once."""

    def reduce(
        x: Any, at: Any = None, *, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Any:
        given = axes if at is None else at
        over = [] if given is None else numbers(given)
        if not over and noop_with_empty_axes:
            return x
        return compute(x, over or list(range(x.ndim)), bool(keepdims))

    return reduce


def _plain(name: str) -> Operator:
    compute = getattr(torch, name)
    return _reduction(lambda x, axes, keep: compute(x, axes, keep))


def _total(x: Any, axes: list[int], keep: bool) -> Any:
    return torch.sum(x, axes, keep, dtype=x.dtype)


def _product(x: Any, axes: list[int], keep: bool) -> Any:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _length(x: Any, axes: list[int], keep: bool) -> Any:
    return torch.linalg.vector_norm(x, 2, axes, keep)


def _sum_of_squares(x: Any, axes: list[int], keep: bool) -> Any:
    return torch.sum(x * x, axes, keep)


def _extreme(name: str) -> Operator:
    compute = getattr(torch, name)

    def find(x: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
        if select_last_index:
            return x.shape[axis] - 1 - compute(torch.flip(x, [axis]), axis, bool(keepdims))
        return compute(x, axis, bool(keepdims))

    return find


def global_average_pool(x: Any) -> Any:
    return torch.mean(x, list(range(2, x.ndim)), True)


def global_max_pool(x: Any) -> Any:
    return torch.amax(x, list(range(2, x.ndim)), True)


def softmax(x: Any, *, axis: int = -1) -> Any:
    return torch.softmax(x, axis)


def log_softmax(x: Any, *, axis: int = -1) -> Any:
    return torch.log_softmax(x, axis)


def layer_norm(x: Any, scale: Any, bias: Any = None, *, axis: int = -1, epsilon: float = 1e-5) -> Any:
    return F.layer_norm(x, list(x.shape[axis % x.ndim :]), scale, bias, epsilon)


def batch_norm(
    x: Any, scale: Any, bias: Any, mean: Any, variance: Any, *, epsilon: float = 1e-5, momentum: float = 0.9
) -> Any:
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)


def instance_norm(x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5) -> Any:
    return F.instance_norm(x, weight=scale, bias=bias, eps=epsilon)


def cumulative_sum(x: Any, axis: Any) -> Any:
    return torch.cumsum(x, numbers(axis)[0], dtype=x.dtype)


def fourier(x: Any, length: Any = None, at: Any = None, *, axis: int = 1, onesided: int = 0) -> Any:
    if length is not None or x.shape[-1] != 1:
        raise LookupError("DFT of complex signals, or of another length, has no translation to PyTorch")
    along = axis if at is None else numbers(at)[0]
    signal = torch.select(x, -1, 0)
    over = along if along >= 0 else along + 1  # the last axis, which has gone, is not counted
    return torch.view_as_real((torch.fft.rfft if onesided else torch.fft.fft)(signal, dim=over))


def top_k(x: Any, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Any, Any]:
    found = torch.topk(x, numbers(k)[0], axis, bool(largest), bool(sorted))
    return found[0], found[1]


_SAME_NAME = (
    "Abs Ceil Cos Erf Exp Floor IsInf IsNaN Log MatMul Reciprocal Round Sign Sigmoid Sin Sqrt Tanh Where"
)

OPERATORS: dict[str, Operator] = {
    **{name: _named(name.lower()) for name in _SAME_NAME.split()},
    "Add": _infix("add"),
    "And": _named("logical_and"),
    "ArgMax": _extreme("argmax"),
    "ArgMin": _extreme("argmin"),
    "AveragePool": average_pool,
    "BatchNormalization": batch_norm,
    "Cast": cast,
    "CastLike": cast_like,
    "Clip": clip,
    "Concat": movement.concat,
    "Constant": movement.constant,
    "ConstantOfShape": movement.constant_of_shape,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "CumSum": cumulative_sum,
    "DFT": fourier,
    "DepthToSpace": movement.depth_to_space,
    "DequantizeLinear": dequantize,
    "Div": divide,
    "Dropout": dropout,
    "Einsum": einsum,
    "Elu": elu,
    "Equal": _named("eq"),
    "Expand": movement.expand,
    "Flatten": movement.flatten,
    "GRU": gru,
    "Gather": movement.gather,
    "GatherElements": movement.gather_elements,
    "GatherND": movement.gather_nd,
    "Gelu": gelu,
    "Gemm": gemm,
    "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
    "Greater": _named("gt"),
    "GreaterOrEqual": _named("ge"),
    "GridSample": movement.grid_sample,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": _functional("hardswish"),
    "Identity": movement.identity,
    "InstanceNormalization": instance_norm,
    "LSTM": lstm,
    "LayerNormalization": layer_norm,
    "LeakyRelu": leaky_relu,
    "Less": _named("lt"),
    "LessOrEqual": _named("le"),
    "LogSoftmax": log_softmax,
    "Max": _joined("maximum"),
    "MaxPool": max_pool,
    "Min": _joined("minimum"),
    "Mish": _functional("mish"),
    "Mod": mod,
    "Mul": _infix("mul"),
    "Neg": _named("neg"),
    "Not": _named("logical_not"),
    "Or": _named("logical_or"),
    "PRelu": parametric_relu,
    "Pad": movement.pad,
    "Pow": _infix("pow"),
    "QuantizeLinear": quantize,
    "Range": movement.range_,
    "ReduceL2": _reduction(_length),
    "ReduceMax": _plain("amax"),
    "ReduceMean": _plain("mean"),
    "ReduceMin": _plain("amin"),
    "ReduceProd": _reduction(_product),
    "ReduceSum": _reduction(_total),
    "ReduceSumSquare": _reduction(_sum_of_squares),
    "Relu": _functional("relu"),
    "Reshape": movement.reshape,
    "Resize": resize,
    "RoiAlign": movement.roi_align,
    "ScatterElements": movement.scatter_elements,
    "ScatterND": movement.scatter_nd,
    "Shape": movement.shape_of,
    "Size": movement.size_of,
    "Slice": movement.slice_,
    "Softmax": softmax,
    "Softplus": _functional("softplus"),
    "Softsign": _functional("softsign"),
    "Split": movement.split,
    "Squeeze": movement.squeeze,
    "Sub": _infix("sub"),
    "Sum": lambda *inputs: functools.reduce(operator.add, inputs),
    "Swish": swish,
    "Tile": movement.tile,
    "TopK": top_k,
    "Transpose": movement.transpose,
    "Trilu": movement.trilu,
    "Unsqueeze": movement.unsqueeze,
    "Xor": _named("logical_xor"),
}
