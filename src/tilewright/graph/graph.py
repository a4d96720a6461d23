"""The graph: a model as ordered, typed equations.

    softmax: f32[1, 10] = Softmax(axis=1)(linear)

Invariants (`graph.verify` checks them)
- Nodes stand in an order in which every value is defined before it is used; so a graph has no cycles.
- A value is defined once: as an input, a constant or an output of one node. Names of values are unique.
- Types are static and are what the op's `infer` says.
- A graph is immutable: passes make another graph, and values that they do not touch keep their identity. Values and
  nodes are compared by identity.

Names of values come from the model and may be any text. `output_names` are what a user calls the outputs: a pass may
replace the value of an output, but never its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.graph.origin import Origin
from tilewright.graph.value import Value
from tilewright.ops.opdef import Op
from tilewright.support.arrays import Array
from tilewright.support.indices import IndexCheck

__all__ = ["Graph", "Node", "Value", "producers", "users"]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One equation: `outputs = op(inputs)`. `name` is the model's name for it, for messages."""

    op: Op
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    name: str

    def __repr__(self) -> str:
        return f"{type(self.op).__name__} {self.name!r}"


def _no_constants() -> dict[Value, Array]:
    return {}


def _no_origins() -> dict[Node, Origin]:
    return {}


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """`constants` maps a value to its array: C-contiguous, never written to. `origins` says where nodes come from that
    are as they were imported. If indices are checked, `checks` say how, and the last outputs (two for each) are only
    for that: `graph.passes.check_indices`.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[Value, Array] = field(default_factory=_no_constants)
    output_names: tuple[str, ...] = ()  # by default the names of the outputs
    origins: Mapping[Node, Origin] = field(default_factory=_no_origins, repr=False)
    checks: tuple[IndexCheck, ...] | None = None

    def __post_init__(self) -> None:
        if not self.output_names:
            object.__setattr__(self, "output_names", tuple(v.name for v in self.outputs))


def producers(graph: Graph) -> dict[Value, Node]:
    """The node that defines each value that is neither input nor constant."""
    return {v: n for n in graph.nodes for v in n.outputs}


def users(graph: Graph) -> dict[Value, list[Node]]:
    """The nodes that read each value, in order; a node that reads it twice is listed once.

    Every value of the graph has an entry. A graph output is no user: ask `graph.outputs`.
    """
    out: dict[Value, list[Node]] = {v: [] for v in (*graph.inputs, *graph.constants)}
    for n in graph.nodes:
        for v in dict.fromkeys(n.inputs):
            out[v].append(n)
        for v in n.outputs:
            out[v] = []
    return out
