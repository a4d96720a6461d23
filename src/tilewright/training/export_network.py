"""A trained network over graphs as an ONNX model that Tilewright compiles: for one kernel of few enough nodes.

The graph is what the network leaves behind when its operations write nodes instead of computing. Its inputs are those
of `learned/graph_network.py` for a batch of one kernel, scaled already.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tilewright.learned.features import FEATURES
from tilewright.learned.graph_network import GraphBatch, NetworkShape, NetworkWeights, forward
from tilewright.learned.kernel_graph import NODE_FEATURES, OPCODES
from tilewright.learned.model_file import BATCH, FORMAT, OUTPUT, guard_text, packed_floats
from tilewright.support.arrays import Array
from tilewright.training.export import write_model
from tilewright.training.torch_network import GraphModel

NETWORK_METADATA = "tilewright.cost_network"
NODES = 64  # of a kernel's graph, given: few have more
_OPSET, _IR = 18, 9


def network_model(
    shape: NetworkShape, weights: NetworkWeights, nodes: int = NODES, rows: int = BATCH
) -> ModelProto:
    """Inputs `codes`, `nodes`, `reads`, `read_by`, `mask` and `features` to scores [1, rows]."""
    ops = OnnxOps()
    for name, array in weights.items():
        ops.give(name, np.asarray(array, np.float32))
    shapes: dict[str, tuple[int, list[int]]] = {
        "codes": (TensorProto.INT64, [1, nodes]),
        "nodes": (TensorProto.FLOAT, [1, nodes, len(NODE_FEATURES)]),
        "reads": (TensorProto.FLOAT, [1, nodes, nodes]),
        "read_by": (TensorProto.FLOAT, [1, nodes, nodes]),
        "mask": (TensorProto.FLOAT, [1, nodes, 1]),
        "features": (TensorProto.FLOAT, [1, rows, len(FEATURES)]),
    }
    inputs = GraphBatch(**{name: f"given_{name}" for name in shapes})
    result = forward(ops, shape, {name: name for name in weights}, inputs)
    ops.nodes.append(helper.make_node("Identity", [result], [OUTPUT]))
    used = {n for node in ops.nodes for n in node.input}
    graph = helper.make_graph(
        ops.nodes,
        "cost_network",
        [
            helper.make_tensor_value_info(f"given_{name}", kind, dims)
            for name, (kind, dims) in shapes.items()
            if f"given_{name}" in used
        ],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [1, rows])],
        [numpy_helper.from_array(a, name) for name, a in ops.arrays.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)


def write_network(path: Path, model: GraphModel, about: Mapping[str, Any]) -> int:
    """With how inputs are scaled, and the guard. The file's size in bytes."""
    made = network_model(model.shape, model.weights)
    scalings = {"nodes": model.node_scaling, "features": model.scaling}
    metadata = {
        "format": FORMAT,
        "network": asdict(model.shape),
        "features": FEATURES,
        "node_features": NODE_FEATURES,
        "opcodes": OPCODES,
        "scaling": {
            name: {part: packed_floats(getattr(s, part)) for part in ("centre", "spread", "absent")}
            for name, s in scalings.items()
        },
        "guard": guard_text(model.guard) if model.guard else None,
        "training": dict(about),
    }
    helper.set_model_props(made, {NETWORK_METADATA: json.dumps(metadata)})
    return write_model(path, made)


class OnnxOps:
    """Operations on names of values: each leaves a node."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.arrays: dict[str, Array] = {}

    def give(self, name: str, array: Array) -> str:
        self.arrays[name] = np.ascontiguousarray(array)
        return name

    def _add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"made{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def _axes(self, *axes: int) -> str:
        return self.give(f"axes_{'_'.join(map(str, axes))}", np.array(axes, np.int64))

    def matmul(self, a: Any, b: Any) -> Any:
        return self._add("MatMul", a, b)

    def add(self, a: Any, b: Any) -> Any:
        return self._add("Add", a, b)

    def multiply(self, a: Any, b: Any) -> Any:
        return self._add("Mul", a, b)

    def leaky_relu(self, a: Any) -> Any:
        return self._add("LeakyRelu", a, alpha=0.01)

    def sqrt(self, a: Any) -> Any:
        return self._add("Sqrt", a)

    def divide(self, a: Any, b: Any) -> Any:
        return self._add("Div", a, b)

    def gather(self, table: Any, numbers: Any) -> Any:
        return self._add("Gather", table, numbers, axis=0)

    def sum(self, a: Any, axis: int) -> Any:
        return self._add("ReduceSum", a, self._axes(axis), keepdims=1)

    def maximum(self, a: Any, axis: int) -> Any:
        return self._add("ReduceMax", a, self._axes(axis), keepdims=1)

    def softmax(self, a: Any) -> Any:
        return self._add("Softmax", a, axis=-1)

    def transpose(self, a: Any) -> Any:
        """Of batches of one kernel: three axes, or four where schedules have graphs of their own."""
        return self._add("Transpose", a, perm=self._perm)

    def concat(self, parts: Sequence[Any]) -> Any:
        return self._add("Concat", *parts, axis=-1)

    def unsqueeze(self, a: Any, axis: int) -> Any:
        self._perm = [0, 1, 3, 2]
        return self._add("Unsqueeze", a, self._axes(axis))

    def squeeze(self, a: Any, axis: int) -> Any:
        return self._add("Squeeze", a, self._axes(axis))

    def constant(self, value: float) -> Any:
        return self.give(f"number_{value}", np.array(value, np.float32))

    _perm: Sequence[int] = (0, 2, 1)  # until there is an axis of schedules
