"""A module of PyTorch from an ONNX file, for inputs of known shapes.

What depends on shapes and constants only is computed now. The module is straight-line code that `torch.fx` writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ..onnx_nodes import Node, read_nodes
from .operators import OPERATORS
from .trace import Recorder, is_known

torch: Any = import_module("torch")


def translate(path: str, inputs: Sequence[Any]) -> Any:
    """From tensors like `inputs`, in the model's order, to a list of its outputs."""
    graph = read_nodes(path)
    recorder = Recorder()
    values: dict[str, Any] = {n: torch.from_numpy(np.array(v)) for n, v in graph.constants.items()}
    for number, (name, value) in enumerate(zip(graph.inputs, inputs, strict=True)):
        values[name] = recorder.add_input(f"in{number}", value)
    for node in graph.nodes:
        values.update(_evaluate(node, values))
    # Other engines have moved the elements when they are done. PyTorch answers a transpose with a view, and elementwise
    # operators keep the order of one: that is settled here, where Inductor can fuse the copy.
    outputs = [values[name] for name in graph.outputs]
    return recorder.finish([v if is_known(v) else v.contiguous() for v in outputs])


def _evaluate(node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    operator = OPERATORS.get(node.operator)
    if operator is None:
        raise LookupError(f"the operator {node.operator} has no translation to PyTorch")
    found: Any = operator(*(values[name] if name else None for name in node.inputs), **node.attributes)
    results: list[Any] = list(found if isinstance(found, tuple) else (found,))  # pyright: ignore[reportUnknownArgumentType]
    if len(results) < len(node.outputs):
        raise LookupError(f"the output {node.outputs[len(results)]} of {node.operator} has no translation")
    return dict(zip(node.outputs, results, strict=False))
