"""Convolutions, pooling and resizing of images with channels first."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ..geometry import Margins, nearest_positions, place_windows, source_positions

torch: Any = import_module("torch")
F: Any = import_module("torch.nn.functional")


def _padded(x: Any, margins: Margins, value: float = 0.0) -> tuple[Any, list[int]]:
    """What PyTorch pads by itself, the same on both sides; the rest is added to the image before."""
    if all(before == after for before, after in margins):
        return x, [before for before, _ in margins]
    return F.pad(x, [n for m in reversed(margins) for n in m], value=value), [0] * len(margins)


def conv(x: Any, w: Any, b: Any = None, *, group: int = 1, **window: Any) -> Any:
    strides, dilations, margins = place_windows(x.shape[2:], w.shape[2:], **window)
    x, padding = _padded(x, margins)
    compute = getattr(F, f"conv{len(strides)}d")
    return compute(x, w, b, list(strides), padding, list(dilations), group)


def conv_transpose(
    x: Any, w: Any, b: Any = None, *, group: int = 1, output_padding: Sequence[int] = (), **window: Any
) -> Any:
    strides, dilations, margins = place_windows(x.shape[2:], w.shape[2:], **window)
    if any(before != after for before, after in margins):
        raise LookupError("ConvTranspose with different margins has no translation to PyTorch")
    compute = getattr(F, f"conv_transpose{len(strides)}d")
    padding, more = [before for before, _ in margins], list(output_padding) or [0] * len(strides)
    return compute(x, w, b, list(strides), padding, more, group, list(dilations))


def max_pool(x: Any, *, kernel_shape: Sequence[int], **window: Any) -> Any:
    strides, dilations, margins = place_windows(x.shape[2:], kernel_shape, **window)
    x, padding = _padded(x, margins, -np.inf)
    compute = getattr(F, f"max_pool{len(strides)}d")
    return compute(x, list(kernel_shape), list(strides), padding, list(dilations))


def average_pool(x: Any, *, kernel_shape: Sequence[int], count_include_pad: int = 0, **window: Any) -> Any:
    strides, dilations, margins = place_windows(x.shape[2:], kernel_shape, **window)
    if window.get("ceil_mode") or any(d != 1 for d in dilations):
        raise LookupError("AveragePool with ceil_mode or dilations has no translation to PyTorch")
    compute = getattr(F, f"avg_pool{len(strides)}d")
    if all(before == after for before, after in margins):
        padding = [before for before, _ in margins]
        return compute(x, list(kernel_shape), list(strides), padding, False, bool(count_include_pad))
    if not count_include_pad:
        raise LookupError("AveragePool with different margins has no translation to PyTorch")
    return compute(_padded(x, margins)[0], list(kernel_shape), list(strides))


def resize(
    x: Any,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    axes: Sequence[int] | None = None,
) -> Any:
    """`interpolate` where it means the same, which is where batch and channels stay as they are."""
    shape, factors = list(x.shape), [1.0] * x.ndim
    for number, axis in enumerate(range(x.ndim) if axes is None else axes):
        if sizes is None:
            factors[axis] = float(scales[number])
            shape[axis] = int(x.shape[axis] * factors[axis])
        else:
            shape[axis] = int(sizes[number])
            factors[axis] = shape[axis] / x.shape[axis]
    if shape[:2] != list(x.shape[:2]):
        raise LookupError("Resize of batch or channels has no translation to PyTorch")
    if mode == "nearest":
        return _nearest(x, shape, factors, coordinate_transformation_mode, nearest_mode)
    if mode != "linear" or any(n != e * f for n, e, f in zip(shape, x.shape, factors, strict=True)):
        raise LookupError(f"Resize with mode {mode!r} and such scales has no translation to PyTorch")
    corners = coordinate_transformation_mode == "align_corners"
    if not corners and coordinate_transformation_mode not in ("half_pixel", "pytorch_half_pixel"):
        raise LookupError(f"Resize with {coordinate_transformation_mode!r} has no translation to PyTorch")
    kind = {3: "linear", 4: "bilinear", 5: "trilinear"}[x.ndim]
    return F.interpolate(x, size=shape[2:], mode=kind, align_corners=corners)


def _nearest(
    x: Any, shape: Sequence[int], factors: Sequence[float], transformation: str, rounding: str
) -> Any:
    picks = [
        nearest_positions(source_positions(extent, out, factor, transformation), extent, rounding)
        for extent, out, factor in zip(x.shape[2:], shape[2:], factors[2:], strict=True)
    ]
    # As PyTorch's `nearest` has it: the element at or before the position from the left end.
    plain = [np.arange(out) * e // out for e, out in zip(x.shape[2:], shape[2:], strict=True)]
    if all(np.array_equal(a, b) for a, b in zip(picks, plain, strict=True)):
        return F.interpolate(x, size=list(shape[2:]), mode="nearest")
    for axis, at in enumerate(picks):
        x = torch.index_select(x, axis + 2, torch.from_numpy(at))
    return x
