"""An ONNX file as plain nodes, for engines that have no importer of their own (XLA, PyTorch).

Imports onnx: only such an engine imports this.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from numpy.typing import NDArray

onnx: Any = import_module("onnx")

OLDEST_OPSET = 13  # older files are brought to it: axes and splits are inputs since then


@dataclass(frozen=True)
class Node:
    """`attributes` are those that are not as the specification has them by default."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class OnnxNodes:
    """A graph in the order of its nodes. `inputs` are those that are fed; `constants` its initializers."""

    nodes: list[Node]
    constants: dict[str, NDArray[Any]]
    inputs: list[str]
    outputs: list[str]


def read_nodes(path: str) -> OnnxNodes:
    model = onnx.load(path)
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=OLDEST_OPSET)
    if opset < OLDEST_OPSET:
        model = import_module("onnx.version_converter").convert_version(model, OLDEST_OPSET)
    graph = model.graph
    constants: dict[str, NDArray[Any]] = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    inputs = [i.name for i in graph.input if i.name not in constants]
    return OnnxNodes([_node(n) for n in graph.node], constants, inputs, [o.name for o in graph.output])


def _node(proto: Any) -> Node:
    attributes = _attributes(proto)
    if proto.op_type == "Split" and len(proto.input) < 2:
        attributes["num_outputs"] = len(proto.output)
    return Node(proto.op_type, tuple(proto.input), tuple(proto.output), attributes)


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
