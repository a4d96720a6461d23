"""Networks in halves, made of those in float32: all of a network, or its weights alone."""

from collections.abc import Iterator

import ml_dtypes
import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

OPSET = 23  # the first in which all of these operators have bfloat16
_TYPES = {
    "f16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "bf16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
}
_PRODUCTS = ("MatMul", "Gemm", "Conv")


def in_halves(model: ModelProto, half: str) -> ModelProto:
    """All floats of the model in this type, its inputs and outputs as well."""
    made, (element, dtype) = _copy(model), _TYPES[half]
    graph = made.graph
    for tensor in _tensors(graph):
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = element
    for node in graph.node:
        for a in node.attribute:
            if node.op_type == "Cast" and a.name == "to" and a.i == TensorProto.FLOAT:
                a.i = element
    return made


def with_half_weights(model: ModelProto, half: str) -> ModelProto:
    """Weights of products in this type, and all else in float32: they are cast where they are read."""
    made, (_, dtype) = _copy(model), _TYPES[half]
    graph = made.graph
    weights = {n.input[1] for n in graph.node if n.op_type in _PRODUCTS}
    casts: list[object] = []
    for tensor in graph.initializer:
        if tensor.name in weights and tensor.data_type == TensorProto.FLOAT:
            name, array = tensor.name, numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(numpy_helper.from_array(array, f"{name}.half"))
            casts.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)  # pyright: ignore[reportArgumentType]
    return made


def with_rows(model: ModelProto, before: int, rows: int) -> ModelProto:
    """Of a model that is made for `before` tokens, the one for fewer: whatever has this size has the other one."""
    made = _copy(model)
    graph = made.graph
    for tensor in _tensors(graph):
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.int64 and (array == before).any():
            array = np.where(array == before, rows, array)
        cut = tuple(slice(rows) if n == before else slice(None) for n in array.shape)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array[cut]), tensor.name))
    for value in (*graph.input, *graph.output):
        for d in value.type.tensor_type.shape.dim:
            d.dim_value = rows if d.dim_value == before else d.dim_value
    return made


def _copy(model: ModelProto) -> ModelProto:
    made = ModelProto.FromString(model.SerializeToString())
    del made.graph.value_info[:]
    for used in made.opset_import:
        if not used.domain:
            used.version = max(used.version, OPSET)
    return made


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for a in node.attribute:
            if node.op_type == "Constant" and a.name == "value":
                yield a.t
