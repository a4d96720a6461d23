"""Remove nodes that do nothing, and collapse chains of movement.

    Transpose[perm=p](Transpose[perm=q](x))  →  Transpose[perm=q∘p](x)
    Reshape[shape=s](Reshape[shape=t](x))    →  Reshape[shape=s](x)
    Transpose that moves only axes of extent 1 → Reshape
    Concat of very many parts → Concat of Concats
    Concat(…, all pieces of x in order, …)   →  Concat(…, x, …)
    Identity(x), x * 1, Cast to the type it has, Expand and Reshape to the shape it has → x

Nothing here changes a bit of a result: `x + 0` stays, since it turns -0.0 into 0.0.
"""

from collections.abc import Sequence

import numpy as np

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.core.activation import Clip
from tilewright.ops.core.arithmetic import Div, Mul, Sub
from tilewright.ops.core.cast import Cast
from tilewright.ops.core.movement import Expand, Identity, Reshape, Transpose
from tilewright.ops.core.pieces import Concat, Pad, Slice, Split, Tile

_MOST_PARTS = 32  # of a concatenation, which is a choice nested as deeply


def simplify(graph: Graph) -> Graph:
    return sweep(graph, _simplify)


def _simplify(state: Sweep, node: Node) -> Sequence[Value] | None:
    if _does_nothing(state, node):
        return node.inputs[:1]
    match node.op:
        case Transpose(perm=perm):
            return _simplify_transpose(state, node, perm)
        case Reshape():
            before = state.producer(node.inputs[0])
            if before is not None and isinstance(before.op, Reshape):
                return state.add(node.op, before.inputs, node)
        case Concat(axis=axis):
            # Empty parts are common where a cache starts empty.
            parts = tuple(v for v in node.inputs if v.size)
            if parts and len(parts) < len(node.inputs):
                return state.add(node.op, parts, node)
            joined = _rejoin(state, parts, axis)
            if len(joined) < len(parts):
                return state.add(node.op, joined, node)
            if len(parts) > _MOST_PARTS:
                return state.add(node.op, _join_parts(state, node), node)
        case Mul() if _is_all(state, node.inputs[0], 1) and node.inputs[1].type == node.outputs[0].type:
            return node.inputs[1:]
        case _:
            pass
    return None


def _rejoin(state: Sweep, parts: Sequence[Value], axis: int) -> list[Value]:
    """The parts, with what was cut along `axis` and is put together again whole."""
    out: list[Value] = []
    at = 0
    while at < len(parts):
        source, start = _cut_from(state, parts[at], axis)
        end, last = parts[at].shape[axis], at + 1
        while last < len(parts) and _cut_from(state, parts[last], axis) == (source, start + end):
            end, last = end + parts[last].shape[axis], last + 1
        whole = start == 0 and end == source.shape[axis]
        out += [source] if whole else parts[at:last]
        at = last
    return out


def _cut_from(state: Sweep, value: Value, axis: int) -> tuple[Value, int]:
    """The value of which `value` is the elements from a place on along `axis`, and that place."""
    node = state.producer(value)
    match node:
        case Node(op=Split(axis=cut, sizes=sizes)) if cut == axis:
            return node.inputs[0], sum(sizes[: node.outputs.index(value)])
        case Node(op=Slice(starts=starts, steps=steps, sizes=sizes)):
            (x,) = node.inputs
            others = [d for d in range(len(sizes)) if d != axis]
            if steps[axis] == 1 and all(steps[d] > 0 and sizes[d] == x.shape[d] for d in others):
                return x, starts[axis]
        case _:
            pass
    return value, 0


def _join_parts(state: Sweep, node: Node) -> list[Value]:
    """Concatenate runs of parts first."""
    runs = [node.inputs[i : i + _MOST_PARTS] for i in range(0, len(node.inputs), _MOST_PARTS)]
    return [run[0] if len(run) == 1 else state.add_piece(node.op, run, node) for run in runs]


def _does_nothing(state: Sweep, node: Node) -> bool:
    """Is the one output the first input?"""
    if len(node.outputs) != 1 or not node.inputs or node.inputs[0].type != node.outputs[0].type:
        return False
    match node.op:
        case Identity() | Cast() | Expand() | Reshape() | Clip(low=None, high=None):
            return True
        case Transpose(perm=perm):
            return perm == tuple(range(len(perm)))
        case Concat() | Split() | Tile():
            return len(node.inputs) == 1
        case Slice(steps=steps):
            return min(steps, default=1) > 0
        case Pad(before=before):
            return not any(before)
        case Mul() | Div():
            return _is_all(state, node.inputs[1], 1)
        case Sub():
            return _is_all(state, node.inputs[1], 0)
        case _:
            return False


def _is_all(state: Sweep, value: Value, number: int) -> bool:
    """Is `value` a small constant all of whose elements are `number`, and no -0.0?"""
    array = state.known(value)
    if array is None or not 0 < array.size <= 4096:
        return False
    return bool(np.all(array == number)) and (not value.type.dtype.is_float or not np.signbit(array).any())


def _simplify_transpose(state: Sweep, node: Node, perm: tuple[int, ...]) -> Sequence[Value] | None:
    (x,) = node.inputs
    moved = [p for p in perm if x.shape[p] != 1]
    if moved == sorted(moved):
        return state.add(Reshape(node.outputs[0].shape), (x,), node)
    before = state.producer(x)
    if before is not None and isinstance(before.op, Transpose):
        return state.add(Transpose(tuple(before.op.perm[p] for p in perm)), before.inputs, node)
    return None
