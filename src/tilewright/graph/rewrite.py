"""The one way to rewrite a graph: a sweep over its nodes in order, in which a rule may replace each.

A rule sees a node whose inputs have been rewritten already, and the sweep, through which it looks at producers and
constants and makes new nodes. It returns the values that take the place of the node's outputs, or None to keep it.
New nodes are offered to the rule as well, so one sweep collapses a chain of any length; a rule must therefore make
progress each time. What is left without users stays until `eliminate_dead`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tilewright.graph.graph import Graph, Node, Value
from tilewright.ops.opdef import Op, TensorType
from tilewright.support.arrays import Array

Rule: TypeAlias = "Callable[[Sweep, Node], Sequence[Value] | None]"


class Sweep:
    """The graph as rewritten so far."""

    def __init__(self, graph: Graph, rule: Rule) -> None:
        self._rule = rule
        self._nodes: list[Node] = []
        self._constants: dict[Value, Array] = dict(graph.constants)
        self._producer: dict[Value, Node] = {}
        self._taken = {v.name for v in (*graph.inputs, *graph.constants)}
        self._reserved = {v.name for n in graph.nodes for v in n.outputs}  # until their node is decided on

    def producer(self, value: Value) -> Node | None:
        return self._producer.get(value)

    def known(self, value: Value) -> Array | None:
        """The array of a constant."""
        return self._constants.get(value)

    def add_constant(self, name: str, array: Array, instead_of: Value | None = None) -> Value:
        """A new constant. It has the name of the value it stands for, if there is one."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        value = Value(self._unique(name, owned=instead_of is not None), TensorType.of(array))
        self._taken.add(value.name)
        self._constants[value] = array
        return value

    def add(self, op: Op, inputs: Sequence[Value], instead_of: Node) -> tuple[Value, ...]:
        """A new node, which has the names of the one it stands for."""
        types = op.infer([v.type for v in inputs])
        names = [instead_of.outputs[min(i, len(instead_of.outputs) - 1)].name for i in range(len(types))]
        outputs: list[Value] = []
        for name, type in zip(names, types, strict=True):
            unique = self._unique(name, owned=True)
            while any(v.name == unique for v in outputs):  # it has more outputs than what it stands for
                unique = self._unique(f"{unique}~1", owned=False)
            outputs.append(Value(unique, type))
        return self.offer(Node(op, tuple(inputs), tuple(outputs), instead_of.name))

    def add_piece(self, op: Op, inputs: Sequence[Value], part_of: Node) -> Value:
        """A new node with one output that is only part of what stands for `part_of`."""
        (type,) = op.infer([v.type for v in inputs])
        name = self._unique(f"{part_of.outputs[0].name}~1", owned=False)
        (value,) = self.offer(Node(op, tuple(inputs), (Value(name, type),), part_of.name))
        return value

    def add_pieces(self, op: Op, inputs: Sequence[Value], part_of: Node) -> tuple[Value, ...]:
        """The same of one with several outputs."""
        outputs: list[Value] = []
        for type in op.infer([v.type for v in inputs]):
            name = self._unique(f"{part_of.outputs[0].name}~1", owned=False)
            while any(v.name == name for v in outputs):
                name = self._unique(f"{name}~1", owned=False)
            outputs.append(Value(name, type))
        return self.offer(Node(op, tuple(inputs), tuple(outputs), part_of.name))

    def offer(self, node: Node) -> tuple[Value, ...]:
        """Let the rule decide on `node`; the values that stand for its outputs."""
        result = self._rule(self, node)
        if result is not None:
            return tuple(result)
        self._nodes.append(node)
        for v in node.outputs:
            self._producer[v] = node
            self._taken.add(v.name)
        return node.outputs

    def finish(self, graph: Graph, outputs: tuple[Value, ...]) -> Graph:
        return replace(graph, outputs=outputs, nodes=tuple(self._nodes), constants=self._constants)

    def _unique(self, name: str, owned: bool) -> str:
        unique, n = name, 1
        while unique in self._taken or (unique in self._reserved and not (owned and unique == name)):
            unique, n = f"{name}~{n}", n + 1
        return unique


def sweep(graph: Graph, rule: Rule) -> Graph:
    """Rewrite `graph` by `rule`; the same graph if the rule keeps everything."""
    state = Sweep(graph, rule)
    now: dict[Value, Value] = {}
    for n in graph.nodes:
        inputs = tuple(now.get(v, v) for v in n.inputs)
        same = all(a is b for a, b in zip(inputs, n.inputs, strict=True))
        made = state.offer(n if same else replace(n, inputs=inputs))
        now.update((old, new) for old, new in zip(n.outputs, made, strict=True) if old is not new)
    if not now:
        return graph
    return state.finish(graph, tuple(now.get(v, v) for v in graph.outputs))
