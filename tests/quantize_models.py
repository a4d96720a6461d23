"""Small models to quantise, and samples of their inputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Sample = dict[str, np.ndarray[Any, Any]]


def model_of(
    nodes: Sequence[NodeProto], weights: dict[str, Any], shape: Sequence[Any], opset: int = 17
) -> ModelProto:
    """From `x` to `y`."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", None)))
    stored = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "small", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def convolutions(opset: int = 17) -> ModelProto:
    """Two convolutions, one that filters channels apart, a Gemm with a bias, a MatMul without."""
    random = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"], name="relu"),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], name="apart", group=32, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c1", "w2"], ["c2"], name="second", strides=[2, 2]),
        helper.make_node("Relu", ["c2"], ["r2"], name="relu2"),
        helper.make_node("Flatten", ["r2"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["g"], name="gemm", transB=1),
        helper.make_node("MatMul", ["g", "w4"], ["y"], name="matmul"),
    ]
    stored = {
        "w0": weights(32, 16, 3, 3),
        "b0": weights(32, 1).ravel(),
        "w1": weights(32, 1, 3, 3),
        "w2": weights(64, 32, 1, 1),
        "w3": weights(64, 64 * 16),
        "b3": weights(64, 1).ravel(),
        "w4": weights(64, 32),
    }
    return model_of(nodes, stored, [1, 16, 8, 8], opset)


def products(rows: Any = 8) -> ModelProto:
    """A product, an addition, and a product that is added to what the first one read."""
    random = np.random.default_rng(1)
    first, second = ((random.standard_normal(s) / 8).astype(np.float32) for s in ((64, 128), (128, 64)))
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["m"], name="up"),
        helper.make_node("Add", ["m", "b"], ["a"], name="bias"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w1"], ["n"], name="down"),
        helper.make_node("Add", ["n", "x"], ["y"], name="residual"),
    ]
    bias = random.standard_normal(128).astype(np.float32)
    return model_of(nodes, {"w0": first, "w1": second, "b": bias}, [rows, 64])


def samples_of(model: ModelProto, count: int, seed: int = 7) -> list[Sample]:
    """Normal noise, a little off zero; open dimensions are 8."""
    random = np.random.default_rng(seed)
    shape = [d.dim_value or 8 for d in model.graph.input[0].type.tensor_type.shape.dim]
    return [{"x": (random.standard_normal(shape) + 0.25).astype(np.float32)} for _ in range(count)]
