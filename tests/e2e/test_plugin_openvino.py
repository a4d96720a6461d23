"""OpenVINO as a plugin."""

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.frontend.onnx import load_graph
from tilewright.graph.passes.partition import offer
from tilewright.plugins.openvino import OpenVino
from tilewright.plugins.registry import register_plugin, unregister_plugin

pytest.importorskip("openvino")

RNG = np.random.default_rng(17)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


def model() -> ModelProto:
    w = RNG.standard_normal((16, 3, 3, 3)).astype(np.float32)
    v = RNG.standard_normal((16 * 6 * 6, 10)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["g"]),
        helper.make_node("Reshape", ["g", "shape"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, 12, 12))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 10))],
        [
            numpy_helper.from_array(w, "w"),
            numpy_helper.from_array(v, "v"),
            numpy_helper.from_array(np.array([2, -1]), "shape"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_it_takes_a_whole_model_and_gives_what_we_do() -> None:
    m = model()
    register_plugin(OpenVino())
    try:
        made = tw.compile(m, plugins=("openvino",), placement="greedy", strict=True)
        (region,) = made.artifact.regions
        assert len(region.blob) < 3000  # the weights are not in it
        x = {"x": RNG.standard_normal((2, 3, 12, 12)).astype(np.float32)}
        want = tw.load(m, threads=1).run(x)["y"]
        for threads in (1, 2):
            got = made.session(threads, strict=True).run(x)["y"]
            assert np.allclose(got, want, rtol=0, atol=2e-6)
    finally:
        unregister_plugin("openvino")


def test_it_says_what_it_does_not_take() -> None:
    """Determinants are unknown to it."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 4))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 4))
    nodes = [helper.make_node("Mish", ["x"], ["h"]), helper.make_node("Det", ["h2"], ["d"])]
    nodes.insert(1, helper.make_node("Exp", ["h"], ["h2"]))
    nodes.append(helper.make_node("Mul", ["h2", "d"], ["y"]))
    m = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)]
    )
    found = offer(load_graph(m), OpenVino())
    assert any(r.unit.name == "Det" and "OpenVINO" in r.reason for r in found.refusals)
