"""A flow graph as text: its axes, and a line for each node."""

from tilewright.gir.flow_graph import COMBINATIONS, FlowGraph, FlowNode
from tilewright.ir.expr import Load
from tilewright.tir.printer import print_expr


def print_flow_graph(graph: FlowGraph) -> str:
    inner = set(graph.inner)
    axes = ", ".join(f"{a.name} = {e}" for a, e in graph.extents.items() if a not in inner)
    rows = ", ".join(f"{a.name} = {graph.extents[a]}" for a in graph.inner)
    lines = [f"rows {axes or 'one'}; of {rows}" if rows else f"elements {axes}"]
    return "\n".join([*lines, *map(_line, graph.nodes)])


def _line(node: FlowNode) -> str:
    made, value = print_expr(Load(node.out, node.indices)), print_expr(node.value)
    over = ", ".join(a.name for a in node.over)
    return (
        f"{made} = {COMBINATIONS[node.combine]} over {over} of {value}"
        if node.is_fold
        else f"{made} = {value}"
    )
