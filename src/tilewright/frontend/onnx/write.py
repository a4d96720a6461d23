"""Nodes of `ops/spec.py` as ONNX writes them."""

from typing import Any

from onnx import FunctionProto, GraphProto, NodeProto, helper, numpy_helper

from tilewright.ops.compositeop import OPSET
from tilewright.ops.opdef import ONNX_NUMBERS
from tilewright.ops.spec import BodySpec, NodeSpec, OpenType


def make_node(spec: NodeSpec) -> NodeProto:
    domain, _, plain = spec.op_type.rpartition(".")
    attrs = {name: attribute(value) for name, value in spec.attrs.items()}
    return helper.make_node(plain, spec.inputs, spec.outputs, domain=domain, **attrs)


def make_function(body: BodySpec) -> FunctionProto:
    domains = {"", *(n.domain for n in body.nodes)}
    imports = [helper.make_opsetid(d, 1 if d else OPSET) for d in sorted(domains)]
    nodes = [make_node(n) for n in body.nodes]
    return helper.make_function("tilewright", body.name, body.inputs, body.outputs, nodes, imports)


def make_graph(body: BodySpec) -> GraphProto:
    inputs = [(name, body.types[name]) for name in body.inputs]
    return helper.make_graph(
        [make_node(n) for n in body.nodes],
        body.name,
        [helper.make_tensor_value_info(name, ONNX_NUMBERS[t.dtype], t.shape) for name, t in inputs],
        [helper.make_empty_tensor_value_info(name) for name in body.outputs],
    )


def attribute(value: Any) -> Any:
    """An attribute as ONNX's helpers take it."""
    match value:
        case BodySpec():
            return make_graph(value)
        case OpenType(dtype, shape):
            return helper.make_tensor_type_proto(ONNX_NUMBERS[dtype], shape)
        case _:
            return numpy_helper.from_array(value) if hasattr(value, "dtype") else value
