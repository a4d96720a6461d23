"""What the host does with a node whose op is native: its reference, on values that are there.

Elements that native code does not know (strings, numbers of a few bits) can still be moved: they are numbered, the
numbers are moved, and the result is looked up.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from tilewright.frontend.onnx.file import check_tensor_bytes
from tilewright.frontend.onnx.nodes import NodeSite, make_op
from tilewright.ir.dtype import DType
from tilewright.ops.hostop import HostOp, HostValue, Subgraph, tensor
from tilewright.ops.opdef import IndexInput, Op, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.indices import IndexCheck

_NUMBERED = np.dtype(np.uint64)
_NATIVE = frozenset(d.numpy for d in DType)


def is_native(value: HostValue) -> TypeGuard[Array]:
    """Is it a tensor that native code can compute with?"""
    return isinstance(value, np.ndarray) and value.dtype in _NATIVE


def run_reference(
    step: NodeSite,
    cls: type[Op],
    attrs: Mapping[str, Any],
    is_checked: bool,
    inputs: Sequence[HostValue],
    bodies: Mapping[str, Subgraph],
) -> tuple[HostValue, ...]:
    """Run a native op's reference; attributes that depend on values are made now. If `is_checked`, indices have to be
    in range.
    """
    if any(isinstance(v, list) for v in inputs):
        raise UserError(f"{step.node.op_type} takes tensors, not sequences")
    if not (cls.moves_only or all(is_native(v) for v in inputs if v is not None)):
        raise UserError(f"{step.node.op_type} does not compute with elements of this type")
    table: list[Any] = []
    arrays = [_numbered(v, table) if isinstance(v, np.ndarray) else None for v in inputs]
    types = [None if a is None else TensorType.of(a) for a in arrays]
    op, taken = make_op(step, cls, attrs, types, lambda i: arrays[i] if i < len(arrays) else None)
    operands = [a for a in (arrays[i] for i in taken) if a is not None]
    for made in op.infer([TensorType.of(a) for a in operands]):
        check_tensor_bytes(made.shape, made.dtype)
    if is_checked:
        _examine(step, op.indices([TensorType.of(a) for a in operands]), operands)
    with np.errstate(all="ignore"):
        results = op.reference(operands)
    return tuple(_looked_up(np.asarray(r), table) for r in results)


def run_checked(
    step: NodeSite, op: HostOp, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]
) -> tuple[HostValue, ...]:
    """Run an op of the host whose indices have to be in range."""
    _examine(step, op.indices(inputs), inputs)
    return op.run(inputs, bodies)


def _examine(step: NodeSite, uses: Sequence[IndexInput], inputs: Sequence[HostValue]) -> None:
    for use in uses:
        array = tensor(inputs[use.input], "the indices")
        title = f"{step.title} ({step.node.op_type})"
        IndexCheck(title, array.dtype.name, use.extents, use.from_back).examine_all(array)


def _numbered(array: Array, table: list[Any]) -> Array:
    """The array, or the numbers of its elements in the table, if native code does not know them."""
    if is_native(array):
        return array
    if not table:
        table.append(np.zeros(0, array.dtype))  # the type, for results without elements
    known = {v: n for n, v in enumerate(table) if n} if array.dtype.kind == "O" else {}
    numbers: list[int] = []
    for v in array.reshape(-1):
        number = known.get(v) if array.dtype.kind == "O" else None
        if number is None:
            number = len(table)
            table.append(v)
            if array.dtype.kind == "O":  # equal strings have equal numbers
                known[v] = number
        numbers.append(number)
    return np.array(numbers, _NUMBERED).reshape(array.shape)


def _looked_up(result: Array, table: list[Any]) -> Array:
    if not table or result.dtype != _NUMBERED:
        return result
    out = np.empty(result.shape, table[0].dtype)
    out.reshape(-1)[:] = [table[int(i)] if i else np.zeros((), out.dtype)[()] for i in result.reshape(-1)]
    return out
