"""ONNX Runtime as a plugin."""

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tests.toy_plugin import compile_here
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.external import No
from tilewright.graph.passes.partition import offer
from tilewright.plugins.registry import find_plugin

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    compile_here(monkeypatch)


def model(opset: int = 18) -> ModelProto:
    """An image through a convolution, an attention-like composite, and a reshape whose shape is a constant."""
    w = RNG.standard_normal((16, 3, 3, 3)).astype(np.float32)
    v = RNG.standard_normal((16 * 6 * 6, 10)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("QuickGelu", ["c"], ["g"], domain="com.microsoft"),
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
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_it_is_installed_with_us() -> None:
    assert find_plugin("onnxruntime").name == "onnxruntime"


def test_it_takes_a_whole_model_and_gives_what_we_do() -> None:
    m = model()
    x = {"x": RNG.standard_normal((2, 3, 12, 12)).astype(np.float32)}
    made = tw.compile(m, plugins=("onnxruntime",), placement="greedy", strict=True)
    (region,) = made.artifact.regions
    assert {"w", "v"} <= dict(region.constants).keys()
    assert len(region.blob) < 3000  # the weights are not in it
    for threads in (1, 2):
        got, want = made.session(threads, strict=True).run(x)["y"], tw.load(m, threads=1).run(x)["y"]
        assert np.allclose(got, want, rtol=0, atol=2e-6)


def test_it_says_what_it_has_no_kernel_for() -> None:
    graph = load_graph(model())
    plugin = find_plugin("onnxruntime")
    (region,) = offer(graph, plugin).regions
    assert [u.name for u in region.units] == [
        "Conv",
        "com.microsoft.QuickGelu",
        "Reshape",
        "MatMul",
        "Softmax",
    ]
    unit = region.units[0]
    assert unit.origin is not None
    unit.origin.node.op_type = "Convolute"
    answer = plugin.supports(unit)
    assert isinstance(answer, No) and "no CPU kernel" in answer.reason


def custom_op(op_type: str, **attributes: int) -> ModelProto:
    """An operator of ONNX Runtime's own that native code does not know, before some that it does."""
    w = RNG.standard_normal((8, 6)).astype(np.float32)
    nodes = [
        helper.make_node(op_type, ["x"], ["t"], domain="com.microsoft", **attributes),
        helper.make_node("Cast", ["t"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "scale"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array(2.0**-31, np.float32), "scale")],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("placement", ["greedy", "measured"])
def test_a_model_runs_with_an_operator_that_only_it_knows(placement: str) -> None:
    m = custom_op("MurmurHash3", positive=0)
    x = {"x": RNG.standard_normal((4, 8)).astype(np.float32)}
    with pytest.raises(tw.UserError, match="1 nodes of the model are not supported"):
        tw.load(m)
    session = tw.load(m, threads=1, plugins=("onnxruntime",), placement=placement, strict=True)
    engine = pytest.importorskip("onnxruntime").InferenceSession(
        m.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert np.allclose(session.run(x)["y"], engine.run(None, x)[0], rtol=0, atol=1e-6)
