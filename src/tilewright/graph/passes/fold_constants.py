"""Compute at compile time what is known then: nodes over constants only, within a budget of bytes.

    t = Transpose[perm=(1, 0)](w)        y = MatMul(x, t')
    y = MatMul(x, t)               →     where the constant t' holds the transposed weights

Nodes over budget stay as they are, and so does what widens weights that are kept in halves. Empty values are constants,
whatever made them.
"""

from collections.abc import Sequence

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.half_weights import widened_weights
from tilewright.graph.known import Budget, KnownValues
from tilewright.graph.rewrite import Sweep, sweep

# About a second of copying and arithmetic on weights in the worst case; results at most a megabyte larger than what
# they were made from, so that a broadcast does not become a file.
BUDGET = Budget(node=1 << 30, total=1 << 32, growth=1 << 20)


def fold_constants(graph: Graph, budget: Budget = BUDGET) -> Graph:
    known = KnownValues(graph.constants, budget)
    kept = {v for n in widened_weights(graph) for v in n.outputs}

    def fold(state: Sweep, node: Node) -> Sequence[Value] | None:
        if node.outputs[0] in kept:
            return None
        known.add(node)
        arrays = [a for a in (known.get(v) for v in node.outputs) if a is not None]
        if len(arrays) < len(node.outputs):
            return None
        values = [state.add_constant(v.name, a, v) for v, a in zip(node.outputs, arrays, strict=True)]
        for v, array in zip(values, arrays, strict=True):
            known.add_constant(v, array)
        return values

    return sweep(graph, fold)
