"""The meaning of a graph: each op's numpy reference, in order. Slow and simple; what everything else is held to."""

from collections import Counter
from collections.abc import Mapping

from tilewright.graph.graph import Graph, Value
from tilewright.ops.opdef import TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import InternalError, UserError


def interpret_graph(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run `graph` on arrays by input name; the outputs by output name."""
    values: dict[Value, Array] = dict(graph.constants)
    for v in graph.inputs:
        if v.name not in feeds:
            raise UserError(f"no value for the input {v!r}", hint=f"inputs: {_signature(graph)}")
        if TensorType.of(feeds[v.name]) != v.type:
            raise UserError(f"input {v!r} was given {TensorType.of(feeds[v.name])}")
        values[v] = feeds[v.name]
    unknown = feeds.keys() - {v.name for v in graph.inputs}
    if unknown:
        raise UserError(f"no input is named {sorted(unknown)[0]!r}", hint=f"inputs: {_signature(graph)}")

    uses = Counter(v for n in graph.nodes for v in n.inputs)
    uses.update(graph.outputs)
    for n in graph.nodes:
        results = n.op.reference([values[v] for v in n.inputs])
        for v, array in zip(n.outputs, results, strict=True):
            if TensorType.of(array) != v.type:
                raise InternalError(f"{n!r}: the reference gives {TensorType.of(array)} for {v!r}")
            values[v] = array
        for v in n.inputs:  # free what nobody reads any more
            uses[v] -= 1
            if not uses[v]:
                del values[v]
    return {name: values[v] for name, v in zip(graph.output_names, graph.outputs, strict=True)}


def _signature(graph: Graph) -> str:
    return ", ".join(map(repr, graph.inputs)) or "none"
