"""Which nodes over constants are worth computing at compile time: those that save more than their results cost.

A result that becomes a constant has to be stored, loaded and kept, so each of its bytes has a price: the seconds of a
run that it must save. A constant that nobody reads any more gives its price back. A MatMul of large matrices saves
much and costs little; a broadcast saves next to nothing and may cost a gigabyte.

Over a tree of nodes the choice is the best there is. What a value with several readers saves is divided among them, so
where they decide differently, something may be computed now and in every run: a little slower, never wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.half_weights import widened_weights
from tilewright.graph.open_values import is_open_node
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.graph.surroundings import Surroundings
from tilewright.graph.work import node_iterations
from tilewright.ops.opdef import Kind
from tilewright.ops.outside import Outside
from tilewright.support.arrays import Array

# In seconds, on one core. Rough, and the same for all machines: a model always folds to the same graph.
_MULTIPLICATION = 1 / 30e9
_ITERATION = 1 / 10e9  # of loops that do anything else
_PRICE_OF_BYTE = 0.5e-9  # five times what it takes to read one from memory
# For a byte that a contraction reads: as a constant it is packed now, and transformed where that pays. Judged: more
# than its price. Measured on a recurrence of bytes, whose weights were packed in every run: 0.3 and more.
_PACKED_BYTE = 0.6e-9
_MOST_SECONDS = 20.0  # of all that is computed now: a small file may ask for any amount of work


def constant_part(graph: Graph) -> Graph | None:
    """The nodes to compute now, as a graph whose outputs are values of `graph`. Its inputs are constants of `graph`,
    but for those of one element, which are constants here too. None if nothing is worth it.
    """
    around = Surroundings(graph)
    outputs, nodes = _Choice(around).chosen()
    if not outputs:
        return None
    leaves = around.inputs(nodes)
    return Graph(
        f"constants of {graph.name}",
        tuple(v for v in leaves if v.size != 1),
        outputs,
        nodes,
        {v: graph.constants[v] for v in leaves if v.size == 1},
    )


def with_constants(graph: Graph, values: Mapping[Value, Array]) -> Graph:
    """The graph without the nodes that make these values, which are known now."""
    nodes = tuple(n for n in graph.nodes if values.keys().isdisjoint(n.outputs))
    return eliminate_dead(replace(graph, nodes=nodes, constants={**graph.constants, **values}))


@dataclass(frozen=True, slots=True)
class _Worth:
    """`saved`: by computing a node and all before it now, but for the price of its results. `best`: by the best choice
    among it and what is before it. `is_kept`: that is to keep its results.
    """

    saved: float
    best: float
    is_kept: bool


class _Choice:
    def __init__(self, around: Surroundings) -> None:
        self._around, self._constants = around, around.graph.constants
        self._widened = frozenset(widened_weights(around.graph))
        self._seconds: dict[Node, float] = {}
        self._worth: dict[Node, _Worth] = {}
        left = _MOST_SECONDS
        for n in around.graph.nodes:
            if not self._is_known(n):
                continue
            seconds = _seconds(n)
            if seconds <= left:
                left -= seconds
                self._seconds[n] = seconds
        for n in self._seconds:
            self._worth[n] = self._weigh(n)

    def chosen(self) -> tuple[tuple[Value, ...], tuple[Node, ...]]:
        """The values to keep, and all nodes that lead to them."""
        kept: dict[Value, None] = {}
        late: set[Node] = {n for n in self._around.graph.nodes if n not in self._worth}
        # readers come first: a node that is left to run time needs its inputs there
        for n in reversed(self._worth):
            needed = [v for v in n.outputs if self._around.escapes(v, self._worth) or self._is_read(v, late)]
            if needed and self._worth[n].is_kept:
                kept.update(dict.fromkeys(needed))
            elif needed:
                late.add(n)
        todo = [self._around.producers[v] for v in kept]
        nodes: set[Node] = set()
        while todo:
            n = todo.pop()
            if n not in nodes:
                nodes.add(n)
                todo += [self._around.producers[v] for v in n.inputs if v not in self._constants]
        return tuple(v for n in self._worth for v in n.outputs if v in kept), self._around.ordered(nodes)

    def _is_known(self, n: Node) -> bool:
        inputs = (v in self._constants or self._around.producers.get(v) in self._seconds for v in n.inputs)
        return not isinstance(n.op, Outside) and all(inputs) and not is_open_node(n)

    def _is_read(self, v: Value, nodes: set[Node]) -> bool:
        return any(u in nodes for u in self._around.users[v])

    def _weigh(self, n: Node) -> _Worth:
        inputs = dict.fromkeys(n.inputs)
        saved = self._seconds[n] + sum(self._saved_by(v) for v in inputs)
        before = sum(self._best_of(v) for v in inputs)
        packed = 0 if n in self._widened else sum(v.bytes for v in n.outputs if self._is_contracted(v))
        kept = saved - _PRICE_OF_BYTE * sum(v.bytes for v in n.outputs) + _PACKED_BYTE * packed
        return _Worth(saved, max(kept, before), kept >= max(before, 0.0))

    def _is_contracted(self, v: Value) -> bool:
        """Is it an operand of a contraction that is not computed now?"""
        return any(u.op.kind is Kind.CONTRACTION and u not in self._seconds for u in self._around.users[v])

    def _saved_by(self, v: Value) -> float:
        """A reader's share of what it saves that this value need not be made, or kept, any more."""
        if v not in self._constants:
            return self._worth[self._around.producers[v]].saved / self._readers(v)
        if self._around.escapes(v, self._seconds):
            return 0.0
        return _PRICE_OF_BYTE * v.bytes / self._readers(v)

    def _best_of(self, v: Value) -> float:
        if v in self._constants:
            return 0.0
        return self._worth[self._around.producers[v]].best / self._readers(v)

    def _readers(self, v: Value) -> int:
        return max(1, len(self._around.users[v]))


def _seconds(n: Node) -> float:
    return node_iterations(n) * (_MULTIPLICATION if n.op.kind is Kind.CONTRACTION else _ITERATION)
