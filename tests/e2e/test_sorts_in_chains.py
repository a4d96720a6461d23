"""What sorts is more than a store, and stands between other loops all the same."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw


def test_a_reduction_after_the_largest_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["best", "places"], axis=-1),
        helper.make_node("ReduceMean", ["best", "axes"], ["mean"]),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (6, 40))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (6, 40))],
        [numpy_helper.from_array(np.array([n]), name) for name, n in (("k", 5), ("axes", 1))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    x = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    want = x - np.sort(x, axis=1)[:, -5:].mean(axis=1, keepdims=True)
    np.testing.assert_allclose(tw.load(model, threads=1).run({"x": x})["y"], want, rtol=0, atol=1e-6)
