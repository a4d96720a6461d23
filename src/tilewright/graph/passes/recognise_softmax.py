"""Recognise a softmax that was exported in pieces.

    d = Sub(x, ReduceMax(x))
    e = Exp(d)
    y = Div(e, ReduceSum(e))             →   y = Softmax(x)
    z = Sub(d, Log(ReduceSum(e)))        →   z = Softmax[log](x)

over any axes. Only with the maximum subtracted: without, large values overflow, which the op's do not. Pieces that
somebody else needs stay too.
"""

from collections.abc import Sequence

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.pattern import made_by, quotients
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.core.arithmetic import Sub
from tilewright.ops.core.pointwise import Exp, Log
from tilewright.ops.core.reduce import ReduceMax, ReduceSum
from tilewright.ops.core.softmax import Softmax


def recognise_softmax(graph: Graph) -> Graph:
    return sweep(graph, _recognise)


def _recognise(state: Sweep, node: Node) -> Sequence[Value] | None:
    if not node.outputs or not node.outputs[0].type.dtype.is_float:
        return None
    for powers, total in quotients(state, node):
        found = _match_total(state, total)
        if found is not None and found[0] is powers:
            return state.add(Softmax(found[2]), (found[1],), node)
    logarithm = made_by(state, node.inputs[1], Log) if isinstance(node.op, Sub) else None
    found = _match_total(state, logarithm.inputs[0]) if logarithm is not None else None
    if found is not None:
        powers, x, axes = found
        exp = made_by(state, powers, Exp)
        if exp is not None and exp.inputs[0] is node.inputs[0]:
            return state.add(Softmax(axes, log=True), (x,), node)
    return None


def _match_total(state: Sweep, value: Value) -> tuple[Value, Value, tuple[int, ...]] | None:
    """If `value` is the sum of powers e = exp(x - max x) over the axes of the maximum: e, x and the axes."""
    total = made_by(state, value, ReduceSum)
    exp = made_by(state, total.inputs[0], Exp) if total is not None else None
    shifted = made_by(state, exp.inputs[0], Sub) if exp is not None else None
    top = made_by(state, shifted.inputs[1], ReduceMax) if shifted is not None else None
    if total is None or exp is None or shifted is None or top is None:
        return None
    assert isinstance(total.op, ReduceSum) and isinstance(top.op, ReduceMax)
    axes = top.op.axes
    kept = total.op.keep and top.op.keep and bool(axes) and total.op.axes == axes
    if not kept or top.inputs[0] is not shifted.inputs[0]:
        return None
    return exp.outputs[0], shifted.inputs[0], axes
