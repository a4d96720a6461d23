"""Other shapes and orders of the same elements."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tilewright.frontend.torch.emitter import DynamicSize, Extent, NodeEmitter, Tensor
from tilewright.frontend.torch.unsupported import UnsupportedOperator

_LAST = 2**63 - 1


def _view(e: NodeEmitter, x: Tensor, shape: Sequence[Extent]) -> str:
    return e.op("Reshape", x, e.sizes(shape), allowzero=1 if 0 in shape else None)


def _flatten(e: NodeEmitter, x: Tensor, start: int = 0, end: int = -1) -> str:
    first, last = x.axis(start), x.axis(end)
    if x.rank == 0:
        return e.op("Reshape", x, e.integers(1))
    kept = [e.size(x, i) for i in range(first)]
    return _view(e, x, [*kept, -1, *(e.size(x, i) for i in range(last + 1, x.rank))])


def _permute(e: NodeEmitter, x: Tensor, order: Sequence[int]) -> str:
    return e.op("Transpose", x, perm=[x.axis(a) for a in order])


def _transpose(e: NodeEmitter, x: Tensor, a: int, b: int) -> str:
    order = list(range(x.rank))
    if order:
        a, b = x.axis(a), x.axis(b)
        order[a], order[b] = order[b], order[a]
    return e.op("Transpose", x, perm=order)


def _t(e: NodeEmitter, x: Tensor) -> str:
    return e.op("Transpose", x, perm=[1, 0]) if x.rank == 2 else e.op("Identity", x)


def _expand(e: NodeEmitter, x: Tensor, shape: Sequence[Extent], **_: Any) -> str:
    ahead = len(shape) - x.rank
    wanted = [(e.size(x, i - ahead) if isinstance(n, int) and n == -1 else n) for i, n in enumerate(shape)]
    return e.op("Expand", x, e.sizes(wanted))


def _unsqueeze(e: NodeEmitter, x: Tensor, axis: int) -> str:
    return e.op("Unsqueeze", x, e.integers(axis + x.rank + 1 if axis < 0 else axis))


def _squeeze(e: NodeEmitter, x: Tensor, dim: "int | Sequence[int] | None" = None) -> str:
    axes = list(range(x.rank)) if dim is None else x.axes(dim)
    single = [a for a in axes if x.rank and x.shape[a] == 1]
    return e.op("Squeeze", x, e.integers(*single)) if single else e.op("Identity", x)


def _slice(
    e: NodeEmitter,
    x: Tensor,
    dim: int = 0,
    start: Extent | None = None,
    end: Extent | None = None,
    step: int = 1,
) -> str:
    first = 0 if start is None else start
    last = _LAST if end is None else end
    axis = x.axis(dim)
    if first == 0 and last == _LAST and step == 1:
        return e.op("Identity", x)
    return e.op("Slice", x, e.counted(first), e.counted(last), e.integers(axis), e.integers(step))


def _narrow(e: NodeEmitter, x: Tensor, dim: int, start: Extent, length: Extent) -> str:
    if isinstance(start, int) and isinstance(length, int):
        return _slice(e, x, dim, start, start + length)
    return _slice(e, x, dim, start, DynamicSize(e.op("Add", e.counted(start), e.counted(length))))


def _select(e: NodeEmitter, x: Tensor, dim: int, index: Extent) -> str:
    place = e.operand(index, "torch.int64")
    return e.op("Gather", x, place, axis=x.axis(dim))


def _cat(e: NodeEmitter, tensors: Sequence[Tensor], dim: int = 0) -> str:
    # Long ago an empty vector could be joined with anything, and PyTorch still takes it.
    kept = [t for t in tensors if not (t.rank == 1 and t.shape[0] == 0 and e.out.rank != 1)]
    axis = dim + e.out.rank if dim < 0 else dim
    return e.op("Concat", *(e.to(t, e.out.dtype) for t in kept), axis=axis)


def _stack(e: NodeEmitter, tensors: Sequence[Tensor], dim: int = 0) -> str:
    axis = dim + e.out.rank if dim < 0 else dim
    rows = [e.op("Unsqueeze", e.to(t, e.out.dtype), e.integers(axis)) for t in tensors]
    return e.op("Concat", *rows, axis=axis)


def _split_sizes(e: NodeEmitter, x: Tensor, sizes: Sequence[Extent], dim: int = 0) -> tuple[str, ...]:
    return tuple(e.ops(len(sizes), "Split", x, e.sizes(sizes), axis=x.axis(dim)))


def _split(e: NodeEmitter, x: Tensor, size: int, dim: int = 0) -> tuple[str, ...]:
    extent = x.extent(x.axis(dim))
    sizes = [min(size, extent - i) for i in range(0, extent, size)] if extent else [0]
    return _split_sizes(e, x, sizes, dim)


def _chunk(e: NodeEmitter, x: Tensor, chunks: int, dim: int = 0) -> tuple[str, ...]:
    return _split(e, x, -(-x.extent(x.axis(dim)) // chunks), dim)


def _unbind(e: NodeEmitter, x: Tensor, dim: int = 0) -> tuple[str, ...]:
    axis = x.axis(dim)
    return tuple(e.op("Gather", x, e.number(i, "torch.int64"), axis=axis) for i in range(x.extent(axis)))


def _repeat(e: NodeEmitter, x: Tensor, repeats: Sequence[Extent]) -> str:
    ahead = len(repeats) - x.rank
    name = x.name if not ahead else e.op("Unsqueeze", x, e.integers(*range(ahead)))
    return e.op("Tile", name, e.sizes(repeats))


def _flip(e: NodeEmitter, x: Tensor, dims: Sequence[int]) -> str:
    axes = [x.axis(d) for d in dims]
    ones = [-1] * len(axes)
    return e.op("Slice", x, *(e.integers(*v) for v in (ones, [-_LAST] * len(axes), axes, ones)))


def _roll(e: NodeEmitter, x: Tensor, shifts: "int | Sequence[int]", dims: "int | Sequence[int]" = ()) -> str:
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [dims] if isinstance(dims, int) else list(dims)
    name = x.name
    if not axes:
        flat = e.op("Reshape", x, e.integers(-1))
        return e.op("Reshape", _rolled(e, flat, 0, -moves[0]), e.shape_of(x))
    for move, axis in zip(moves, axes, strict=True):
        extent = x.extent(x.axis(axis))
        if extent and move % extent:
            name = _rolled(e, name, x.axis(axis), -(move % extent))
    return e.op("Identity", name) if name == x.name else name


def _rolled(e: NodeEmitter, name: str, axis: int, first: int) -> str:
    def part(start: int, end: int) -> str:
        return e.op("Slice", name, e.integers(start), e.integers(end), e.integers(axis))

    return e.op("Concat", part(first, _LAST), part(0, first), axis=axis)


def _pad(e: NodeEmitter, x: Tensor, pads: Sequence[int], value: float = 0) -> str:
    return _padded("constant", e, x, pads, value)


def _padded(mode: str, e: NodeEmitter, x: Tensor, pads: Sequence[int], value: float = 0) -> str:
    """PyTorch lists pairs from the last axis on."""
    axes = len(pads) // 2
    before = [0] * (x.rank - axes) + [pads[2 * i] for i in reversed(range(axes))]
    after = [0] * (x.rank - axes) + [pads[2 * i + 1] for i in reversed(range(axes))]
    fill = e.number(value, x.dtype) if mode == "constant" else None
    return e.op("Pad", x, e.integers(*before, *after), fill, mode=mode)


def _pad_mode(
    e: NodeEmitter, x: Tensor, pads: Sequence[int], mode: str = "constant", value: float | None = None
) -> str:
    known = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    return _padded(known[mode], e, x, pads, value or 0)


def _pixel_shuffle(e: NodeEmitter, x: Tensor, factor: int) -> str:
    if x.rank != 4:
        raise UnsupportedOperator("pixel shuffling of other than 4 axes")
    return e.op("DepthToSpace", x, blocksize=factor, mode="CRD")


def _triangle(upper: bool, e: NodeEmitter, x: Tensor, diagonal: int = 0) -> str:
    return e.op("Trilu", x, e.number(diagonal, "torch.int64"), upper=int(upper))


def _unfold(e: NodeEmitter, x: Tensor, dim: int, size: int, step: int) -> str:
    axis = x.axis(dim)
    starts = range(0, x.extent(axis) - size + 1, step)
    rows = [e.op("Unsqueeze", _slice(e, x, axis, s, s + size), e.integers(axis)) for s in starts]
    stacked = e.op("Concat", *rows, axis=axis)
    order = [*range(axis + 1), *range(axis + 2, x.rank + 1), axis + 1]
    return e.op("Transpose", stacked, perm=order)


def _slice_scatter(
    e: NodeEmitter,
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: Extent | None = None,
    end: Extent | None = None,
    step: int = 1,
) -> str:
    axis = x.axis(dim)
    extent = x.extent(axis)
    if step != 1 or isinstance(start, DynamicSize) or isinstance(end, DynamicSize):
        raise UnsupportedOperator("writing into a slice with a step, or of open extent")
    first, last, _ = slice(start, end).indices(extent)
    parts = [_slice(e, x, axis, 0, first)] * (first > 0) + [e.to(source, x.dtype)]
    parts += [_slice(e, x, axis, last)] if last < extent else []
    return e.op("Concat", *parts, axis=axis)


def _select_scatter(e: NodeEmitter, x: Tensor, source: Tensor, dim: int, index: int) -> str:
    axis = x.axis(dim)
    extent = x.extent(axis)
    at = index + extent if index < 0 else index
    row = e.op("Unsqueeze", e.to(source, x.dtype), e.integers(axis))
    parts = [_slice(e, x, axis, 0, at)] * (at > 0) + [row]
    parts += [_slice(e, x, axis, at + 1)] if at + 1 < extent else []
    return e.op("Concat", *parts, axis=axis)


def _copy(e: NodeEmitter, x: Tensor, source: Tensor, *_: Any) -> str:
    made = e.to(source, x.dtype)
    if source.shape == x.shape:
        return e.op("Identity", made)
    return e.op("Expand", made, e.shape_of(x))


_PADS = {"reflection_pad": "reflect", "replication_pad": "edge"}

ENTRIES: Mapping[str, Callable[..., Any]] = {
    **{f"aten.{n}.default": _view for n in ("view", "_unsafe_view", "reshape", "view_copy")},
    "aten.flatten.using_ints": _flatten,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _t,
    "aten.expand.default": _expand,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.squeeze.default": _squeeze,
    "aten.squeeze.dim": _squeeze,
    "aten.squeeze.dims": _squeeze,
    "aten.slice.Tensor": _slice,
    "aten.narrow.default": _narrow,
    "aten.select.int": _select,
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.split_with_sizes.default": _split_sizes,
    "aten.split.sizes": _split_sizes,
    "aten.split.Tensor": _split,
    "aten.chunk.default": _chunk,
    "aten.unbind.int": _unbind,
    "aten.repeat.default": _repeat,
    "aten.flip.default": _flip,
    "aten.roll.default": _roll,
    "aten.constant_pad_nd.default": _pad,
    "aten.pad.default": _pad_mode,
    **{f"aten.{n}{d}d.default": partial(_padded, m) for n, m in _PADS.items() for d in (1, 2, 3)},
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.triu.default": partial(_triangle, True),
    "aten.tril.default": partial(_triangle, False),
    "aten.unfold.default": _unfold,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    "aten.copy.default": _copy,
}
