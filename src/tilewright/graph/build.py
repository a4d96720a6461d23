"""Building a graph equation by equation. Types are inferred, names made unique.

b = GraphBuilder("mlp")
x = b.input("x", TensorType(F32, (1, 8)))
w = b.constant("w", weights)
h = b.apply(MatMul(), x, w)
graph = b.finish(h)
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.origin import Origin
from tilewright.ops.opdef import Op, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError


class GraphBuilder:
    """Collects nodes in order. Adding a node raises the op's own UserError if the inputs do not fit."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._constants: dict[Value, Array] = {}
        self._names: set[str] = set()
        self._last: dict[
            str, int
        ] = {}  # the last number given to a name, so that many equal names stay cheap

    def input(self, name: str, type: TensorType) -> Value:
        value = Value(self._unique(name), type)
        self._inputs.append(value)
        return value

    def constant(self, name: str, array: Array) -> Value:
        array = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes a scalar rank 1
        value = Value(self._unique(name), TensorType.of(array))
        self._constants[value] = array
        return value

    def add(
        self, op: Op, inputs: Sequence[Value], name: str | None = None, outputs: Sequence[str] = ()
    ) -> Node:
        """Add `op(inputs)`. `outputs` names its first outputs; the others are named after the node."""
        base = type(op).__name__.lower() if name is None else name
        types = op.infer([v.type for v in inputs])
        if len(outputs) > len(types):
            raise UserError(f"{type(op).__name__} has {len(types)} outputs here, not {len(outputs)}")
        rest = [base if len(types) == 1 else f"{base}_{i}" for i in range(len(outputs), len(types))]
        values = tuple(Value(self._unique(n), t) for n, t in zip([*outputs, *rest], types, strict=True))
        node = Node(op, tuple(inputs), values, base)
        self._nodes.append(node)
        return node

    def apply(self, op: Op, *inputs: Value, name: str | None = None) -> Value:
        """Add `op(inputs)`, which has one output."""
        (value,) = self.add(op, inputs, name).outputs
        return value

    def finish(
        self,
        *outputs: Value,
        names: Sequence[str] = (),
        origins: Mapping[Node, Origin] = MappingProxyType({}),
    ) -> Graph:
        return Graph(
            self.name,
            tuple(self._inputs),
            outputs,
            tuple(self._nodes),
            self._constants,
            tuple(names),
            origins,
        )

    def _unique(self, name: str) -> str:
        if name not in self._names:
            self._names.add(name)
            return name
        n = self._last.get(name, 0) + 1
        while f"{name}.{n}" in self._names:
            n += 1
        self._last[name] = n
        self._names.add(f"{name}.{n}")
        return f"{name}.{n}"
