"""Operators that move elements: shapes, slices, gathers and scatters, sampling of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ..geometry import roi_samples
from .trace import is_known, numbers

torch: Any = import_module("torch")
F: Any = import_module("torch.nn.functional")


def identity(x: Any) -> Any:
    return x


def constant(**attributes: Any) -> Any:
    """Of whatever kind: a tensor, numbers."""
    ((name, value),) = attributes.items()
    if "float" in name:
        return torch.tensor(value, dtype=torch.float32)
    return torch.as_tensor(value)


def constant_of_shape(shape: Any, *, value: Any = None) -> Any:
    given = torch.zeros(1) if value is None else torch.as_tensor(value).reshape(-1)
    return given.expand(numbers(shape)).clone()


def shape_of(x: Any, *, start: int = 0, end: int | None = None) -> Any:
    return torch.tensor(list(x.shape[start:end]), dtype=torch.int64)


def size_of(x: Any) -> Any:
    return torch.tensor(math.prod(x.shape), dtype=torch.int64)


def reshape(x: Any, shape: Any, *, allowzero: int = 0) -> Any:
    wanted = numbers(shape)
    return x.reshape([x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(wanted)])


def flatten(x: Any, *, axis: int = 1) -> Any:
    return x.reshape([math.prod(x.shape[: axis if axis >= 0 else axis + x.ndim]), -1])


def transpose(x: Any, *, perm: Sequence[int] | None = None) -> Any:
    """A matrix transposed among other axes is written as people do, first the others and then the matrix. Inductor
    looks for attention with keys that are transposed so, and takes any other permutation for that one.
    """
    order = list(reversed(range(x.ndim)) if perm is None else perm)
    if x.ndim < 3 or order[-2] < order[-1]:
        return torch.permute(x, order)
    others = [*order[:-2], order[-1], order[-2]]
    y = x if others == list(range(x.ndim)) else torch.permute(x, others)
    return torch.transpose(y, -2, -1)


def squeeze(x: Any, axes: Any = None) -> Any:
    return torch.squeeze(x) if axes is None else torch.squeeze(x, tuple(numbers(axes)))


def unsqueeze(x: Any, axes: Any) -> Any:
    at = numbers(axes)
    for axis in sorted(a % (x.ndim + len(at)) for a in at):
        x = torch.unsqueeze(x, axis)
    return x


def expand(x: Any, shape: Any) -> Any:
    return torch.broadcast_to(x, torch.broadcast_shapes(tuple(x.shape), tuple(numbers(shape))))


def tile(x: Any, repeats: Any) -> Any:
    return torch.tile(x, numbers(repeats))


def concat(*inputs: Any, axis: int) -> Any:
    return torch.cat(inputs, axis)


def split(x: Any, sizes: Any = None, *, axis: int = 0, num_outputs: int = 1) -> tuple[Any, ...]:
    extent = x.shape[axis]
    each = -(-extent // num_outputs)
    parts = [min(each, extent - n) for n in range(0, extent, each)] if sizes is None else numbers(sizes)
    found = torch.split(x, parts, axis)
    return tuple(found[n] for n in range(len(parts)))


def slice_(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    """PyTorch has no steps backwards: these are slices of what is flipped."""
    begin, end = numbers(starts), numbers(ends)
    at = list(range(len(begin))) if axes is None else numbers(axes)
    by = [1] * len(begin) if steps is None else numbers(steps)
    picks = [slice(None)] * x.ndim
    for axis, b, e, s in zip(at, begin, end, by, strict=True):
        taken = range(x.shape[axis])[b : None if s < 0 and e < -x.shape[axis] else e : s]
        if s < 0:
            x = torch.flip(x, [axis])
            last = x.shape[axis] - 1
            taken = range(last - taken.start, last - taken.stop, -taken.step)
        picks[axis] = slice(taken.start, taken.stop, taken.step)
    return x[tuple(picks)]


def _from_start(indices: Any, extent: int) -> Any:
    """Negative ones count from the end."""
    if is_known(indices) and bool((indices >= 0).all()):
        return indices
    return torch.where(indices < 0, indices + extent, indices)


def gather(x: Any, indices: Any, *, axis: int = 0) -> Any:
    at = _from_start(indices, x.shape[axis])
    if at.ndim == 1:
        return torch.index_select(x, axis, at)
    if at.ndim == 0 and is_known(at):
        return torch.select(x, axis, int(at))
    shape = [*x.shape[: axis % x.ndim], *at.shape, *x.shape[axis % x.ndim + 1 :]]
    return torch.index_select(x, axis, at.reshape(-1)).reshape(shape)


def gather_elements(x: Any, indices: Any, *, axis: int = 0) -> Any:
    return torch.gather(x, axis, _from_start(indices, x.shape[axis]))


def _index(indices: Any, depth: int) -> list[Any]:
    """The index along each axis; a constant one lies dense."""
    parts = [torch.select(indices, -1, n) for n in range(depth)]
    return [p.contiguous() for p in parts] if is_known(indices) else parts


def gather_nd(x: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    around = indices.ndim - 1 - batch_dims
    batches = [
        torch.arange(x.shape[b]).reshape([-1, *[1] * (batch_dims - 1 - b + around)])
        for b in range(batch_dims)
    ]
    return x[(*batches, *_index(indices, indices.shape[-1]))]


def scatter_nd(x: Any, indices: Any, updates: Any) -> Any:
    return torch.index_put(x, tuple(_index(indices, indices.shape[-1])), updates)


def scatter_elements(x: Any, indices: Any, updates: Any, *, axis: int = 0) -> Any:
    return torch.scatter(x, axis, _from_start(indices, x.shape[axis]), updates)


def pad(x: Any, pads: Any, value: Any = None, axes: Any = None, *, mode: str = "constant") -> Any:
    amounts = numbers(pads)
    margins = [(0, 0)] * x.ndim
    for i, axis in enumerate(range(x.ndim) if axes is None else numbers(axes)):
        margins[axis] = (amounts[i], amounts[i + len(amounts) // 2])
    flat = [n for margin in reversed(margins) for n in margin]
    if mode == "constant":
        return F.pad(x, flat, value=0.0 if value is None else value.item())
    while len(flat) > 2 and flat[-2:] == [0, 0]:  # such a mode must not name axes that stay
        flat = flat[:-2]
    return F.pad(x, flat, mode={"edge": "replicate", "reflect": "reflect", "wrap": "circular"}[mode])


def depth_to_space(x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    n, c, h, w = x.shape
    b, depth = blocksize, c // blocksize**2
    if mode == "DCR":
        y = x.reshape(n, b, b, depth, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, depth, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(n, depth, h * b, w * b)


def trilu(x: Any, k: Any = None, *, upper: int = 1) -> Any:
    return (torch.triu if upper else torch.tril)(x, 0 if k is None else numbers(k)[0])


def range_(start: Any, limit: Any, delta: Any) -> Any:
    if not all(map(is_known, (start, limit, delta))):
        raise TypeError("the limits of a Range depend on the values of the inputs")
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def grid_sample(
    x: Any, grid: Any, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Any:
    kind = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest"}[mode]
    return F.grid_sample(x, grid, kind, padding_mode, bool(align_corners))


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
) -> Any:
    """Gathers of the four neighbours of each sample, and their mean. Where regions are is known now."""
    if not (is_known(rois) and is_known(batch) and sampling_ratio):
        raise LookupError("RoiAlign with regions that are no constants has no translation to PyTorch")
    outs, edges = (output_height, output_width), rois.numpy().astype("float64")
    rows, columns = (
        roi_samples(
            edges[:, [1 - axis, 3 - axis]],
            x.shape[2 + axis],
            outs[axis],
            sampling_ratio,
            spatial_scale,
            coordinate_transformation_mode,
        )
        for axis in range(2)
    )
    pixels = x.permute(0, 2, 3, 1)  # channels last: a sample reads them in a row
    total: Any = 0
    for y, wy in ((rows[0], 1 - rows[2]), (rows[1], rows[2])):
        for x_at, wx in ((columns[0], 1 - columns[2]), (columns[1], columns[2])):
            inside = (y >= 0)[:, :, None] & (x_at >= 0)[:, None, :]
            weight = torch.from_numpy(wy[:, :, None] * wx[:, None, :] * inside).unsqueeze(-1)
            at = (batch[:, None, None], *(torch.from_numpy(v) for v in (y[:, :, None], x_at[:, None, :])))
            total = pixels[at] * weight + total
    n = sampling_ratio
    parts = total.reshape(rois.shape[0], output_height, n, output_width, n, x.shape[1])
    return torch.mean(parts, [2, 4]).permute(0, 3, 1, 2)
