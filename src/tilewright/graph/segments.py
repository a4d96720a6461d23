"""A graph cut into a few pieces, one after the other, where little goes across.

Who decides about parts of a model, and cannot try all of them, decides about these. A cut is a place in the order of
the nodes; what is needed after it and made before it goes across. Cuts are where few values do, and such that pieces
have about the same work.
"""

from collections.abc import Collection, Iterable, Sequence

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.surroundings import Surroundings
from tilewright.graph.work import multiplications
from tilewright.support.sizes import capacity

_MOST_ACROSS = 3  # values: what a layer hands on, what a shortcut does, and a mask


def work(node: Node) -> int:
    """Elements touched, or multiplications: in proportion to time within a kind, roughly so across. Open sizes count as
    the largest that they may be.
    """
    touched = capacity(sum(v.size for v in (*node.inputs, *node.outputs)))
    return max(touched, multiplications(node))


def segments(graph: Graph, most: int, together: Iterable[Collection[Node]] = ()) -> list[tuple[Node, ...]]:
    """At most `most` pieces, in order. Nodes that belong `together` are in one piece."""
    allowed = _narrow_places(graph)
    index = {n: i for i, n in enumerate(graph.nodes)}
    for nodes in together:
        at = [index[n] for n in nodes]
        allowed.difference_update(range(min(at) + 1, max(at) + 1))
    done, total = 0, sum(map(work, graph.nodes))
    pieces: list[tuple[Node, ...]] = []
    start = 0
    for i, node in enumerate(graph.nodes):
        done += work(node)
        is_due = done * most >= total * (len(pieces) + 1)
        if is_due and i + 1 in allowed and i + 1 < len(graph.nodes):
            pieces.append(graph.nodes[start : i + 1])
            start = i + 1
    return [*pieces, graph.nodes[start:]]


def _narrow_places(graph: Graph) -> set[int]:
    """The places before which node the graph may be cut."""
    around = Surroundings(graph)
    last: dict[Value, int] = {v: len(graph.nodes) for v in graph.outputs}
    for v, readers in around.users.items():
        if readers and v not in graph.constants:
            last[v] = max(last.get(v, 0), *(around.index[n] for n in readers))
    first = {v: around.index[n] for v, n in around.producers.items()}
    across = [0] * (len(graph.nodes) + 1)
    for v, end in last.items():
        begin = first.get(v, -1)
        for place in range(begin + 1, end + 1):
            across[place] += 1
    return {place for place in range(1, len(graph.nodes)) if across[place] <= _MOST_ACROSS}


def subgraph(around: Surroundings, name: str, nodes: Sequence[Node]) -> Graph:
    """Some nodes as a graph of their own. Values keep their names and identity."""
    return cut_out(around.graph, name, around.ordered(nodes), around.inputs(nodes), around.outputs(nodes))


def cut_out(
    graph: Graph, name: str, nodes: tuple[Node, ...], inputs: Sequence[Value], outputs: tuple[Value, ...]
) -> Graph:
    """The same for nodes whose border is known; constants are among the inputs."""
    return Graph(
        name,
        tuple(v for v in inputs if v not in graph.constants),
        outputs,
        nodes,
        {v: graph.constants[v] for v in inputs if v in graph.constants},
        origins={n: graph.origins[n] for n in nodes if n in graph.origins},
    )
