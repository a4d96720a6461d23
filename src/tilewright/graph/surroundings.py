"""A graph looked at from its nodes: who makes and who reads a value, and which sets of nodes can run as one.

Made once for a graph and asked often.
"""

from collections.abc import Collection, Iterable

from tilewright.graph.graph import Graph, Node, Value, producers, users


class Surroundings:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.index = {n: i for i, n in enumerate(graph.nodes)}
        self.producers = producers(graph)
        self.users = users(graph)
        self._results = frozenset(graph.outputs)

    def ordered(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        return tuple(sorted(nodes, key=self.index.__getitem__))

    def inputs(self, nodes: Collection[Node]) -> tuple[Value, ...]:
        """The values that these nodes read and do not make, constants included, in the order of use."""
        made = {v for n in nodes for v in n.outputs}
        return tuple(dict.fromkeys(v for n in self.ordered(nodes) for v in n.inputs if v not in made))

    def outputs(self, nodes: Collection[Node]) -> tuple[Value, ...]:
        """The values that these nodes make and others need."""
        inside = set(nodes)
        return tuple(v for n in self.ordered(nodes) for v in n.outputs if self.escapes(v, inside))

    def escapes(self, value: Value, inside: Collection[Node]) -> bool:
        """Is the value needed outside of these nodes?"""
        return value in self._results or any(u not in inside for u in self.users[value])

    def is_convex(self, nodes: Collection[Node]) -> bool:
        """Does no path leave the nodes and come back?"""
        inside = set(nodes)
        last = max(self.index[n] for n in inside)
        todo = [u for n in inside for v in n.outputs for u in self.users[v] if u not in inside]
        seen: set[Node] = set()
        while todo:
            n = todo.pop()
            if n in seen or self.index[n] > last:  # users come later: none of them is inside
                continue
            seen.add(n)
            for v in n.outputs:
                for u in self.users[v]:
                    if u in inside:
                        return False
                    todo.append(u)
        return True
