"""OpenVINO as a plugin."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tilewright as tw
from examples.models import resnet18, transformer_encoder
from tests.toy_plugin import compile_here
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.external import No
from tilewright.graph.passes.partition import Offer, offer
from tilewright.plugins import openvino
from tilewright.plugins.openvino import OpenVino
from tilewright.plugins.registry import find_plugin, register_plugin, unregister_plugin

RNG = np.random.default_rng(17)
F32, F64, I64, F16 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.FLOAT16
Arrays = dict[str, NDArray[Any]]


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[OpenVino]:
    pytest.importorskip("openvino")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "tuning.db"))
    compile_here(monkeypatch)
    made = OpenVino()
    register_plugin(made)
    yield made
    unregister_plugin("openvino")


def make(
    nodes: list[NodeProto],
    inputs: dict[str, tuple[int, tuple[int, ...]]],
    output: tuple[int, tuple[int, ...]],
    weights: Arrays | None = None,
    opset: int = 18,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info("y", *output)],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def image() -> ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["g"]),
        helper.make_node("Reshape", ["g", "shape"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    weights: Arrays = {
        "w": RNG.standard_normal((16, 3, 3, 3)).astype(np.float32),
        "v": (0.02 * RNG.standard_normal((16 * 6 * 6, 10))).astype(np.float32),
        "shape": np.array([2, -1]),
    }
    return make(nodes, {"x": (F32, (2, 3, 12, 12))}, (F32, (2, 10)), weights)


def feed(m: ModelProto) -> Arrays:
    (x,) = m.graph.input
    return {
        x.name: RNG.standard_normal([d.dim_value for d in x.type.tensor_type.shape.dim]).astype(np.float32)
    }


def check(m: ModelProto, *, placement: str = "greedy", threads: int = 1) -> tw.CompiledModel:
    """With the plugin the model computes what it does without."""
    x = feed(m)
    made = tw.compile(m, plugins=("openvino",), placement=placement, strict=True)
    got, want = made.session(threads, strict=True).run(x), tw.load(m, threads=1).run(x)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=0, atol=2e-5 * np.abs(value).max())
    return made


# ---------------------------------------------------------------------------------------------------- what it runs


@pytest.mark.parametrize("threads", [1, 2])
def test_it_takes_a_whole_model_and_gives_what_we_do(plugin: OpenVino, threads: int) -> None:
    (region,) = check(image(), threads=threads).artifact.regions
    assert len(region.blob) < 3000  # the weights are not in it
    assert {"w", "v"} <= dict(region.constants).keys()


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: resnet18(size=32, classes=10), marks=pytest.mark.slow),
        lambda: transformer_encoder(layers=1, hidden=32, heads=2, tokens=16),
    ],
)
def test_networks_are_one_region(plugin: OpenVino, build: Any) -> None:
    made = check(build())
    assert len(made.artifact.regions) == 1 and not made.artifact.objects


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_weights_that_openvino_turns_around_are_shared_too(plugin: OpenVino, op_type: str) -> None:
    gates = {"LSTM": 4, "GRU": 3}[op_type]
    weights: Arrays = {
        n: (0.2 * RNG.standard_normal((1, *s))).astype(np.float32)
        for n, s in {"w": (gates * 24, 16), "r": (gates * 24, 24), "b": (2 * gates * 24,)}.items()
    }
    node = helper.make_node(op_type, ["x", "w", "r", "b"], ["y"], hidden_size=24)
    check(make([node], {"x": (F32, (5, 2, 16))}, (F32, (5, 1, 2, 24)), weights))


@pytest.mark.slow
def test_placement_may_be_measured(plugin: OpenVino) -> None:
    check(image(), placement="measured")


def test_positions_are_64_bits_wide(plugin: OpenVino) -> None:
    table: Arrays = {"t": RNG.standard_normal((50, 16)).astype(np.float32)}
    m = make([helper.make_node("Gather", ["t", "x"], ["y"])], {"x": (I64, (7,))}, (F32, (7, 16)), table)
    session = tw.load(m, threads=1, plugins=("openvino",), placement="greedy", strict=True)
    places = np.array([0, 49, 3, -1, 7, 7, 20])
    assert np.array_equal(session.run({"x": places})["y"], table["t"][places])
    assert len(tw.compile(m, plugins=("openvino",), placement="greedy").artifact.regions) == 1


def test_sessions_are_used_by_several_threads(plugin: OpenVino) -> None:
    m = image()
    session = tw.load(m, threads=1, plugins=("openvino",), placement="greedy", strict=True)
    feeds = [feed(m) for _ in range(4)]
    wanted = [session.run(x)["y"] for x in feeds]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not np.array_equal(session.run(feeds[i])["y"], wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_a_program_is_kept_in_a_file(plugin: OpenVino, tmp_path: Path) -> None:
    m = image()
    made = check(m)
    made.save(tmp_path / "m.tw")
    x = feed(m)
    with tw.load(tmp_path / "m.tw", threads=1, strict=True) as session:
        assert np.array_equal(session.run(x)["y"], made.session(1).run(x)["y"])


# ------------------------------------------------------------------------------------------------- what it refuses


def asked(m: ModelProto) -> Offer:
    return offer(load_graph(m), OpenVino())


def test_it_says_what_it_does_not_have(plugin: OpenVino) -> None:
    """A region on each side of what it does not know: it samples images, and no volumes."""
    nodes = [
        helper.make_node("Exp", ["x"], ["h"]),
        helper.make_node("GridSample", ["h", "grid"], ["s"], mode="linear"),
        helper.make_node("Tanh", ["s"], ["y"]),
    ]
    grid: Arrays = {"grid": RNG.uniform(-1, 1, (1, 2, 3, 4, 3)).astype(np.float32)}
    m = make(nodes, {"x": (F32, (1, 2, 4, 4, 4))}, (F32, (1, 2, 2, 3, 4)), grid, opset=20)
    found = asked(m)
    (refused,) = found.refusals
    assert refused.unit.name == "GridSample"
    assert refused.reason.startswith("OpenVINO does not read it: GridSample is only supported for 4D")
    assert [[u.name for u in r.units] for r in found.regions] == [["Exp"], ["Tanh"]]
    assert len(check(m).artifact.regions) == 2


def test_it_does_not_get_what_it_would_compute_with_less(plugin: OpenVino) -> None:
    for kind in (F64, I64):
        m = make([helper.make_node("Mul", ["x", "x"], ["y"])], {"x": (kind, (8,))}, (kind, (8,)))
        (refused,) = asked(m).refusals
        assert "f64" in refused.reason if kind == F64 else "32 bits" in refused.reason


@pytest.mark.parametrize("antialias", [0, 1])
def test_it_does_not_get_what_it_does_not_heed(plugin: OpenVino, antialias: int) -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear", antialias=antialias)
    half: Arrays = {"scales": np.array([1, 1, 0.5, 0.5], np.float32)}
    found = asked(make([node], {"x": (F32, (1, 2, 8, 8))}, (F32, (1, 2, 4, 4)), half))
    assert [r.reason for r in found.refusals] == ["OpenVINO does not heed antialias"] * antialias


def test_it_does_not_get_what_it_gives_another_shape(plugin: OpenVino) -> None:
    """It has an axis of sequences first, whatever `layout` says."""
    weights: Arrays = {n: np.zeros((1, 12, s), np.float32) for n, s in (("w", 3), ("r", 4))}
    node = helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=4, layout=1)
    found = asked(make([node], {"x": (F32, (2, 5, 3))}, (F32, (2, 5, 1, 4)), weights))
    assert "OpenVINO gives it another shape" in {r.reason for r in found.refusals}


def test_half_precision_is_taken(plugin: OpenVino) -> None:
    m = make([helper.make_node("Mul", ["x", "x"], ["y"])], {"x": (F16, (8,))}, (F16, (8,)))
    assert asked(m).refusals == ()


def test_layers_that_differ_in_names_and_weights_are_one_question(plugin: OpenVino) -> None:
    nodes: list[NodeProto] = []
    weights: Arrays = {}
    for i in range(6):
        weights[f"w{i}"] = RNG.standard_normal((32, 32)).astype(np.float32)
        weights[f"b{i}"] = RNG.standard_normal(32).astype(np.float32)
        nodes.append(
            helper.make_node("MatMul", [f"h{i}" if i else "x", f"w{i}"], [f"m{i}"], name=f"layer {i}")
        )
        nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [f"h{i + 1}" if i < 5 else "y"]))
    openvino._asked.cache_clear()  # pyright: ignore[reportPrivateUsage]
    (region,) = asked(make(nodes, {"x": (F32, (4, 32))}, (F32, (4, 32)), weights)).regions
    assert len(region.units) == 12
    assert openvino._asked.cache_info().misses == 2  # pyright: ignore[reportPrivateUsage]


# ------------------------------------------------------------------------------------------------------ when it fails


def test_native_code_takes_over(
    plugin: OpenVino, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    m = image()
    x = feed(m)
    made = tw.compile(m, plugins=("openvino",), placement="greedy", strict=True)
    want = made.session(1).run(x)["y"]
    monkeypatch.setattr(OpenVino, "version", "another")
    assert np.allclose(made.session(1).run(x)["y"], want, rtol=0, atol=2e-6)
    assert "here is another" in caplog.text
    with pytest.raises(tw.UserError, match="here is another"):
        made.session(1, strict=True)


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        return None

    monkeypatch.setattr("tilewright.plugins.packages.find_spec", missing)
    register_plugin(OpenVino())
    try:
        with pytest.raises(
            tw.UserError, match=r"openvino is not installed: pip install 'tilewright\[openvino\]'"
        ):
            find_plugin("openvino")
    finally:
        unregister_plugin("openvino")
    answer = OpenVino().is_available()
    assert isinstance(answer, No)
