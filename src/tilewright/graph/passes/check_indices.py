"""check_indices: the graph also gives the least and the greatest of all indices that are data, to be examined.

    y = Gather(axis=0)(table, i)     ─────>     y = Gather(axis=0)(table, i)
                                                low = ReduceMin(axes=(0,))(i)
                                                high = ReduceMax(axes=(0,))(i)      two more outputs

It is no pass of the pipeline: who imports a model with checks runs it first, while all nodes that have indices are
there. Indices that are constants are examined now.
"""

from dataclasses import replace

from tilewright.graph.graph import Graph, Node, Value
from tilewright.ops.core.reduce import ReduceMax, ReduceMin
from tilewright.support.indices import IndexCheck

_LABEL_CHARS = 200


def check_indices(graph: Graph) -> Graph:
    """`checks` of the result say what its last outputs mean, two for each. UserError for a constant that is wrong."""
    found: dict[tuple[Value, tuple[int, ...], bool], IndexCheck] = {}
    for node in graph.nodes:
        for use in node.op.indices([v.type for v in node.inputs]):
            value = node.inputs[use.input]
            if not value.size or not all(use.extents):
                continue
            check = IndexCheck(_title(node), value.type.dtype.numpy.name, use.extents, use.from_back)
            if value in graph.constants:
                check.examine_all(graph.constants[value])
            else:
                found.setdefault((value, use.extents, use.from_back), check)
    taken = {v.name for v in (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs))}
    nodes: list[Node] = []
    for (value, *_), check in found.items():
        axes = check.axes(len(value.shape))
        for op, word in ((ReduceMin(axes, False), "low"), (ReduceMax(axes, False), "high")):
            name = _unique(f"{value.name}_{word}", taken)
            (type,) = op.infer([value.type])
            nodes.append(Node(op, (value,), (Value(name, type),), name))
    made = tuple(v for n in nodes for v in n.outputs)
    return replace(
        graph,
        nodes=(*graph.nodes, *nodes),
        outputs=(*graph.outputs, *made),
        output_names=(*graph.output_names, *(v.name for v in made)),
        checks=tuple(found.values()),
    )


def _title(node: Node) -> str:
    return f"node {node.name[:_LABEL_CHARS]!r} ({type(node.op).__name__})"


def _unique(name: str, taken: set[str]) -> str:
    unique, n = name, 1
    while unique in taken:
        unique, n = f"{name}~{n}", n + 1
    taken.add(unique)
    return unique
