"""Remove nodes and constants whose values nobody needs. Inputs stay: they are the model's signature."""

from dataclasses import replace

from tilewright.graph.graph import Graph, Node


def eliminate_dead(graph: Graph) -> Graph:
    needed = set(graph.outputs)
    kept: list[Node] = []
    for n in reversed(graph.nodes):
        if any(v in needed for v in n.outputs):
            kept.append(n)
            needed.update(n.inputs)
    constants = {v: a for v, a in graph.constants.items() if v in needed}
    if len(kept) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)
