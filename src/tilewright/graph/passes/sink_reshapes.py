"""Reshapes between a contraction and the elementwise nodes after it move behind them.

    h = Gemm(x, w, b)                 h: f32[64, 768]
    r = Reshape[1, 64, 768](h)                              s = Add(h, Reshape[64, 768](y))
    s = Add(r, y)                     y: f32[1, 64, 768]    →   Reshape[1, 64, 768](s)

The elementwise nodes then have the shape of the contraction, and run on its register tile. The reshapes of other
operands cost nothing: they are read in place. Where an operand broadcasts, it must do so along whole axes of both
shapes.
"""

from collections.abc import Sequence
from math import prod

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.pattern import made_by
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.core.elementwise import Elementwise
from tilewright.ops.core.movement import Reshape
from tilewright.ops.opdef import Kind


def sink_reshapes(graph: Graph) -> Graph:
    # Results of contractions, and what elementwise nodes of the same shape make of them.
    tiles: set[Value] = set()

    def sink(state: Sweep, node: Node) -> Sequence[Value] | None:
        if node.op.kind is Kind.CONTRACTION:
            tiles.update(node.outputs)
            return None
        if not isinstance(node.op, Elementwise) or len(node.outputs) != 1:
            return None
        (out,) = node.outputs
        if any(v in tiles and v.shape == out.shape for v in node.inputs):
            tiles.add(out)
            return None
        for v in node.inputs:
            reshape = made_by(state, v, Reshape)
            if reshape is None or v.shape != out.shape or reshape.inputs[0] not in tiles:
                continue
            shape = reshape.inputs[0].shape
            shapes = [
                shape if u.shape == out.shape else _reshaped(u.shape, out.shape, shape) for u in node.inputs
            ]
            known = [s for s in shapes if s is not None]
            if len(known) < len(shapes):
                continue
            operands = [_as(state, u, s, node) for u, s in zip(node.inputs, known, strict=True)]
            value = state.add_piece(node.op, operands, node)
            return state.add(Reshape(out.shape), (value,), node)
        return None

    return sweep(graph, sink)


def _as(state: Sweep, value: Value, shape: tuple[int, ...], node: Node) -> Value:
    """`value` in another shape."""
    if value.shape == shape:
        return value
    array = state.known(value)
    if array is not None:
        return state.add_constant(f"{value.name}~1", array.reshape(shape))
    before = made_by(state, value, Reshape)
    if before is not None and before.inputs[0].shape == shape:
        return before.inputs[0]
    return state.add_piece(Reshape(shape), (value,), node)


def _reshaped(operand: tuple[int, ...], old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of an operand that broadcasts to `old`, so that it broadcasts to `new` in the same way."""
    if 0 in old:
        return None
    if prod(operand) == 1:
        return operand if len(operand) <= len(new) else ()
    operand = (1,) * (len(old) - len(operand)) + operand
    left, right = ([d for d, n in enumerate(shape) if n != 1] for shape in (old, new))
    out = [1] * len(new)
    while left:
        # The shortest runs of axes of both shapes that hold as many elements.
        from_, to = [left.pop(0)], [right.pop(0)]
        while (p := prod(old[d] for d in from_)) != (q := prod(new[d] for d in to)):
            if p < q:
                from_.append(left.pop(0))
            else:
                to.append(right.pop(0))
        if all(operand[d] == old[d] for d in from_):
            for d in to:
                out[d] = new[d]
        elif any(operand[d] != 1 for d in from_):
            return None
    return tuple(out)
