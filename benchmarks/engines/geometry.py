"""Where windows and samples lie, as ONNX says it: numbers alone, for engines whose importer is ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Margins = list[tuple[int, int]]  # what is added before and after each axis of an image


def place_windows(
    extents: Sequence[int],
    kernel: Sequence[int],
    *,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    kernel_shape: Sequence[int] = (),
) -> tuple[Sequence[int], Sequence[int], Margins]:
    """Strides, dilations and margins, from the attributes that convolutions and pooling share."""
    n = len(kernel)
    strides, dilations = strides or [1] * n, dilations or [1] * n
    margins: Margins = []
    for i, extent in enumerate(extents):
        stride, span = strides[i], dilations[i] * (kernel[i] - 1) + 1
        if auto_pad.startswith("SAME"):
            missing = max((-(-extent // stride) - 1) * stride + span - extent, 0)
            before = missing // 2 if auto_pad == "SAME_UPPER" else missing - missing // 2
            margins.append((before, missing - before))
            continue
        before, after = (pads[i], pads[i + n]) if pads and auto_pad == "NOTSET" else (0, 0)
        free = extent + before + after - span
        rest = free % stride
        # A last window that is not whole counts if it begins before the padding at the end.
        if ceil_mode and rest and free - rest + stride < extent + before:
            after += stride - rest
        margins.append((before, after))
    return strides, dilations, margins


def source_positions(extent: int, out: int, scale: float, mode: str) -> Array:
    """Where each element of a resized axis lies in the axis that it is made of; `mode` is ONNX's
    `coordinate_transformation_mode`.
    """
    at = np.arange(out)
    if mode == "asymmetric":
        return at / scale
    if mode == "align_corners":
        return at * (extent - 1) / max(out - 1, 1)
    if mode == "pytorch_half_pixel" and out == 1:
        return np.zeros(1)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (at + 0.5) / scale - 0.5
    raise LookupError(f"Resize with {mode!r} has no translation")


def nearest_positions(at: Array, extent: int, mode: str) -> Array:
    """The element that is taken for each position; `mode` is ONNX's `nearest_mode`."""
    kinds = {
        "floor": np.floor(at),
        "ceil": np.ceil(at),
        "round_prefer_floor": np.ceil(at - 0.5),
        "round_prefer_ceil": np.floor(at + 0.5),
    }
    return kinds[mode].astype(np.int64).clip(0, extent - 1)


def roi_samples(
    edges: Array, extent: int, out: int, ratio: int, scale: float, mode: str
) -> tuple[Array, Array, Array]:
    """Where regions are sampled along one axis: of each sample the elements before and after it, and the weight of the
    latter, (regions, out * ratio) each. `edges` has begin and end of each region; a sample outside of the image has an
    element of -1.
    """
    begin, end = (edges * scale - (0.5 if mode == "half_pixel" else 0.0)).T
    size = end - begin if mode == "half_pixel" else np.maximum(end - begin, 1.0)
    at = begin[:, None] + (np.arange(out * ratio) + 0.5) * (size / (out * ratio))[:, None]
    outside = (at < -1) | (at > extent)
    at = at.clip(0, extent - 1)
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, extent - 1)
    return np.where(outside, -1, low), np.where(outside, -1, high), (at - low).astype(np.float32)
