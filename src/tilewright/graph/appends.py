"""Inputs that a graph appends to: `present = Concat(past, new)`, where `past` is as long as it happens to be.

Such an output lies in memory as its input does, with more in use. So the two are one buffer: what is new is stored
behind what is there, which nobody copies. It takes an input that nothing else reads, and an open axis: what is open
lies in memory with the pitch of its capacity, whatever is in use.
"""

from collections import Counter

from tilewright.graph.graph import Graph, Node
from tilewright.ops.core.pieces import Concat
from tilewright.support.sizes import is_open


def find_appends(graph: Graph) -> tuple[Node, ...]:
    """The Concat nodes that append to an input of the graph, and make an output of it."""
    reads = Counter(v for n in graph.nodes for v in n.inputs)
    inputs, outputs = frozenset(graph.inputs), Counter(graph.outputs)
    return tuple(
        n
        for n in graph.nodes
        if isinstance(n.op, Concat)
        and len(n.inputs) > 1
        and n.inputs[0] in inputs
        and reads[n.inputs[0]] == 1
        and not outputs[n.inputs[0]]
        and outputs[n.outputs[0]] == 1
        and is_open((n.inputs[0].shape[n.op.axis],))
    )
