"""Convolutions, pooling and resizing of images with channels first."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ..geometry import Margins, nearest_positions, place_windows, source_positions
from .arrays import Array, jnp

lax: Any = import_module("jax.lax")


def conv(x: Any, w: Any, b: Any = None, *, group: int = 1, **window: Any) -> Array:
    strides, dilations, margins = place_windows(x.shape[2:], w.shape[2:], **window)
    return _convolution(x, w, b, strides, margins, [1] * len(strides), dilations, group)


def conv_transpose(
    x: Any, w: Any, b: Any = None, *, group: int = 1, output_padding: Sequence[int] = (), **window: Any
) -> Array:
    """A convolution of the input with gaps, by the mirrored filters."""
    c_in, c_out, *kernel = w.shape
    strides, dilations, margins = place_windows(x.shape[2:], kernel, **window)
    more = output_padding or [0] * len(kernel)
    filters = w.reshape(group, c_in // group, c_out, *kernel).swapaxes(1, 2)
    filters = filters.reshape(group * c_out, c_in // group, *kernel)
    spans = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    around = [(s - m[0], s - m[1] + p) for s, m, p in zip(spans, margins, more, strict=True)]
    mirrored = jnp.flip(filters, tuple(range(2, x.ndim)))
    return _convolution(x, mirrored, b, [1] * len(kernel), around, strides, dilations, group)


def _convolution(
    x: Any,
    w: Any,
    b: Any,
    strides: Sequence[int],
    margins: Margins,
    gaps: Sequence[int],
    dilations: Sequence[int],
    group: int,
) -> Array:
    image = "DHW"[-len(strides) :]
    y = lax.conv_general_dilated(
        x,
        w,
        strides,
        margins,
        lhs_dilation=gaps,
        rhs_dilation=dilations,
        dimension_numbers=(f"NC{image}", f"OI{image}", f"NC{image}"),
        feature_group_count=group,
    )
    return y if b is None else y + b.reshape(-1, *[1] * len(image))


def max_pool(x: Any, *, kernel_shape: Sequence[int], **window: Any) -> Array:
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return _pool(x, lowest, lax.max, kernel_shape, *place_windows(x.shape[2:], kernel_shape, **window))


def average_pool(
    x: Any, *, kernel_shape: Sequence[int], count_include_pad: int = 0, ceil_mode: int = 0, **window: Any
) -> Array:
    strides, dilations, margins = place_windows(x.shape[2:], kernel_shape, ceil_mode=ceil_mode, **window)
    ones, outside = np.ones((1, 1, *x.shape[2:]), x.dtype), margins
    if count_include_pad:  # but not what `ceil_mode` has added
        given = place_windows(x.shape[2:], kernel_shape, **window)[2]
        ones = np.pad(ones, [(0, 0), (0, 0), *given], constant_values=1)
        outside = [(0, m[1] - g[1]) for m, g in zip(margins, given, strict=True)]
    total = _pool(x, 0.0, lax.add, kernel_shape, strides, dilations, margins)
    return total / _pool(ones, 0.0, lax.add, kernel_shape, strides, dilations, outside)


def _pool(
    x: Any,
    start: float,
    combine: Any,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    margins: Margins,
) -> Array:
    around = [(0, 0), (0, 0), *margins]
    first = np.asarray(start, x.dtype)
    return lax.reduce_window(
        x, first, combine, (1, 1, *kernel), (1, 1, *strides), around, window_dilation=(1, 1, *dilations)
    )


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
) -> Array:
    """Axis after axis: where each output lies in the input is known now."""
    for number, axis in enumerate(range(x.ndim) if axes is None else axes):
        extent = x.shape[axis]
        scale = float(scales[number]) if sizes is None else int(sizes[number]) / extent
        out = int(extent * scale) if sizes is None else int(sizes[number])
        if out == extent:
            continue
        at = source_positions(extent, out, scale, coordinate_transformation_mode)
        if mode == "nearest":
            x = _take_nearest(x, axis, nearest_positions(at, extent, nearest_mode))
        elif mode == "linear":
            at = at.clip(0, extent - 1)
            low = np.floor(at).astype(np.int64)
            share = (at - low).astype(x.dtype).reshape(-1, *[1] * (x.ndim - axis - 1))
            high = np.minimum(low + 1, extent - 1)
            x = jnp.take(x, low, axis) * (1 - share) + jnp.take(x, high, axis) * share
        else:
            raise LookupError(f"Resize with mode {mode!r} has no translation to JAX")
    return x


def _take_nearest(x: Any, axis: int, at: Array) -> Array:
    """A whole number of copies is a broadcast, which is quicker than a gather."""
    extent = int(x.shape[axis])
    copies, rest = divmod(len(at), extent)
    if rest == 0 and np.array_equal(at, np.arange(extent).repeat(copies)):
        return jnp.repeat(x, copies, axis)
    return jnp.take(x, at, axis)
