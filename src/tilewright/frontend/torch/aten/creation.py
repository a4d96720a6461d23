"""Tensors that are made of numbers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from tilewright.frontend.torch.element_types import numpy_type
from tilewright.frontend.torch.emitter import DynamicSize, Extent, NodeEmitter, Tensor
from tilewright.frontend.torch.unsupported import UnsupportedOperator
from tilewright.support.arrays import Array

_MOST_STORED = 1 << 16  # elements; ranges beyond are computed


def _full(e: NodeEmitter, shape: Sequence[Extent], value: "float | DynamicSize", **_: Any) -> str:
    return _filled(e, shape, value)


def _constant(value: float, e: NodeEmitter, shape: Sequence[Extent], *_: Any, **__: Any) -> str:
    return _filled(e, shape, value)


def _new(value: float, e: NodeEmitter, x: Tensor, shape: Sequence[Extent], **_: Any) -> str:
    return _filled(e, shape, value)


def _new_full(e: NodeEmitter, x: Tensor, shape: Sequence[Extent], value: float, **_: Any) -> str:
    return _filled(e, shape, value)


def _like(value: float, e: NodeEmitter, x: Tensor, **_: Any) -> str:
    return _filled(e, [e.size(x, i) for i in range(x.rank)], value)


def _full_like(e: NodeEmitter, x: Tensor, value: float, **_: Any) -> str:
    return _like(value, e, x)


def _filled(e: NodeEmitter, shape: Sequence[Extent], value: "float | DynamicSize") -> str:
    name = e.operand(value, e.out.dtype)
    return e.op("Identity", name) if not shape else e.op("Expand", name, e.sizes(shape))


def _scalar(e: NodeEmitter, value: "float | DynamicSize", **_: Any) -> str:
    return e.op("Identity", e.operand(value, e.out.dtype))


def _arange(e: NodeEmitter, end: "Extent | float", **_: Any) -> str:
    return _range(e, 0, end, 1)


def _arange_from(
    e: NodeEmitter, start: "Extent | float", end: "Extent | float", step: Any = 1, **_: Any
) -> str:
    return _range(e, start, end, step)


def _range(e: NodeEmitter, start: "Extent | float", end: "Extent | float", step: "Extent | float") -> str:
    dtype = e.out.dtype
    if not any(isinstance(v, DynamicSize) for v in (start, end, step)):
        values: Array = np.arange(*cast("tuple[float, float, float]", (start, end, step)))
        if values.size <= _MOST_STORED:
            return e.op("Identity", e.constant(values.astype(numpy_type(dtype))))
    made = e.op("Range", *(e.operand(v, "torch.int64") for v in (start, end, step)))
    if any(isinstance(v, float) for v in (start, end, step)):
        raise UnsupportedOperator("a long range of fractions")
    return e.cast(made, "torch.int64", dtype)


def _linspace(e: NodeEmitter, start: float, end: float, steps: int, **_: Any) -> str:
    return e.op("Identity", e.constant(np.linspace(start, end, steps).astype(numpy_type(e.out.dtype))))


def _eye(e: NodeEmitter, rows: int, columns: int | None = None, **_: Any) -> str:
    array = np.eye(rows, columns, dtype=np.float32)
    return e.op("Identity", e.constant(array.astype(numpy_type(e.out.dtype))))


def _iota(e: NodeEmitter, length: Extent, *, start: int, step: int, **_: Any) -> str:
    counts = _range(e, 0, length, 1)
    if (start, step) == (0, 1):
        return counts
    scaled = e.op("Mul", counts, e.number(step, e.out.dtype))
    return e.op("Add", scaled, e.number(start, e.out.dtype))


ENTRIES: Mapping[str, Callable[..., Any]] = {
    "aten.full.default": _full,
    "aten.zeros.default": partial(_constant, 0),
    "aten.ones.default": partial(_constant, 1),
    "aten.empty.memory_format": partial(_constant, 0),
    "aten.new_zeros.default": partial(_new, 0),
    "aten.new_ones.default": partial(_new, 1),
    "aten.new_empty.default": partial(_new, 0),
    "aten.new_full.default": _new_full,
    "aten.zeros_like.default": partial(_like, 0),
    "aten.ones_like.default": partial(_like, 1),
    "aten.empty_like.default": partial(_like, 0),
    "aten.full_like.default": _full_like,
    "aten.scalar_tensor.default": _scalar,
    "aten.arange.default": _arange,
    "aten.arange.start": _arange_from,
    "aten.arange.start_step": _arange_from,
    "prims.iota.default": _iota,
    "aten.linspace.default": _linspace,
    "aten.eye.default": _eye,
    "aten.eye.m": _eye,
}
