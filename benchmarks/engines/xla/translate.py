"""A function of JAX from an ONNX file.

Shapes are known while the function is traced, and what depends on shapes and constants only is computed then, by numpy.
Large weights are arguments of the function: XLA would fold them, as constants, for minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..onnx_nodes import Node, read_nodes
from .operators import OPERATORS

Array = NDArray[Any]  # of numpy or of JAX
Function = Callable[[Mapping[str, Array], Sequence[Array]], list[Array]]

LARGE = 64  # elements: weights with more are arguments
STAY_KNOWN = {"RoiAlign": (1,)}  # inputs that must not be arguments: they say where elements are read


def translate(path: str) -> tuple[Function, dict[str, Array]]:
    """A function from (weights, inputs in the model's order) to its outputs, and the weights."""
    graph = read_nodes(path)
    constants = dict(graph.constants)
    inputs, outputs = graph.inputs, graph.outputs
    left: list[Node] = []
    for node in (made for given in graph.nodes for made in _nodes(given)):
        if all(not name or name in constants for name in node.inputs):
            constants.update({name: np.asarray(value) for name, value in _evaluate(node, constants).items()})
        else:
            left.append(node)
    used = {*outputs, *(name for node in left for name in node.inputs)}
    needed = {name: value for name, value in constants.items() if name in used}
    stay = {node.inputs[at] for node in left for at in STAY_KNOWN.get(node.operator, ())}
    weights = {
        name: value
        for name, value in needed.items()
        if value.dtype.kind == "f" and value.size > LARGE and name not in stay
    }

    def function(weights: Mapping[str, Array], feeds: Sequence[Array]) -> list[Array]:
        values = {**needed, **weights, **dict(zip(inputs, feeds, strict=True))}
        for node in left:
            values.update(_evaluate(node, values))
        return [values[name] for name in outputs]

    return function, weights


def _nodes(node: Node) -> list[Node]:
    """The node; a matrix that it multiplies by from the right is transposed before, so that XLA reads along its rows. A
    constant one is transposed once, with the other constants.
    """
    at = {"Gemm": 1, "LSTM": 2, "GRU": 2}.get(node.operator)
    if at is None or (node.operator == "Gemm" and not node.attributes.get("transB", 0)):
        return [node]
    attributes = {name: value for name, value in node.attributes.items() if name != "transB"}
    transposed = f"{node.inputs[at]} transposed for {node.outputs}"
    inputs = (*node.inputs[:at], transposed, *node.inputs[at + 1 :])
    return [
        Node("TransposeOperand", (node.inputs[at],), (transposed,), {}),
        Node(node.operator, inputs, node.outputs, attributes),
    ]


def _evaluate(node: Node, values: Mapping[str, Array]) -> dict[str, Array]:
    operator = OPERATORS.get(node.operator)
    if operator is None:
        raise LookupError(f"the operator {node.operator} has no translation to JAX")
    found: Any = operator(*(values[name] if name else None for name in node.inputs), **node.attributes)
    results: list[Array] = list(found if isinstance(found, tuple) else (found,))  # pyright: ignore[reportUnknownArgumentType]
    if len(results) < len(node.outputs):
        raise LookupError(f"the output {node.outputs[len(results)]} of {node.operator} has no translation")
    return dict(zip(node.outputs, results, strict=False))
