"""A graph pass: the absolute value of an absolute value is itself."""

from collections.abc import Sequence

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.pattern import made_by
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.core.pointwise import Abs


def drop_second_abs(graph: Graph) -> Graph:
    return sweep(graph, _drop)


def _drop(state: Sweep, node: Node) -> Sequence[Value] | None:
    if isinstance(node.op, Abs) and made_by(state, node.inputs[0], Abs) is not None:
        return node.inputs[:1]
    return None
