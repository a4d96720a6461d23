"""Choose among bytes instead of the floats that they stand for.

    y = MaxPool(DequantizeLinear(q, s, z))              ──>    y = DequantizeLinear(MaxPool(q), s, z)
    q' = QuantizeLinear(DequantizeLinear(q, s, z), s, z)  ──>    q' = q
    y = DequantizeLinear(QuantizeLinear(x, s, z), s, z)   ──>    y = FakeQuantize(x, s, z)

The order of numbers is that of the bytes, as scales are positive, and a byte that is restored and quantised again is
what it was. Bytes that nobody else reads are no bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tilewright.graph.graph import Graph, Node, Value, users
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ir.dtype import DType
from tilewright.ops.core.pool import MaxPool
from tilewright.ops.core.quantize import DequantizeLinear, FakeQuantize, QuantizeLinear
from tilewright.ops.core.window import Window
from tilewright.support.errors import UserError

_LEAST, _MOST = 1e-30, 1e30  # of scales: bytes times these are neither denormal nor infinite; bound


def delay_dequantize(graph: Graph) -> Graph:
    """What chooses among floats that bytes stand for."""
    return sweep(graph, _delay) if _has_bytes(graph) else graph


def fake_quantize(graph: Graph) -> Graph:
    """Once it is known who reads bytes."""
    if not _has_bytes(graph):
        return graph
    graph = eliminate_dead(graph)
    readers, results = users(graph), set(graph.outputs)
    made = (v for n in graph.nodes for v in n.outputs)
    alone = {v.name for v in made if len(readers[v]) == 1 and v not in results}

    def restore(state: Sweep, node: Node) -> Sequence[Value] | None:
        is_alone = isinstance(node.op, DequantizeLinear) and node.inputs[0].name in alone
        return _restored_again(state, node) if is_alone else None

    return sweep(graph, restore)


def _has_bytes(graph: Graph) -> bool:
    return any(isinstance(n.op, DequantizeLinear) for n in graph.nodes)


class _Parameters(NamedTuple):
    """Of one scale for all, in float32."""

    scale: float
    zero: int


def _parameters(state: Sweep, node: Node) -> _Parameters | None:
    """Of a node between floats and bytes, if it is one that computes in float32, and they are known."""
    match node.op:
        case DequantizeLinear(dtype=DType.F32):
            floats = node.outputs[0]
        case QuantizeLinear(precision=DType.F32):
            floats = node.inputs[0]
        case _:
            return None
    known = [p for v in node.inputs[1:] if (p := state.known(v)) is not None and p.size == 1]
    if len(known) < len(node.inputs) - 1 or floats.type.dtype is not DType.F32:
        return None
    scale, *zero = known
    return _Parameters(scale.item(), zero[0].item() if zero else 0) if scale.dtype == np.float32 else None


def _delay(state: Sweep, node: Node) -> Sequence[Value] | None:
    match node.op:
        case MaxPool(window=window) if len(node.outputs) == 1 and _meets_the_image(window):
            return _pooled(state, node)
        case QuantizeLinear():
            return _again(state, node)
        case _:
            return None


def _meets_the_image(window: Window) -> bool:
    """Does each? What is only padding is less than any number, and there is no such byte."""
    sizes = zip(window.kernel, window.before, window.after, window.dilations, strict=True)
    return not window.ceil and all(max(before, after) < k and d == 1 for k, before, after, d in sizes)


def _restoring(state: Sweep, value: Value) -> tuple[Node, _Parameters] | None:
    """What makes floats of bytes, in their order."""
    made = state.producer(value)
    found = None if made is None or not isinstance(made.op, DequantizeLinear) else _parameters(state, made)
    if made is None or found is None or not _LEAST < found.scale < _MOST:
        return None
    return (made, found) if made.inputs[0].type.dtype in (DType.U8, DType.I8) else None


def _pooled(state: Sweep, node: Node) -> Sequence[Value] | None:
    found = _restoring(state, node.inputs[0])
    if found is None:
        return None
    made, _ = found
    try:
        pooled = state.add_piece(node.op, made.inputs[:1], node)
    except UserError:  # it does not choose among bytes
        return None
    return state.add(made.op, (pooled, *made.inputs[1:]), node)


def _again(state: Sweep, node: Node) -> Sequence[Value] | None:
    found = _restoring(state, node.inputs[0])
    if found is None:
        return None
    made, first = found
    q = made.inputs[0]
    is_same = node.outputs[0].type.dtype is q.type.dtype and _parameters(state, node) == first
    return (q,) if is_same else None


def _restored_again(state: Sweep, node: Node) -> Sequence[Value] | None:
    made = state.producer(node.inputs[0])
    if made is None or not isinstance(made.op, QuantizeLinear):
        return None
    own = _parameters(state, node)
    if own is None or _parameters(state, made) != own:
        return None
    name = node.outputs[0].name
    scale, zero = (
        state.add_constant(f"{name}.{what}", np.array(number, np.float32))
        for what, number in zip(own._fields, own, strict=True)
    )
    return state.add(FakeQuantize(made.op.dtype), (made.inputs[0], scale, zero), node)
