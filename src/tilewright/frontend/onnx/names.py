"""Names in an ONNX graph: how messages show them, and which ones a node's subgraphs use."""

from collections.abc import Iterable, Iterator

from onnx import AttributeProto, GraphProto, NodeProto

from tilewright.support.errors import UserError

_LABEL_CHARS = 120


def label(name: str) -> str:
    """A name from the model in a message: quoted, and not longer than a line."""
    return repr(name if len(name) <= _LABEL_CHARS else name[:_LABEL_CHARS] + "…")


def check_names(graph: GraphProto) -> None:
    """UserError for names that are not UTF-8: protobuf hands those out as bytes."""
    names: list[object] = [graph.name, *stored_names(graph)]
    for info in (*graph.input, *graph.output):
        names += [info.name, *(d.dim_param for d in info.type.tensor_type.shape.dim)]
    for n in graph.node:
        names += [n.name, n.op_type, n.domain, *n.input, *n.output, *(a.name for a in n.attribute)]
        for body in subgraphs(n).values():
            check_names(body)
    for name in names:
        if not isinstance(name, str):
            raise UserError(f"the model has a name that is not UTF-8 text: {label(repr(name))}")


def stored_names(graph: GraphProto) -> set[str]:
    """The names of the tensors in a graph, sparse ones too."""
    return {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}


def subgraphs(node: NodeProto) -> dict[str, GraphProto]:
    return {a.name: a.g for a in node.attribute if a.type == AttributeProto.GRAPH}


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and those of their subgraphs."""
    stack = [iter(nodes)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        yield node
        stack.extend(iter(g.node) for g in subgraphs(node).values())


def free_names(node: NodeProto) -> set[str]:
    """What the node's subgraphs use of the graph around them."""
    out: set[str] = set()
    for g in subgraphs(node).values():
        inside = {i.name for i in g.input} | stored_names(g)
        inside |= {o for n in g.node for o in n.output}
        used = {o.name for o in g.output}
        for n in g.node:
            used |= {*n.input, *free_names(n)}
        out |= used - inside
    return out - {""}
