"""ONNX Runtime and OpenVINO in programs for ranges of sizes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.plugins import openvino
from tilewright.plugins.registry import find_plugin
from tilewright.support.arrays import Array
from tilewright.support.artifact import ExternalCall

RNG = np.random.default_rng(23)
node = helper.make_node
SIZES = ({"batch": 1, "n": 1}, {"batch": 2, "n": 3}, {"batch": 4, "n": 17}, {"batch": 3, "n": 9})
RANGES = {"batch": (1, 4), "n": (1, 20)}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "tuning.db"))


@pytest.fixture(params=["onnxruntime", "openvino"])
def plugin(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return request.param


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def model(nodes: Sequence[Any], shape: list[Any], **constants: Any) -> ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def attention() -> ModelProto:
    """As exporters write it: the shapes of heads are computed from that of the input."""
    steps = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "from", "to"], ["bn"]),
        node("Concat", ["bn", "split"], ["heads"], axis=0),
        node("Concat", ["bn", "whole"], ["joined"], axis=0),
        *(node("MatMul", ["x", f"w{n}"], [n]) for n in "qkv"),
        *(node("Reshape", [n, "heads"], [f"{n}4"]) for n in "qkv"),
        node("Transpose", ["q4"], ["qt"], perm=[0, 2, 1, 3]),
        node("Transpose", ["k4"], ["kt"], perm=[0, 2, 3, 1]),
        node("Transpose", ["v4"], ["vt"], perm=[0, 2, 1, 3]),
        node("MatMul", ["qt", "kt"], ["z"]),
        node("Softmax", ["z"], ["p"], axis=-1),
        node("MatMul", ["p", "vt"], ["m"]),
        node("Transpose", ["m"], ["mt"], perm=[0, 2, 1, 3]),
        node("Reshape", ["mt", "joined"], ["y"]),
    ]
    numbers = {"from": [0], "to": [2], "split": [4, 8], "whole": [32]}
    weights = {f"w{n}": floats(32, 32) / 6 for n in "qkv"}
    return model(steps, ["batch", "n", 32], **numbers, **weights)


def image() -> ModelProto:
    steps = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["m"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Resize", ["m", "", "scales"], ["u"], mode="nearest"),
        node("Conv", ["u", "v"], ["y"]),
    ]
    scales = np.array([1, 1, 2, 2], np.float32)
    return model(steps, ["batch", 3, "n", 20], w=floats(8, 3, 3, 3), v=floats(4, 8, 1, 1), scales=scales)


def feed(m: ModelProto, at: dict[str, int]) -> dict[str, Array]:
    dims = m.graph.input[0].type.tensor_type.shape.dim
    return {"x": floats(*(d.dim_value or at[d.dim_param] for d in dims))}


def check(m: ModelProto, session: Any) -> None:
    """The same as native code and ONNX Runtime by themselves, size by size, there and back."""
    engine = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    for at in (*SIZES, *reversed(SIZES)):
        given = feed(m, at)
        (want,) = engine.run(None, given)
        got = session.run(given)["y"]
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("build", [attention, image])
def test_a_model_is_one_region_at_all_sizes(plugin: str, build: Any, tmp_path: Path) -> None:
    m = build()
    made = tw.compile(m, dims=RANGES, plugins=[plugin], placement="greedy", strict=True)
    assert [type(step) for step in made.artifact.program] == [ExternalCall]
    check(m, made.session(2, strict=True))
    made.save(tmp_path / "m.tw")
    with tw.load(tmp_path / "m.tw", threads=1, strict=True) as session:
        check(m, session)


def test_native_code_takes_over(
    plugin: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    m = attention()
    made = tw.compile(m, dims=RANGES, plugins=[plugin], placement="greedy", strict=True)
    monkeypatch.setattr(type(find_plugin(plugin)), "version", "another")
    check(m, made.session(1))
    assert "here is another" in caplog.text and "native code runs this region" in caplog.text


def test_openvino_says_what_it_has_not_for_open_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    m = model([node("Relu", ["x"], ["y"])], ["batch", "n"])
    monkeypatch.setattr(openvino, "_lack", lambda _model: "OpenVINO's CPU has no Relu")
    monkeypatch.setattr(openvino, "_asked", lambda _question: "")  # it takes it at any one size
    monkeypatch.setattr("tilewright.plugins.isolation.reference", lambda _plugin: "")  # in this process
    with pytest.raises(tw.UserError, match="OpenVINO's CPU has no Relu"):
        tw.compile(m, dims=RANGES, plugins=["openvino"], placement="greedy", strict=True)


def test_an_operator_that_only_onnxruntime_knows_keeps_sizes_open() -> None:
    steps = [
        node("MurmurHash3", ["x"], ["t"], domain="com.microsoft", positive=0),
        node("Cast", ["t"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "scale"], ["y"]),
    ]
    m = model(steps, ["batch", "n"], scale=np.float32(2.0**-31))
    session = tw.load(m, threads=1, dims=RANGES, plugins=["onnxruntime"], placement="greedy", strict=True)
    check(m, session)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["measured", "model"])
def test_placement_may_be_by_time(plugin: str, placement: str) -> None:
    m = attention()
    check(m, tw.load(m, threads=1, dims=RANGES, plugins=[plugin], placement=placement, strict=True))
