"""Choose among bytes instead of the floats that they stand for.

    y = MaxPool(DequantizeLinear(q, s, z))              ──>    y = DequantizeLinear(MaxPool(q), s, z)
    q' = QuantizeLinear(DequantizeLinear(q, s, z), s, z)  ──>    q' = q
    y = DequantizeLinear(QuantizeLinear(x, s, z), s, z)   ──>    y = FakeQuantize(x, s, z)

The order of numbers is that of the bytes, as scales are positive, and a byte that is restored and quantised again is
what it was. Bytes that nobody else reads are no bytes.
"""

from collections.abc import Sequence

import numpy as np

from tilewright.graph.graph import Graph, Node, Value, users
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ir.dtype import DType
from tilewright.ops.core.pool import MaxPool
from tilewright.ops.core.quantize import DequantizeLinear, FakeQuantize, QuantizeLinear
from tilewright.support.errors import UserError

_LEAST = 1e-30  # of scales: products with others are no denormals; bound


def delay_dequantize(graph: Graph) -> Graph:
    return sweep(graph, _delay)


def fake_quantize(graph: Graph) -> Graph:
    """Once it is known who reads bytes."""
    readers, results = users(graph), set(graph.outputs)
    alone = {
        n.outputs[0].name
        for n in graph.nodes
        if len(readers[n.outputs[0]]) == 1 and n.outputs[0] not in results
    }

    def restore(state: Sweep, node: Node) -> Sequence[Value] | None:
        if not isinstance(node.op, DequantizeLinear) or node.inputs[0].name not in alone:
            return None
        return _restored_again(state, node, node.op)

    return sweep(graph, restore)


def _restored_again(state: Sweep, node: Node, op: DequantizeLinear) -> Sequence[Value] | None:
    made = state.producer(node.inputs[0])
    if made is None or not isinstance(made.op, QuantizeLinear) or made.op.precision is not DType.F32:
        return None
    (x, *first), second = made.inputs, node.inputs[1:]
    parameters = [[state.known(v) for v in p] for p in (first, second)]
    if any(p is None or p.size != 1 for own in parameters for p in own):
        return None
    (scale, *zero), (other, *others) = ([p.reshape(()) for p in own if p is not None] for own in parameters)
    zeros = [int(z[0]) if z else 0 for z in (zero, others)]
    is_f32 = x.type.dtype is DType.F32 and op.dtype is DType.F32 and scale.dtype == other.dtype == np.float32
    if not is_f32 or scale != other or zeros[0] != zeros[1]:
        return None
    name = node.outputs[0].name
    given = (
        state.add_constant(f"{name}.scale", scale),
        state.add_constant(f"{name}.zero", np.array(zeros[0], np.float32)),
    )
    return state.add(FakeQuantize(made.op.dtype), (x, *given), node)


def _delay(state: Sweep, node: Node) -> Sequence[Value] | None:
    match node.op:
        case MaxPool() if len(node.outputs) == 1:
            return _pooled(state, node)
        case QuantizeLinear(precision=DType.F32):
            return _again(state, node)
        case _:
            return None


def _restored(state: Sweep, value: Value) -> Node | None:
    """What makes floats of bytes that have one positive scale, and nothing else reads."""
    made = state.producer(value)
    if made is None or not isinstance(made.op, DequantizeLinear) or made.op.dtype is not DType.F32:
        return None
    scale = state.known(made.inputs[1])
    is_positive = scale is not None and scale.dtype == np.float32 and bool((scale > _LEAST).all())
    is_short = made.inputs[0].type.dtype in (DType.U8, DType.I8)
    return made if is_positive and is_short and made.op.granularity.axis is None else None


def _pooled(state: Sweep, node: Node) -> Sequence[Value] | None:
    made = _restored(state, node.inputs[0])
    if made is None:
        return None
    try:
        pooled = state.add_piece(node.op, made.inputs[:1], node)
    except UserError:  # it does not choose among bytes
        return None
    return state.add(made.op, (pooled, *made.inputs[1:]), node)


def _again(state: Sweep, node: Node) -> Sequence[Value] | None:
    made = _restored(state, node.inputs[0])
    op = node.op
    if made is None or not isinstance(op, QuantizeLinear) or op.granularity.axis is not None:
        return None
    (q, scale, *zero), (_, other, *others) = made.inputs, node.inputs
    same = [(state.known(a), state.known(b)) for a, b in ((scale, other), *zip(zero, others, strict=False))]
    if op.dtype is not q.type.dtype or any(a is None or b is None or a.item() != b.item() for a, b in same):
        return None
    left = [
        state.known(v) for v in (*zero[len(others) :], *others[len(zero) :])
    ]  # of one alone: it has to be 0
    return None if any(a is None or a.any() for a in left) else (q,)
