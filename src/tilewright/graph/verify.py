"""Checks the invariants of a graph (`graph.graph`). A broken one is our mistake, so it raises InternalError."""

from tilewright.graph.graph import Graph, Value
from tilewright.graph.printer import print_node
from tilewright.ops.opdef import TensorType
from tilewright.support.errors import InternalError, UserError


def verify_graph(graph: Graph) -> None:
    defined: set[Value] = set()
    names: set[str] = set()

    def define(v: Value, where: str) -> None:
        if v in defined or v.name in names:
            raise InternalError(f"{where}: value {v.name!r} is defined twice")
        defined.add(v)
        names.add(v.name)

    for v in graph.inputs:
        define(v, f"graph {graph.name!r}")
    for v, array in graph.constants.items():
        define(v, f"graph {graph.name!r}")
        if TensorType.of(array) != v.type:
            raise InternalError(f"constant {v!r} holds {TensorType.of(array)}")
        if not array.flags.c_contiguous:
            raise InternalError(f"constant {v!r} is not C-contiguous")
    for n in graph.nodes:
        where = f"node {print_node(n)}"
        for v in n.inputs:
            if v not in defined:
                raise InternalError(f"{where}: input {v.name!r} is used before it is defined")
        try:
            types = n.op.infer([v.type for v in n.inputs])
        except UserError as e:
            raise InternalError(f"{where}: {e}") from e
        if types != tuple(v.type for v in n.outputs):
            raise InternalError(f"{where}: the op infers {', '.join(map(str, types))}")
        for v in n.outputs:
            define(v, where)
    for v in graph.outputs:
        if v not in defined:
            raise InternalError(f"graph {graph.name!r}: output {v.name!r} is not defined")
    if len(graph.outputs) != len(graph.output_names):
        raise InternalError(
            f"graph {graph.name!r}: {len(graph.outputs)} outputs, {len(graph.output_names)} names"
        )
