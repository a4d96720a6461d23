"""A function of JAX from an ONNX file.

Shapes are known while the function is traced, and what depends on shapes and constants only is computed then, by numpy.
Large weights are arguments of the function: XLA would fold them, as constants, for minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .operators import OPERATORS

onnx: Any = import_module("onnx")

Array = NDArray[Any]  # of numpy or of JAX
Function = Callable[[Mapping[str, Array], Sequence[Array]], list[Array]]

OLDEST_OPSET = 13  # older files are brought to it: axes and splits are inputs since then
LARGE = 64  # elements: weights with more are arguments


@dataclass(frozen=True)
class Node:
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


def translate(path: str) -> tuple[Function, dict[str, Array]]:
    """A function from (weights, inputs in the model's order) to its outputs, and the weights."""
    model = onnx.load(path)
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=OLDEST_OPSET)
    if opset < OLDEST_OPSET:
        model = import_module("onnx.version_converter").convert_version(model, OLDEST_OPSET)
    graph = model.graph
    constants: dict[str, Array] = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    inputs = [i.name for i in graph.input if i.name not in constants]
    outputs = [o.name for o in graph.output]
    left: list[Node] = []
    for node in (made for proto in graph.node for made in _nodes(proto)):
        if all(not name or name in constants for name in node.inputs):
            constants.update({name: np.asarray(value) for name, value in _evaluate(node, constants).items()})
        else:
            left.append(node)
    used = {*outputs, *(name for node in left for name in node.inputs)}
    needed = {name: value for name, value in constants.items() if name in used}
    weights = {
        name: value for name, value in needed.items() if value.dtype.kind == "f" and value.size > LARGE
    }

    def function(weights: Mapping[str, Array], feeds: Sequence[Array]) -> list[Array]:
        values = {**needed, **weights, **dict(zip(inputs, feeds, strict=True))}
        for node in left:
            values.update(_evaluate(node, values))
        return [values[name] for name in outputs]

    return function, weights


def _nodes(proto: Any) -> list[Node]:
    """The node; a matrix that it multiplies by from the right is transposed before, so that XLA reads along its rows. A
    constant one is transposed once, with the other constants.
    """
    attributes = _attributes(proto)
    if proto.op_type == "Split" and len(proto.input) < 2:
        attributes["num_outputs"] = len(proto.output)
    node = Node(proto.op_type, tuple(proto.input), tuple(proto.output), attributes)
    at = {"Gemm": 1, "LSTM": 2, "GRU": 2}.get(node.operator)
    if at is None or (node.operator == "Gemm" and not attributes.pop("transB", 0)):
        return [node]
    transposed = f"{node.inputs[at]} transposed for {node.outputs}"
    inputs = (*node.inputs[:at], transposed, *node.inputs[at + 1 :])
    return [
        Node("TransposeOperand", (node.inputs[at],), (transposed,), {}),
        Node(node.operator, inputs, node.outputs, attributes),
    ]


def _attributes(proto: Any) -> dict[str, Any]:
    """Those that are not as the specification has them by default, which exporters write, too."""
    known: dict[str, Any] = {}
    if onnx.defs.has(proto.op_type):
        known = onnx.defs.get_schema(proto.op_type).attributes
    defaults = {name: _attribute(a.default_value) for name, a in known.items() if a.default_value.type}
    given = {a.name: _attribute(a) for a in proto.attribute}
    return {name: value for name, value in given.items() if name not in defaults or value != defaults[name]}


def _attribute(proto: Any) -> Any:
    value: Any = onnx.helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode()
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _evaluate(node: Node, values: Mapping[str, Array]) -> dict[str, Array]:
    operator = OPERATORS.get(node.operator)
    if operator is None:
        raise LookupError(f"the operator {node.operator} has no translation to JAX")
    found: Any = operator(*(values[name] if name else None for name in node.inputs), **node.attributes)
    results: list[Array] = list(found if isinstance(found, tuple) else (found,))  # pyright: ignore[reportUnknownArgumentType]
    if len(results) < len(node.outputs):
        raise LookupError(f"the output {node.outputs[len(results)]} of {node.operator} has no translation")
    return dict(zip(node.outputs, results, strict=False))
