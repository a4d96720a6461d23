"""Elements at places that tensors name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.frontend.torch.element_types import is_bool
from tilewright.frontend.torch.emitter import NodeEmitter, Tensor
from tilewright.frontend.torch.unsupported import UnsupportedOperator


def _embedding(e: NodeEmitter, weight: Tensor, indices: Tensor, *_: Any, **__: Any) -> str:
    return e.op("Gather", weight, _places(e, indices), axis=0)


def _index_select(e: NodeEmitter, x: Tensor, dim: int, indices: Tensor) -> str:
    return e.op("Gather", x, _places(e, indices), axis=x.axis(dim))


def _places(e: NodeEmitter, indices: Tensor) -> str:
    if is_bool(indices.dtype) or indices.dtype == "torch.uint8":
        raise UnsupportedOperator("a mask as an index: how large its result is depends on data")
    return e.to(indices, indices.dtype if indices.dtype in _INDEX_TYPES else "torch.int64")


_INDEX_TYPES = ("torch.int32", "torch.int64")


def _gather(e: NodeEmitter, x: Tensor, dim: int, indices: Tensor, **_: Any) -> str:
    if x.rank == 0:
        return e.op("Identity", x)
    return e.op("GatherElements", x, _places(e, indices), axis=x.axis(dim))


def _index(e: NodeEmitter, x: Tensor, indices: Sequence[Tensor | None]) -> str:
    """Several tensors on neighbouring axes, which broadcast: their axes stand in place of the first of them."""
    given = [(i, t) for i, t in enumerate(indices) if t is not None]
    axes = [i for i, _ in given]
    if len(given) == 1:
        return e.op("Gather", x, _places(e, given[0][1]), axis=axes[0])
    joined = _joined(e, [t for _, t in given])
    rank = max(t.rank for _, t in given)
    order = [*axes, *(i for i in range(x.rank) if i not in axes)]
    moved = x.name if order == list(range(x.rank)) else e.op("Transpose", x, perm=order)
    found = e.op("GatherND", moved, joined)
    if axes != list(range(axes[0], axes[-1] + 1)) or axes[0] == 0:
        return found  # PyTorch puts the new axes first, too
    behind = list(range(rank, rank + axes[0]))
    rest = list(range(rank + axes[0], rank + x.rank - len(axes)))
    return e.op("Transpose", found, perm=[*behind, *range(rank), *rest])


def _joined(e: NodeEmitter, indices: Sequence[Tensor]) -> str:
    """Indices that broadcast, as one tensor whose last axis has one of each."""
    names = [e.cast(_places(e, t), _index_type(t), "torch.int64") for t in indices]
    if len({t.shape for t in indices}) > 1:
        zero = e.number(0, "torch.int64")
        total = zero
        for name in names:
            total = e.op("Add", total, e.op("Mul", name, zero))
        names = [e.op("Add", name, total) for name in names]
    return e.op("Concat", *(e.op("Unsqueeze", n, e.integers(-1)) for n in names), axis=-1)


def _index_type(t: Tensor) -> str:
    return t.dtype if t.dtype in _INDEX_TYPES else "torch.int64"


def _index_put(
    e: NodeEmitter, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> str:
    given = [t for t in indices if t is not None]
    if len(given) == 1 and len(indices) == 1 and is_bool(given[0].dtype) and values.rank == 0:
        mask = given[0]
        name = mask.name
        if mask.rank < x.rank:
            name = e.op("Unsqueeze", mask, e.integers(*range(mask.rank, x.rank)))
        return e.op("Where", name, e.to(values, x.dtype), x)
    if None in indices:
        raise UnsupportedOperator("writing at places of inner axes")
    joined = _joined(e, given)
    rank = max(t.rank for t in given)
    wide = next((t for t in given if t.rank == rank and 1 not in t.shape), given[0])
    shape = [e.size(wide, i) for i in range(rank)] + [e.size(x, i) for i in range(len(given), x.rank)]
    updates = e.op("Expand", e.to(values, x.dtype), e.sizes(shape))
    return e.op("ScatterND", x, joined, updates, reduction="add" if accumulate else None)


def _scatter(
    e: NodeEmitter, x: Tensor, dim: int, indices: Tensor, source: "Tensor | float", reduce: str | None = None
) -> str:
    known = {None: None, "add": "add", "multiply": "mul", "sum": "add"}
    if reduce not in known:
        raise UnsupportedOperator(f"scattering with {reduce!r}")
    return _scattered(e, x, dim, indices, source, known[reduce])


def _scatter_add(e: NodeEmitter, x: Tensor, dim: int, indices: Tensor, source: Tensor) -> str:
    return _scattered(e, x, dim, indices, source, "add")


def _scattered(
    e: NodeEmitter, x: Tensor, dim: int, indices: Tensor, source: "Tensor | float", reduction: str | None
) -> str:
    if isinstance(source, Tensor):
        if source.shape != indices.shape:
            raise UnsupportedOperator("scattering from a part of a tensor")
        updates = e.to(source, x.dtype)
    else:
        updates = e.op("Expand", e.number(source, x.dtype), e.shape_of(indices))
    return e.op("ScatterElements", x, _places(e, indices), updates, axis=x.axis(dim), reduction=reduction)


def _topk(
    e: NodeEmitter, x: Tensor, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True
) -> tuple[str, ...]:
    axis = x.axis(dim)
    return tuple(e.ops(2, "TopK", x, e.integers(k), axis=axis, largest=int(largest), sorted=int(is_sorted)))


def _sort(e: NodeEmitter, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[str, ...]:
    return _topk(e, x, x.extent(x.axis(dim)), dim, largest=descending)


def _sort_stable(
    e: NodeEmitter, x: Tensor, *, stable: bool | None = False, dim: int = -1, descending: bool = False
) -> tuple[str, ...]:
    return _sort(e, x, dim, descending)  # TopK keeps the order of equal elements


def _argsort(e: NodeEmitter, x: Tensor, dim: int = -1, descending: bool = False) -> str:
    return _sort(e, x, dim, descending)[1]


ENTRIES: Mapping[str, Callable[..., Any]] = {
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
    "aten.index_put.default": _index_put,
    "aten._unsafe_index_put.default": _index_put,
    "aten.scatter.src": _scatter,
    "aten.scatter.value": _scatter,
    "aten.scatter.reduce": _scatter,
    "aten.scatter_add.default": _scatter_add,
    "aten.topk.default": _topk,
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort_stable,
    "aten.argsort.default": _argsort,
}
