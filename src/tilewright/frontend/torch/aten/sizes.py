"""Numbers that depend on open sizes: shapes of inputs, and arithmetic on them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.frontend.torch.emitter import DynamicSize, Extent, NodeEmitter, Tensor


def _size(e: NodeEmitter, x: Tensor, axis: int) -> Extent:
    return e.size(x, axis)


def _arithmetic(op: str, e: NodeEmitter, a: Extent, b: Extent) -> DynamicSize:
    return DynamicSize(e.op(op, e.counted(a), e.counted(b)))


def _negate(e: NodeEmitter, a: Extent) -> DynamicSize:
    return DynamicSize(e.op("Neg", e.counted(a)))


def _numel(e: NodeEmitter, x: Tensor) -> DynamicSize:
    total: Extent = 1
    for i in range(x.rank):
        total = _arithmetic("Mul", e, total, e.size(x, i))
    return DynamicSize(e.counted(total))


# Sizes are never negative, so that ONNX's division towards zero is Python's.
ENTRIES: Mapping[str, Callable[..., Any]] = {
    "aten.sym_size.int": _size,
    "aten.sym_numel.default": _numel,
    "operator.add": partial(_arithmetic, "Add"),
    "operator.sub": partial(_arithmetic, "Sub"),
    "operator.mul": partial(_arithmetic, "Mul"),
    "operator.floordiv": partial(_arithmetic, "Div"),
    "operator.mod": partial(_arithmetic, "Mod"),
    "operator.neg": _negate,
    "torch.sym_max": partial(_arithmetic, "Max"),
    "torch.sym_min": partial(_arithmetic, "Min"),
}
