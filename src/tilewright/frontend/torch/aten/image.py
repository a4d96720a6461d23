"""Pooling and resizing of images."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.frontend.torch.emitter import DynamicSize, NodeEmitter, Tensor
from tilewright.frontend.torch.unsupported import UnsupportedOperator

_Sizes = Sequence[Any]


def _along(values: "int | Sequence[int]", rank: int) -> list[int]:
    given = [values] if isinstance(values, int) else list(values)
    return given * rank if len(given) == 1 else given


def _max_pool(
    rank: int,
    e: NodeEmitter,
    x: Tensor,
    kernel: "int | Sequence[int]",
    stride: "int | Sequence[int]" = (),
    padding: "int | Sequence[int]" = 0,
    dilation: "int | Sequence[int]" = 1,
    ceil_mode: bool = False,
) -> str:
    window = _along(kernel, rank)
    pads = _along(padding, rank)
    attrs: dict[str, Any] = {
        "kernel_shape": window,
        "strides": _along(stride, rank) or window,
        "pads": [*pads, *pads],
        "dilations": _along(dilation, rank),
        "ceil_mode": int(ceil_mode),
    }
    return _batched(e, x, rank, lambda name: e.op("MaxPool", name, **attrs))


def _batched(e: NodeEmitter, x: Tensor, rank: int, write: Callable[[str], str]) -> str:
    """Images may come without a batch."""
    if x.rank == rank + 2:
        return write(x.name)
    return e.op("Squeeze", write(e.op("Unsqueeze", x, e.integers(0))), e.integers(0))


def _max_pool_indexed(rank: int, e: NodeEmitter, *args: Any, **kwargs: Any) -> tuple[str, None]:
    return _max_pool(rank, e, *args, **kwargs), None


def _avg_pool(
    rank: int,
    e: NodeEmitter,
    x: Tensor,
    kernel: "int | Sequence[int]",
    stride: "int | Sequence[int]" = (),
    padding: "int | Sequence[int]" = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> str:
    if divisor_override is not None:
        raise UnsupportedOperator("a mean with another divisor")
    window = _along(kernel, rank)
    pads = _along(padding, rank)
    attrs: dict[str, Any] = {
        "kernel_shape": window,
        "strides": _along(stride, rank) or window,
        "pads": [*pads, *pads],
        "ceil_mode": int(ceil_mode),
        "count_include_pad": int(count_include_pad),
    }
    return _batched(e, x, rank, lambda name: e.op("AveragePool", name, **attrs))


def _adaptive(op: str, rank: int, e: NodeEmitter, x: Tensor, size: "int | Sequence[int]") -> str:
    """Windows that divide the image evenly."""
    wanted = _along(size, rank)
    axes = range(x.rank - rank, x.rank)
    if all(n == 1 for n in wanted):
        return e.op({"AveragePool": "ReduceMean"}.get(op, "ReduceMax"), x, e.integers(*axes), keepdims=1)
    extents = [x.extent(a) for a in axes]
    if any(n % w for n, w in zip(extents, wanted, strict=True)):
        raise UnsupportedOperator(f"pooling of {extents} to {wanted}, by windows of several sizes")
    window = [n // w for n, w in zip(extents, wanted, strict=True)]
    return _batched(e, x, rank, lambda name: e.op(op, name, kernel_shape=window, strides=window))


def _adaptive_max(rank: int, e: NodeEmitter, x: Tensor, size: "int | Sequence[int]") -> tuple[str, None]:
    return _adaptive("MaxPool", rank, e, x, size), None


def _resize(
    mode: str,
    e: NodeEmitter,
    x: Tensor,
    size: "Sequence[int | DynamicSize] | None",
    aligned: bool,
    factors: "Sequence[float | None] | None",
    *,
    exact: bool = False,
) -> str:
    """To a size, with the factors that PyTorch computes places by, where it was given some."""
    rank = x.rank - 2
    place = "align_corners" if aligned else "half_pixel" if mode != "nearest" else "asymmetric"
    attrs: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": place,
        "axes": [*range(2, x.rank)],
    }
    if mode == "nearest":
        attrs["nearest_mode"] = "round_prefer_ceil" if exact else "floor"
        if exact:
            attrs["coordinate_transformation_mode"] = "half_pixel"
    if mode == "cubic":
        attrs["cubic_coeff_a"] = -0.75
    scales = [] if factors is None else [f for f in factors if f is not None]
    if len(scales) == rank and not aligned and not _are_whole(x, scales, size):
        return e.op("Resize", x, None, e.constant(np.array(scales, np.float32)), **attrs)
    if size is None:
        if len(scales) != rank:
            raise UnsupportedOperator("a resize without sizes")
        return e.op("Resize", x, None, e.constant(np.array(scales, np.float32)), **attrs)
    return e.op("Resize", x, None, None, e.sizes(size), **attrs)


def _are_whole(x: Tensor, scales: Sequence[float], size: "Sequence[int | DynamicSize] | None") -> bool:
    """Does the size say the same as the factors?"""
    if size is None:
        return False
    extents = x.shape[2:]
    return all(
        isinstance(n, int) and isinstance(s, int) and n * f == s
        for n, f, s in zip(extents, scales, size, strict=True)
    )


def _nearest(exact: bool, e: NodeEmitter, x: Tensor, size: _Sizes, *factors: float | None) -> str:
    return _resize("nearest", e, x, size, False, factors, exact=exact)


def _nearest_vec(exact: bool, e: NodeEmitter, x: Tensor, size: _Sizes | None, factors: _Sizes | None) -> str:
    return _resize("nearest", e, x, size, False, factors, exact=exact)


def _smooth(mode: str, e: NodeEmitter, x: Tensor, size: _Sizes, aligned: bool, *factors: float | None) -> str:
    return _resize(mode, e, x, size, aligned, factors)


def _smooth_vec(
    mode: str, e: NodeEmitter, x: Tensor, size: _Sizes | None, aligned: bool, factors: _Sizes | None
) -> str:
    return _resize(mode, e, x, size, aligned, factors)


def _grid_sample(e: NodeEmitter, x: Tensor, grid: Tensor, mode: int, padding: int, aligned: bool) -> str:
    return e.op(
        "GridSample",
        x,
        grid,
        mode=("linear", "nearest", "cubic")[mode],
        padding_mode=("zeros", "border", "reflection")[padding],
        align_corners=int(aligned),
    )


_LINEAR = {"upsample_linear1d": "linear", "upsample_bilinear2d": "linear", "upsample_trilinear3d": "linear"}

ENTRIES: Mapping[str, Callable[..., Any]] = {
    **{f"aten.max_pool{d}d.default": partial(_max_pool, d) for d in (1, 2, 3)},
    **{f"aten.max_pool{d}d_with_indices.default": partial(_max_pool_indexed, d) for d in (2, 3)},
    **{f"aten.avg_pool{d}d.default": partial(_avg_pool, d) for d in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{d}d.default": partial(_adaptive, "AveragePool", d) for d in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{d}d.default": partial(_adaptive, "AveragePool", d) for d in (2, 3)},
    **{f"aten.adaptive_max_pool{d}d.default": partial(_adaptive_max, d) for d in (1, 2, 3)},
    **{f"aten.upsample_nearest{d}d.default": partial(_nearest, False) for d in (1, 2, 3)},
    **{f"aten.upsample_nearest{d}d.vec": partial(_nearest_vec, False) for d in (1, 2, 3)},
    **{f"aten._upsample_nearest_exact{d}d.default": partial(_nearest, True) for d in (1, 2, 3)},
    **{f"aten.{n}.default": partial(_smooth, m) for n, m in _LINEAR.items()},
    **{f"aten.{n}.vec": partial(_smooth_vec, m) for n, m in _LINEAR.items()},
    "aten.upsample_bicubic2d.default": partial(_smooth, "cubic"),
    "aten.upsample_bicubic2d.vec": partial(_smooth_vec, "cubic"),
    "aten.grid_sampler_2d.default": _grid_sample,
    "aten.grid_sampler.default": _grid_sample,
}
