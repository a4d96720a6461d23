"""The operators that have a translation: OPERATORS, by their names in ONNX."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from .arrays import Array, jnp, library, numbers
from .recurrent import gru, lstm
from .sampling import (
    dequantize,
    fourier,
    grid_sample,
    quantize,
    roi_align,
    scatter_elements,
    scatter_nd,
    top_k,
)
from .windows import average_pool, conv, conv_transpose, max_pool, resize

jax: Any = import_module("jax")
lax: Any = import_module("jax.lax")
nn: Any = import_module("jax.nn")
onnx: Any = import_module("onnx")

Operator = Callable[..., Any]

# ---------------------------------------------------------------------------------------------------------- elementwise


def _named(name: str) -> Operator:
    """What numpy and JAX have under one name."""

    def compute(*inputs: Any) -> Array:
        return getattr(library(*inputs), name)(*inputs)

    return compute


def _joined(name: str) -> Operator:
    """Of any number of inputs, two by two."""

    def compute(*inputs: Any) -> Array:
        return functools.reduce(getattr(library(*inputs), name), inputs)

    return compute


def divide(x: Any, y: Any) -> Array:
    """Integers are rounded towards zero."""
    if x.dtype.kind == "f":
        return x / y
    quotient = abs(x) // abs(y)
    return library(x, y).where((x < 0) != (y < 0), -quotient, quotient)


def mod(x: Any, y: Any, *, fmod: int = 0) -> Array:
    return getattr(library(x, y), "fmod" if fmod else "mod")(x, y)


def power(x: Any, y: Any) -> Array:
    return library(x, y).power(x, y).astype(x.dtype)


def clip(x: Any, low: Any = None, high: Any = None) -> Array:
    return library(x, low, high).clip(x, low, high)


def cast(x: Any, *, to: int) -> Array:
    return x.astype(onnx.helper.tensor_dtype_to_np_dtype(to))


def cast_like(x: Any, like: Any) -> Array:
    return x.astype(like.dtype)


def dropout(x: Any, ratio: Any = None, training: Any = None, *, seed: int = 0) -> Array:
    return x


def elu(x: Any, *, alpha: float = 1.0) -> Array:
    return nn.elu(x, alpha)


def gelu(x: Any, *, approximate: str = "none") -> Array:
    return nn.gelu(x, approximate=approximate == "tanh")


def hard_sigmoid(x: Any, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    return jnp.clip(alpha * x + beta, 0, 1)


def hard_swish(x: Any) -> Array:
    return x * hard_sigmoid(x, alpha=1 / 6)


def leaky_relu(x: Any, *, alpha: float = 0.01) -> Array:
    return jnp.where(x < 0, alpha * x, x)


def parametric_relu(x: Any, slope: Any) -> Array:
    return jnp.where(x < 0, slope * x, x)


def relu(x: Any) -> Array:
    return jnp.maximum(x, 0)


def swish(x: Any, *, alpha: float = 1.0) -> Array:
    return x * nn.sigmoid(alpha * x)


# ----------------------------------------------------------------------------- contractions, reductions, normalisations


def gemm(a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0) -> Array:
    """`b` comes transposed where `transB` says so."""
    y = (a.T if transA else a) @ b
    y = y if alpha == 1 else alpha * y
    return y if c is None else y + (c if beta == 1 else beta * c)


def einsum(*inputs: Any, equation: str) -> Array:
    return jnp.einsum(equation, *inputs)


def _reduction(compute: Callable[..., Any]) -> Operator:
    """Axes are an input, or an attribute as they were once."""

    def reduce(
        x: Any, at: Any = None, *, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Array:
        given = axes if at is None else at
        over = () if given is None else tuple(numbers(given))
        if not over and noop_with_empty_axes:
            return x
        return compute(library(x), x, axis=over or None, keepdims=bool(keepdims))

    return reduce


def _plain(name: str) -> Operator:
    def compute(module: Any, x: Any, **over: Any) -> Array:
        return getattr(module, name)(x, **over).astype(x.dtype)

    return _reduction(compute)


def _sum_of_squares(module: Any, x: Any, **over: Any) -> Array:
    return module.sum(x * x, **over)


def _length(module: Any, x: Any, **over: Any) -> Array:
    return module.sqrt(_sum_of_squares(module, x, **over))


def _extreme(name: str) -> Operator:
    def find(x: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        if select_last_index:
            return x.shape[axis] - 1 - find(jnp.flip(x, axis), axis=axis, keepdims=keepdims)
        return getattr(jnp, name)(x, axis, keepdims=bool(keepdims)).astype(np.int64)

    return find


def global_average_pool(x: Any) -> Array:
    return x.mean(tuple(range(2, x.ndim)), keepdims=True)


def global_max_pool(x: Any) -> Array:
    return x.max(tuple(range(2, x.ndim)), keepdims=True)


def softmax(x: Any, *, axis: int = -1) -> Array:
    return nn.softmax(x, axis)


def log_softmax(x: Any, *, axis: int = -1) -> Array:
    return nn.log_softmax(x, axis)


def _normalised(x: Any, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(axes, keepdims=True) + epsilon)


def layer_norm(x: Any, scale: Any, bias: Any = None, *, axis: int = -1, epsilon: float = 1e-5) -> Array:
    y = _normalised(x, tuple(range(axis % x.ndim, x.ndim)), epsilon) * scale
    return y if bias is None else y + bias


def batch_norm(
    x: Any, scale: Any, bias: Any, mean: Any, variance: Any, *, epsilon: float = 1e-5, momentum: float = 0.9
) -> Array:
    factor = scale * lax.rsqrt(variance + epsilon)
    shape = (-1, *[1] * (x.ndim - 2))
    return x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)


def instance_norm(x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5) -> Array:
    shape = (-1, *[1] * (x.ndim - 2))
    return _normalised(x, tuple(range(2, x.ndim)), epsilon) * scale.reshape(shape) + bias.reshape(shape)


# ------------------------------------------------------------------------------------------------------------- movement


def identity(x: Any) -> Array:
    return x


def constant(**attributes: Any) -> Array:
    """Of whatever kind: a tensor, numbers."""
    ((name, value),) = attributes.items()
    return np.asarray(value, np.float32 if "float" in name else None)


def constant_of_shape(shape: Any, *, value: Any = None) -> Array:
    return np.full(numbers(shape), np.float32(0) if value is None else value.reshape(-1)[0])


def shape_of(x: Any, *, start: int = 0, end: int | None = None) -> Array:
    return np.asarray(x.shape[start:end], np.int64)


def size_of(x: Any) -> Array:
    return np.asarray(x.size, np.int64)


def reshape(x: Any, shape: Any, *, allowzero: int = 0) -> Array:
    wanted = numbers(shape)
    return x.reshape([x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(wanted)])


def flatten(x: Any, *, axis: int = 1) -> Array:
    return x.reshape(math.prod(x.shape[: axis if axis >= 0 else axis + x.ndim]), -1)


def transpose(x: Any, *, perm: Sequence[int] | None = None) -> Array:
    return library(x).transpose(x, perm)


def turn(x: Any) -> Array:
    """The last two axes change places, in memory too."""
    transposed = x.swapaxes(-1, -2)
    return np.ascontiguousarray(transposed) if library(x) is np else transposed


def squeeze(x: Any, axes: Any = None) -> Array:
    return x.squeeze(None if axes is None else tuple(numbers(axes)))


def unsqueeze(x: Any, axes: Any) -> Array:
    return library(x).expand_dims(x, tuple(numbers(axes)))


def expand(x: Any, shape: Any) -> Array:
    return library(x).broadcast_to(x, np.broadcast_shapes(x.shape, tuple(numbers(shape))))


def tile(x: Any, repeats: Any) -> Array:
    return library(x).tile(x, numbers(repeats))


def concat(*inputs: Any, axis: int) -> Array:
    return library(*inputs).concatenate(inputs, axis)


def split(x: Any, sizes: Any = None, *, axis: int = 0, num_outputs: int = 1) -> tuple[Array, ...]:
    part = -(-x.shape[axis] // num_outputs)
    ends = range(part, x.shape[axis], part) if sizes is None else np.cumsum(numbers(sizes))[:-1].tolist()
    return tuple(library(x).split(x, list(ends), axis))


def slice_(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Array:
    begin, end = numbers(starts), numbers(ends)
    at = list(range(len(begin))) if axes is None else numbers(axes)
    by = [1] * len(begin) if steps is None else numbers(steps)
    picks = [slice(None)] * x.ndim
    for axis, b, e, s in zip(at, begin, end, by, strict=True):
        # Backwards to before the first element: a number below would count from the end.
        picks[axis] = slice(b, None if s < 0 and e < -x.shape[axis] else e, s)
    return x[tuple(picks)]


def _from_start(indices: Any, extent: int) -> Array:
    """Negative ones count from the end."""
    return library(indices).where(indices < 0, indices + extent, indices)


def gather(x: Any, indices: Any, *, axis: int = 0) -> Array:
    return library(x, indices).take(x, _from_start(indices, x.shape[axis]), axis)


def gather_elements(x: Any, indices: Any, *, axis: int = 0) -> Array:
    return library(x, indices).take_along_axis(x, _from_start(indices, x.shape[axis]), axis)


def gather_nd(x: Any, indices: Any, *, batch_dims: int = 0) -> Array:
    def pick(values: Any, at: Any) -> Array:
        return values[tuple(jnp.moveaxis(at, -1, 0))]

    for _ in range(batch_dims):
        pick = jax.vmap(pick)
    return pick(jnp.asarray(x), jnp.asarray(indices))


def pad(x: Any, pads: Any, value: Any = None, axes: Any = None, *, mode: str = "constant") -> Array:
    amounts = numbers(pads)
    margins = [(0, 0)] * x.ndim
    for i, axis in enumerate(range(x.ndim) if axes is None else numbers(axes)):
        margins[axis] = (amounts[i], amounts[i + len(amounts) // 2])
    if mode != "constant":
        return jnp.pad(x, margins, mode=mode)
    fill = np.zeros((), x.dtype) if value is None else value.reshape(()).astype(x.dtype)
    return lax.pad(x, fill, [(before, after, 0) for before, after in margins])


def depth_to_space(x: Any, *, blocksize: int, mode: str = "DCR") -> Array:
    n, c, h, w = x.shape
    b, depth = blocksize, c // blocksize**2
    if mode == "DCR":
        y = x.reshape(n, b, b, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, depth, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, depth, h * b, w * b)


def trilu(x: Any, k: Any = None, *, upper: int = 1) -> Array:
    return getattr(library(x), "triu" if upper else "tril")(x, 0 if k is None else numbers(k)[0])


def range_(start: Any, limit: Any, delta: Any) -> Array:
    if library(start, limit, delta) is not np:
        raise TypeError("the limits of a Range depend on the values of the inputs")
    values: Array = np.arange(float(start), float(limit), float(delta))
    return values.astype(start.dtype)


def cumulative_sum(x: Any, axis: Any) -> Array:
    return library(x).cumsum(x, numbers(axis)[0]).astype(x.dtype)


_SAME_NAME = (
    *(
        "Abs",
        "Add",
        "Ceil",
        "Cos",
        "Equal",
        "Exp",
        "Floor",
        "Greater",
        "IsInf",
        "IsNaN",
        "Less",
        "Log",
        "MatMul",
    ),
    *("Reciprocal", "Round", "Sign", "Sin", "Sqrt", "Tanh", "Where"),
)

OPERATORS: dict[str, Operator] = {
    **{name: _named(name.lower()) for name in _SAME_NAME},
    "And": _named("logical_and"),
    "ArgMax": _extreme("argmax"),
    "ArgMin": _extreme("argmin"),
    "AveragePool": average_pool,
    "BatchNormalization": batch_norm,
    "Cast": cast,
    "CastLike": cast_like,
    "Clip": clip,
    "Concat": concat,
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "CumSum": cumulative_sum,
    "DFT": fourier,
    "DepthToSpace": depth_to_space,
    "DequantizeLinear": dequantize,
    "Div": divide,
    "Dropout": dropout,
    "Einsum": einsum,
    "Elu": elu,
    "Erf": lax.erf,
    "Expand": expand,
    "Flatten": flatten,
    "GRU": gru,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Gelu": gelu,
    "Gemm": gemm,
    "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
    "GreaterOrEqual": _named("greater_equal"),
    "GridSample": grid_sample,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Identity": identity,
    "InstanceNormalization": instance_norm,
    "LSTM": lstm,
    "LayerNormalization": layer_norm,
    "LeakyRelu": leaky_relu,
    "LessOrEqual": _named("less_equal"),
    "LogSoftmax": log_softmax,
    "Max": _joined("maximum"),
    "MaxPool": max_pool,
    "Min": _joined("minimum"),
    "Mish": nn.mish,
    "Mod": mod,
    "Mul": _named("multiply"),
    "Neg": _named("negative"),
    "Not": _named("logical_not"),
    "Or": _named("logical_or"),
    "PRelu": parametric_relu,
    "Pad": pad,
    "Pow": power,
    "QuantizeLinear": quantize,
    "Range": range_,
    "ReduceL2": _reduction(_length),
    "ReduceMax": _plain("max"),
    "ReduceMean": _plain("mean"),
    "ReduceMin": _plain("min"),
    "ReduceProd": _plain("prod"),
    "ReduceSum": _plain("sum"),
    "ReduceSumSquare": _reduction(_sum_of_squares),
    "Relu": relu,
    "Reshape": reshape,
    "Resize": resize,
    "RoiAlign": roi_align,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Shape": shape_of,
    "Sigmoid": nn.sigmoid,
    "Size": size_of,
    "Slice": slice_,
    "Softmax": softmax,
    "Softplus": nn.softplus,
    "Softsign": nn.soft_sign,
    "Split": split,
    "Squeeze": squeeze,
    "Sub": _named("subtract"),
    "Sum": _joined("add"),
    "Swish": swish,
    "Tile": tile,
    "TopK": top_k,
    "Transpose": transpose,
    "Trilu": trilu,
    "TransposeOperand": turn,  # not of ONNX: see translate
    "Unsqueeze": unsqueeze,
    "Xor": _named("logical_xor"),
}
