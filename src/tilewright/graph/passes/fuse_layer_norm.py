"""Recognise a layer norm that was exported in pieces.

    mean = ReduceMean(x)
    d = Sub(x, mean)
    v = ReduceMean(Pow(d, 2))                       n = LayerNormalization(x, scale)
    n = Mul(Div(d, Sqrt(Add(v, epsilon))), scale)   →
    y = Add(n, bias)                                y = LayerNormalization(x, scale, bias)

over the last axes, with constant epsilon, scale and bias. One op over rows needs x once from memory; the pieces are
three passes over it. Pieces that somebody else needs stay too.
"""

from collections.abc import Sequence

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.arithmetic import Add, Div, Mul, Pow, Sub
from tilewright.ops.norm import LayerNormalization
from tilewright.ops.opdef import Op
from tilewright.ops.pointwise import Sqrt
from tilewright.ops.reduce import ReduceMean


def fuse_layer_norm(graph: Graph) -> Graph:
    return sweep(graph, _fuse)


def _fuse(state: Sweep, node: Node) -> Sequence[Value] | None:
    if not isinstance(node.op, Add | Mul):
        return None
    for value, weight in (node.inputs, node.inputs[::-1]):
        if state.known(weight) is None or value.type != node.outputs[0].type:
            continue
        if isinstance(node.op, Mul):
            found = _match_normed(state, value)
            if found is not None:
                x, op = found
                return state.add(op, (x, weight), node)
        else:
            norm = _made_by(state, value, LayerNormalization)
            if norm is not None and len(norm.inputs) == 2:
                return state.add(norm.op, (*norm.inputs, weight), node)
    return None


def _match_normed(state: Sweep, value: Value) -> tuple[Value, LayerNormalization] | None:
    """If `value` is (x - mean) / sqrt(variance + epsilon): x, and the op."""
    quotient = _made_by(state, value, Div)
    root = _made_by(state, quotient.inputs[1], Sqrt) if quotient else None
    sum_ = _made_by(state, root.inputs[0], Add) if root else None
    centred = _made_by(state, quotient.inputs[0], Sub) if quotient else None
    if sum_ is None or centred is None:
        return None
    mean = _made_by(state, centred.inputs[1], ReduceMean)
    epsilon = _number(state, sum_.inputs[1])
    variance = _made_by(state, sum_.inputs[0], ReduceMean)
    if mean is None or variance is None or epsilon is None:
        return None
    x = centred.inputs[0]
    op = mean.op
    assert isinstance(op, ReduceMean)
    trailing = bool(op.axes) and op.axes == tuple(range(op.axes[0], len(x.shape)))
    if mean.inputs[0] is not x or variance.op != op or not op.keep or not trailing:
        return None
    if not _is_square(state, variance.inputs[0], centred.outputs[0]):
        return None
    return x, LayerNormalization(op.axes[0], epsilon)


def _is_square(state: Sweep, value: Value, root: Value) -> bool:
    node = state.producer(value)
    match node:
        case Node(op=Pow(exponent=exponent)):
            by = _number(state, node.inputs[1]) if exponent is None else exponent
            return node.inputs[0] is root and by == 2
        case Node(op=Mul()):
            return node.inputs == (root, root)
        case _:
            return False


def _made_by(state: Sweep, value: Value, kind: type[Op]) -> Node | None:
    node = state.producer(value)
    return node if node is not None and isinstance(node.op, kind) else None


def _number(state: Sweep, value: Value) -> float | None:
    array = state.known(value)
    return float(array.item()) if array is not None and array.size == 1 else None
