"""Compute equal things once: nodes with equal ops over the same inputs, and constants with equal content.

Only small constants are compared: large ones are rarely equal, and reading them takes time.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.rewrite import Sweep, sweep

_COMPARED_BYTES = 1 << 16


def eliminate_common(graph: Graph) -> Graph:
    first: dict[tuple[object, ...], Value] = {}
    same: dict[Value, Value] = {}
    for v, array in graph.constants.items():
        if v.bytes <= _COMPARED_BYTES:
            same[v] = first.setdefault((v.type, array.tobytes()), v)
    made: dict[tuple[object, ...], tuple[Value, ...]] = {}

    def share(state: Sweep, node: Node) -> Sequence[Value] | None:
        inputs = tuple(same.get(v, v) for v in node.inputs)
        # The text tells -0.0 from 0.0 and 1 from True, which equality of ops would not.
        key = (type(node.op), repr(node.op), inputs)
        if key in made:
            return made[key]
        if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            made[key] = state.add(node.op, inputs, node)
            return made[key]
        made[key] = node.outputs
        return None

    shared = sweep(graph, share)
    outputs = tuple(same.get(v, v) for v in shared.outputs)
    return shared if outputs == shared.outputs else replace(shared, outputs=outputs)
