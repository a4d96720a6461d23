"""Scatters, sampling of images, order and transforms."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from ..geometry import roi_samples
from .arrays import Array, jnp, library, numbers

lax: Any = import_module("jax.lax")


def scatter_nd(x: Any, indices: Any, updates: Any) -> Array:
    at = tuple(jnp.moveaxis(jnp.asarray(indices), -1, 0))
    return jnp.asarray(x).at[at].set(updates)


def scatter_elements(x: Any, indices: Any, updates: Any, *, axis: int = 0) -> Array:
    at: list[Any] = [*np.ix_(*map(np.arange, indices.shape))]
    at[axis] = library(indices).where(indices < 0, indices + x.shape[axis], indices)
    return jnp.asarray(x).at[tuple(at)].set(updates)


def grid_sample(
    x: Any, grid: Any, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Array:
    """Gathers of the four neighbours of each position."""
    if mode not in ("linear", "bilinear") or padding_mode != "zeros" or x.ndim != 4:
        raise LookupError(f"GridSample with {mode!r} and {padding_mode!r} has no translation to JAX")
    batch: Any = jnp.arange(x.shape[0]).reshape(-1, 1, 1)
    pixels = jnp.moveaxis(x, 1, -1)  # channels last: a sample reads them in a row
    spots: list[Any] = []
    for axis in range(2):  # rows, then columns, which the grid has first
        extent, place = x.shape[2 + axis], grid[..., 1 - axis]
        at = (place + 1) / 2 * (extent - 1) if align_corners else ((place + 1) * extent - 1) / 2
        low = jnp.floor(at)
        share = at - low
        first = low.astype(np.int32)
        spots.append(
            [
                (n, jnp.where((n >= 0) & (n < extent), w, 0))
                for n, w in ((first, 1 - share), (first + 1, share))
            ]
        )
    total: Any = 0
    for rows, wy in spots[0]:
        for columns, wx in spots[1]:
            found = pixels.at[batch, rows, columns].get(mode="clip")
            total = total + found * (wy * wx)[..., None]
    return jnp.moveaxis(total, -1, 1)


def roi_align(
    x: Any,
    rois: Any,
    batch: Any,
    *,
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    coordinate_transformation_mode: str = "half_pixel",
) -> Array:
    """Gathers of the four neighbours of each sample, and their mean. Where regions are is known now."""
    if library(rois, batch) is not np or not sampling_ratio:
        raise LookupError("RoiAlign with regions that are no constants has no translation to JAX")
    outs = (output_height, output_width)
    rows, columns = (
        roi_samples(
            rois[:, [1 - axis, 3 - axis]].astype(np.float64),
            x.shape[2 + axis],
            outs[axis],
            sampling_ratio,
            spatial_scale,
            coordinate_transformation_mode,
        )
        for axis in range(2)
    )
    pixels = jnp.moveaxis(x, 1, -1)
    total: Any = 0
    for y, wy in ((rows[0], 1 - rows[2]), (rows[1], rows[2])):
        for x_at, wx in ((columns[0], 1 - columns[2]), (columns[1], columns[2])):
            inside = (y >= 0)[:, :, None] & (x_at >= 0)[:, None, :]
            weight = (wy[:, :, None] * wx[:, None, :] * inside)[..., None]
            total = total + pixels[batch[:, None, None], y[:, :, None], x_at[:, None, :]] * weight
    n = sampling_ratio
    parts = total.reshape(rois.shape[0], output_height, n, output_width, n, x.shape[1])
    return jnp.moveaxis(parts.mean((2, 4)), -1, 1)


def top_k(x: Any, k: Any, *, axis: int = -1, largest: int = 1) -> tuple[Array, Array]:
    """Sorted, which is allowed where it is not asked for."""
    count, last = numbers(k)[0], axis in (-1, x.ndim - 1)
    y = x if last else jnp.moveaxis(x, axis, -1)
    values, at = lax.top_k(y if largest else -y, count)
    found = values if largest else -values, at.astype(np.int64)
    return found if last else (jnp.moveaxis(found[0], -1, axis), jnp.moveaxis(found[1], -1, axis))


def fourier(x: Any, length: Any = None, at: Any = None, *, axis: int = 1, onesided: int = 0) -> Array:
    if length is not None or x.shape[-1] != 1:
        raise LookupError("DFT of complex signals, or of another length, has no translation to JAX")
    along = axis if at is None else numbers(at)[0]
    over = along if along >= 0 else along + 1  # the last axis, which has gone, is not counted
    found = (jnp.fft.rfft if onesided else jnp.fft.fft)(x[..., 0], axis=over)
    return jnp.stack([found.real, found.imag], -1)


def _steps(v: Any, x: Any, axis: int) -> Array:
    """A scale or zero point: one, or one for each slice along the axis."""
    return v if v.ndim == 0 else v.reshape(-1, *[1] * (x.ndim - 1 - axis % x.ndim))


def quantize(x: Any, scale: Any, zero: Any = None, *, axis: int = 1) -> Array:
    kind = np.dtype(np.uint8) if zero is None else zero.dtype
    limits = np.iinfo(kind)
    y = jnp.round(x / _steps(scale, x, axis))
    y = y if zero is None else y + _steps(zero, x, axis).astype(x.dtype)
    return jnp.clip(y, limits.min, limits.max).astype(kind)


def dequantize(x: Any, scale: Any, zero: Any = None, *, axis: int = 1) -> Array:
    y = x.astype(scale.dtype)
    y = y if zero is None else y - _steps(zero, x, axis).astype(scale.dtype)
    return y * _steps(scale, x, axis)
