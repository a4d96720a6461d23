"""Networks of as many equal layers as asked for: what compiling them takes should grow as their number does."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

Layer = tuple[
    list[onnx.NodeProto], np.ndarray, str
]  # the nodes, the weight they read, and the value they make


def residual(n: int, x: str) -> Layer:
    """A convolution, and what it is added to."""
    conv = helper.make_node("Conv", [x, f"w{n}"], [f"c{n}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    relu = helper.make_node("Relu", [f"c{n}"], [f"r{n}"])
    add = helper.make_node("Add", [f"r{n}", x], [f"y{n}"])
    return [conv, relu, add], _weight(16, 16, 3, 3), f"y{n}"


def dense(n: int, x: str) -> Layer:
    product = helper.make_node("MatMul", [x, f"w{n}"], [f"c{n}"])
    return [product, helper.make_node("Gelu", [f"c{n}"], [f"y{n}"])], _weight(64, 64), f"y{n}"


def concatenating(n: int, x: str) -> Layer:
    """A convolution of the last two results."""
    concat = helper.make_node("Concat", [x, f"c{n - 1}" if n else x], [f"k{n}"], axis=1)
    conv = helper.make_node("Conv", [f"k{n}", f"w{n}"], [f"c{n}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return [concat, conv, helper.make_node("Relu", [f"c{n}"], [f"y{n}"])], _weight(4, 8, 3, 3), f"y{n}"


def elementwise(n: int, x: str) -> Layer:
    add = helper.make_node("Add", [x, f"w{n}"], [f"c{n}"])
    return [add, helper.make_node("Tanh", [f"c{n}"], [f"y{n}"])], _weight(64), f"y{n}"


KINDS: dict[str, tuple[Callable[[int, str], Layer], tuple[int, ...]]] = {
    "convolutions with residuals": (residual, (1, 16, 16, 16)),
    "MatMuls": (dense, (16, 64)),
    "concatenations and convolutions": (concatenating, (1, 4, 8, 8)),
    "elementwise": (elementwise, (16, 64)),
}


def chain(kind: str, layers: int) -> onnx.ModelProto:
    make, shape = KINDS[kind]
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    value = "x"
    for n in range(layers):
        added, weight, value = make(n, value)
        nodes += added
        weights.append(numpy_helper.from_array(weight, f"w{n}"))
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "chain", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _weight(*shape: int) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return values.astype(np.float32)
