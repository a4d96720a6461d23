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


@pytest.mark.parametrize("op", ["Conv", "MaxPool"])
def test_the_largest_pixels_of_an_image_after_windows(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    inputs = ["x", "w"] if op == "Conv" else ["x"]
    nodes = [
        helper.make_node(op, inputs, ["image"], kernel_shape=[3, 3]),
        helper.make_node("TopK", ["image", "k"], ["y", "places"], axis=-1),
    ]
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 8, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8, 12, 12))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 8, 10, 4))],
        [numpy_helper.from_array(np.array([4]), "k"), numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    x = rng.standard_normal((1, 8, 12, 12)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    image = np.einsum("nchwij,ocij->nohw", windows, w) if op == "Conv" else windows.max(axis=(4, 5))
    want = -np.sort(-image, axis=-1)[..., :4]
    np.testing.assert_allclose(tw.load(model, threads=1).run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)
