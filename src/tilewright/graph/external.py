"""Parts of a graph that somebody else's code runs.

A region is claimed by a plugin, which knows it by `key`. Lowering turns a region into one `tir.External`; the values
that go in and out become buffers of the Module. A region must be convex: no path leaves it and comes back.
"""

from dataclasses import dataclass

from tilewright.graph.graph import Graph, Node, Value, users


@dataclass(frozen=True, slots=True, eq=False)
class ExternalRegion:
    """`nodes` in graph order; `inputs` come from outside of the region; `outputs` are used outside of it."""

    key: str
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def make_region(graph: Graph, key: str, nodes: tuple[Node, ...]) -> ExternalRegion:
    """The region of these nodes, with the values that cross its border."""
    inside = set(nodes)
    ordered = tuple(n for n in graph.nodes if n in inside)
    made = {v for n in ordered for v in n.outputs}
    inputs = dict.fromkeys(v for n in ordered for v in n.inputs if v not in made)
    readers = users(graph)
    escaping = {v for v in made if any(n not in inside for n in readers[v])} | set(graph.outputs)
    outputs = tuple(v for n in ordered for v in n.outputs if v in escaping)
    return ExternalRegion(key, ordered, tuple(inputs), outputs)
