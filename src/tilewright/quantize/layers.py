"""The layers of a model that may have other forms: convolutions and products with constant weights.

Only nodes of the model's own graph are looked at; what is inside of branches, loops and functions stays as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tilewright.quantize.forms import BLOCK, LayerForm
from tilewright.support.arrays import Array


class LayerKind(StrEnum):
    CONV = "Conv"
    MATMUL = "MatMul"
    GEMM = "Gemm"


@dataclass(frozen=True, eq=False)
class Layer:
    """`node` is its place among the nodes of the model, `reads` the tensor that meets the weights, `weights` these as
    the model has them, with their name; `axis` is theirs of outputs. `bias` is what is added to each output, if that is
    known; without `has_offset`, no constant can be added to it.
    """

    name: str
    node: int
    kind: LayerKind
    reads: str
    weight: str
    weights: Array
    axis: int
    bias: Array | None = None
    has_offset: bool = False

    @property
    def outputs(self) -> int:
        return int(self.weights.shape[self.axis])

    @property
    def products(self) -> int:
        """In each sum."""
        return int(self.weights.size // self.outputs)

    @cached_property
    def rows(self) -> Array:
        """The weights, a row for each output."""
        return np.ascontiguousarray(np.moveaxis(self.weights, self.axis, 0).reshape(self.outputs, -1))

    def as_stored(self, rows: Array) -> Array:
        """Such rows in the shape of the weights."""
        others = [n for i, n in enumerate(self.weights.shape) if i != self.axis]
        return np.ascontiguousarray(np.moveaxis(rows.reshape(self.outputs, *others), 0, self.axis))

    def across_outputs(self, row: Array) -> Array:
        """A number for each output, in the shape that meets the layer's results."""
        places = self.weights.ndim - 2 if self.kind is LayerKind.CONV else 0
        return np.ascontiguousarray(row, np.float32).reshape(-1, *(1 for _ in range(places)))

    def can_be(self, form: LayerForm) -> bool:
        if form.has_blocks:
            return self.kind is not LayerKind.CONV and self.products % BLOCK == 0
        return True


@dataclass(frozen=True, slots=True)
class Layers:
    """Those that may have other forms, in the model's order, and why others may not, by the names of their nodes."""

    found: tuple[Layer, ...]
    others: Mapping[str, str]


def find_layers(model: ModelProto) -> Layers:
    stored = {t.name: t for t in model.graph.initializer}
    given = {
        i.name for i in model.graph.input
    }  # an initializer that is an input too may be another at every run
    found: list[Layer] = []
    others: dict[str, str] = {}
    for at, node in enumerate(model.graph.node):
        if node.domain not in ("", "ai.onnx") or node.op_type not in {k.value for k in LayerKind}:
            continue
        name = node.name or node.output[0]
        why = _why_not(node, stored, given)
        if why:
            others[name] = why
            continue
        kind, weights = LayerKind(node.op_type), numpy_helper.to_array(stored[node.input[1]])
        axis = 0 if kind is LayerKind.CONV or _attribute(node, "transB", 0) else 1
        layer = Layer(name, at, kind, node.input[0], node.input[1], weights, axis)
        found.append(_with_bias(layer, node, stored, given))
    return Layers(tuple(found), others)


def _with_bias(layer: Layer, node: NodeProto, stored: Mapping[str, TensorProto], given: set[str]) -> Layer:
    bias = node.input[2] if len(node.input) > 2 else ""
    if layer.kind is LayerKind.MATMUL or (bias and (bias not in stored or bias in given)):
        return layer
    added = numpy_helper.to_array(stored[bias]) if bias else None
    if added is not None and added.size != layer.outputs:
        return layer
    return replace(layer, bias=None if added is None else added.reshape(-1), has_offset=True)


def _why_not(node: NodeProto, stored: Mapping[str, TensorProto], given: set[str]) -> str:
    """Why a node is no layer whose weights may have another form; nothing if they may."""
    if len(node.input) < 2 or node.input[1] not in stored or node.input[1] in given:
        return "it has no constant weights"
    weights = stored[node.input[1]]
    if weights.data_type != TensorProto.FLOAT:
        return f"its weights are no floats of 32 bits, but {_type_name(weights.data_type)}"
    match node.op_type:
        case LayerKind.CONV:
            if _attribute(node, "group", 1) != 1:
                return "its channels are filtered apart: sums are short, and floats hold them"
        case LayerKind.GEMM:
            if _attribute(node, "transA", 0) or any(
                _attribute(node, a, 1.0) != 1.0 for a in ("alpha", "beta")
            ):
                return "its operands are transposed or scaled"
        case _:
            if len(weights.dims) != 2:
                return "its weights are no matrix"
    return "" if all(weights.dims) else "its weights are empty"


def _type_name(number: int) -> str:
    return helper.tensor_dtype_to_string(number).removeprefix("TensorProto.").lower()


def _attribute(node: NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
