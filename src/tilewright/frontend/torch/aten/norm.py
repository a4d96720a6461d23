"""Normalisations, kept whole."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.frontend.torch.element_types import is_float, numpy_type
from tilewright.frontend.torch.emitter import NodeEmitter, Tensor
from tilewright.frontend.torch.unsupported import UnsupportedOperator

_NO_FURTHER = (None, None)  # statistics, which only a gradient reads


def _layer_norm(
    e: NodeEmitter,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> str:
    scale = _ones(e, x, shape) if weight is None else weight.name
    return e.op("LayerNormalization", x, scale, bias, axis=x.rank - len(shape), epsilon=float(eps))


def _native_layer_norm(
    e: NodeEmitter,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[str | None, ...]:
    return _layer_norm(e, x, shape, weight, bias, eps), *_NO_FURTHER


def _rms_norm(
    e: NodeEmitter, x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> str:
    least = eps if eps is not None else float(np.finfo(numpy_type(x.dtype)).eps)
    scale = _ones(e, x, shape) if weight is None else weight.name
    return e.op("RMSNormalization", x, scale, axis=x.rank - len(shape), epsilon=least)


def _fused_rms_norm(
    e: NodeEmitter, x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[str | None, ...]:
    return _rms_norm(e, x, shape, weight, eps), None


def _ones(e: NodeEmitter, x: Tensor, shape: Sequence[Any]) -> str:
    if not all(isinstance(n, int) for n in shape):
        raise UnsupportedOperator("a normalisation over open axes")
    return e.constant(np.ones(tuple(shape), numpy_type(x.dtype)))


def _native_group_norm(
    e: NodeEmitter,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: Any,
    channels: int,
    pixels: Any,
    groups: int,
    eps: float,
) -> tuple[str | None, ...]:
    return _group_norm(e, x, groups, weight, bias, eps), *_NO_FURTHER


def _group_norm(
    e: NodeEmitter,
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> str:
    channels = x.extent(1)
    scale, shift = _affine(e, x, channels, weight, bias)
    return e.op("GroupNormalization", x, scale, shift, num_groups=groups, epsilon=float(eps))


def _affine(
    e: NodeEmitter, x: Tensor, channels: int, weight: Tensor | None, bias: Tensor | None
) -> tuple[str, str]:
    dtype = numpy_type(x.dtype)
    scale = e.constant(np.ones(channels, dtype)) if weight is None else e.to(weight, x.dtype)
    shift = e.constant(np.zeros(channels, dtype)) if bias is None else e.to(bias, x.dtype)
    return scale, shift


def _instance_norm(
    e: NodeEmitter,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> str:
    if not use_input_stats:
        raise UnsupportedOperator("instance normalisation with stored statistics")
    scale, shift = _affine(e, x, x.extent(1), weight, bias)
    return e.op("InstanceNormalization", x, scale, shift, epsilon=float(eps))


def _batch_norm_inference(
    e: NodeEmitter,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> tuple[str | None, ...]:
    scale, shift = _affine(e, x, x.extent(1), weight, bias)
    made = e.op("BatchNormalization", x, scale, shift, mean, variance, epsilon=float(eps))
    return made, *_NO_FURTHER


def _native_batch_norm(
    e: NodeEmitter,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[str | None, ...]:
    if training or mean is None or variance is None or not is_float(x.dtype):
        raise UnsupportedOperator("batch normalisation by the statistics of the batch")
    return _batch_norm_inference(e, x, weight, bias, mean, variance, momentum, eps)


ENTRIES: Mapping[str, Callable[..., Any]] = {
    "aten.layer_norm.default": _layer_norm,
    "aten.native_layer_norm.default": _native_layer_norm,
    "aten.rms_norm.default": _rms_norm,
    "aten._fused_rms_norm.default": _fused_rms_norm,
    "aten.group_norm.default": _group_norm,
    "aten.native_group_norm.default": _native_group_norm,
    "aten.instance_norm.default": _instance_norm,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm_inference,
    "aten.native_batch_norm.default": _native_batch_norm,
}
