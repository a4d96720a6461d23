"""Inputs of a graph that are states of recurrent nodes, and the outputs that are the same states after all steps.

Networks of several layers have one input for the states of all of them, of which each takes a slice, and join what they
leave. So the elements are numbered and followed: what moves elements moves their numbers, and the last state of a node
has the numbers of its first. An output whose numbers are in their order is the input, later.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import numpy as np

from tilewright.graph.graph import Graph, Value
from tilewright.ops.core.recurrent import Recurrent
from tilewright.support.arrays import Array
from tilewright.support.sizes import SymInt, capacity, same_size

_MOST_ELEMENTS = 1 << 20  # of a state that is followed: larger than those of networks


def find_states(graph: Graph) -> tuple[tuple[int, int], ...]:
    """Inputs, each with the output that it becomes; by their numbers."""
    if not any(isinstance(n.op, Recurrent) for n in graph.nodes):
        return ()
    found: list[tuple[int, int]] = []
    for i, v in enumerate(graph.inputs):
        outputs = _outputs_of(graph, v)
        if len(outputs) == 1:
            found.append((i, outputs[0]))
    return tuple(found)


def _outputs_of(graph: Graph, state: Value) -> list[int]:
    shape = tuple(map(capacity, state.shape))
    if not 0 < int(np.prod(shape)) <= _MOST_ELEMENTS:
        return []
    numbers: Array = np.arange(int(np.prod(shape))).reshape(shape)
    first: dict[Value, Array] = {state: numbers}  # numbers of elements before all steps
    last: dict[Value, Array] = {}  # and after them
    for n in graph.nodes:
        if isinstance(n.op, Recurrent):
            last |= _after(n.op, n.inputs, n.outputs, first)
        elif n.op.moves_only and n.inputs and len(n.outputs) == 1:
            for known in (first, last):
                if all(v in known for v in n.inputs):
                    known[n.outputs[0]] = _at_capacity(n.op).reference([known[v] for v in n.inputs])[0]
    return [
        o
        for o, v in enumerate(graph.outputs)
        if v in last
        and v.type.dtype is state.type.dtype
        and len(v.shape) == len(state.shape)
        and all(map(same_size, v.shape, state.shape))
        and np.array_equal(last[v], numbers)
    ]


def _at_capacity(value: Any) -> Any:
    """An operator, or an attribute of it, with the largest sizes: as numpy takes them."""
    if isinstance(value, SymInt):
        return capacity(value)
    if isinstance(value, tuple):
        return tuple(map(_at_capacity, cast(tuple[Any, ...], value)))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _at_capacity(getattr(value, f.name)) for f in fields(value) if f.init}
        )
    return value


def _after(
    op: Recurrent, inputs: tuple[Value, ...], outputs: tuple[Value, ...], first: dict[Value, Array]
) -> dict[Value, Array]:
    """The last states of a node whose first ones are followed."""
    given = dict(zip(op.given, inputs, strict=True))
    found: dict[Value, Array] = {}
    for kind, out in zip(op.states, outputs[1:], strict=False):
        start = given.get(f"initial_{kind}")
        if start is not None and start in first:
            found[out] = first[start]
    return found
