"""The NPU in Tilewright: what it takes and why not, calibration, accuracy, and what a run reports."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tilewright as tw
import tilewright_npu
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.external import Region
from tilewright.graph.passes.partition import offer
from tilewright.plugins.registry import register_plugin, unregister_plugin
from tilewright_npu.__main__ import main
from tilewright_npu.calibration import Affine, Calibrated
from tilewright_npu.constants import fixed_point
from tilewright_npu.driver import Loaded
from tilewright_npu.machine import NPU
from tilewright_npu.plugin import Npu

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Whatever other tests have drawn: the errors of small networks depend on their weights."""
    RNG.bit_generator.state = np.random.default_rng(3).bit_generator.state


Feeds: TypeAlias = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels are compiled once for all tests."""
    return tmp_path_factory.mktemp("npu")


@pytest.fixture(autouse=True)
def _own_world(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[None]:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(home / "cache"))
    monkeypatch.setenv("TILEWRIGHT_DB", str(home / "tuning.db"))
    tilewright_npu.forget_reports()
    register_plugin(Npu())
    yield
    unregister_plugin("npu")


def model(
    nodes: list[NodeProto], x: tuple[int, ...], y: tuple[int, ...], **weights: tuple[int, ...]
) -> ModelProto:
    made = [
        numpy_helper.from_array(
            (RNG.standard_normal(s) / np.sqrt(max(1, np.prod(s[1:])))).astype(np.float32), n
        )
        for n, s in weights.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        made,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def network() -> ModelProto:
    """A residual network in miniature; the max pool and the mean are not for the NPU."""
    node, pad = helper.make_node, [1, 1, 1, 1]
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[3, 3, 3, 3], strides=[2, 2]),
        node("Relu", ["c0"], ["r0"]),
        node("MaxPool", ["r0"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "w1", "b1"], ["c1"], pads=pad),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], pads=pad),
        node("Add", ["c2", "p"], ["a2"]),
        node("Relu", ["a2"], ["r2"]),
        node("Conv", ["r2", "w3", "b3"], ["c3"], pads=pad, strides=[2, 2]),
        node("Relu", ["c3"], ["r3"]),
        node("Conv", ["r3", "w4", "b4"], ["c4"], pads=pad),
        node("Conv", ["r2", "w5", "b5"], ["c5"], strides=[2, 2]),
        node("Add", ["c4", "c5"], ["a5"]),
        node("Relu", ["a5"], ["r5"]),
        node("GlobalAveragePool", ["r5"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w6", "b6"], ["y"], transB=1),
    ]
    return model(
        *(nodes, (2, 3, 32, 32), (2, 10)),
        **{"w0": (16, 3, 7, 7), "w1": (16, 16, 3, 3), "w2": (16, 16, 3, 3), "w3": (24, 16, 3, 3)},
        **{"w4": (24, 24, 3, 3), "w5": (24, 16, 1, 1), "w6": (10, 24)},
        **{f"b{n}": (s,) for n, s in enumerate((16, 16, 16, 24, 24, 24, 10))},
    )


def perceptron(rank: int = 3) -> ModelProto:
    """MatMuls with a bias, as transformers have them; the activation between is not for the NPU."""
    lead = {2: (6,), 3: (2, 6), 4: (2, 3, 5)}[rank]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["n"]),
        helper.make_node("Add", ["c", "n"], ["z"]),
        helper.make_node("Erf", ["z"], ["y"]),
    ]
    return model(nodes, (*lead, 20), (*lead, 7), w=(20, 33), b=(33,), v=(33, 7), c=(7,))


def feeds(m: ModelProto, count: int, seed: int = 0) -> list[Feeds]:
    rng = np.random.default_rng(seed)
    shape = [d.dim_value for d in m.graph.input[0].type.tensor_type.shape.dim]
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def error(m: ModelProto, session: Any) -> float:
    """Of the outputs, relative, on data that it was not calibrated with."""
    native = tw.load(m)
    want = np.concatenate([native.run(f)["y"] for f in feeds(m, 4, 9)])
    got = np.concatenate([session.run(f)["y"] for f in feeds(m, 4, 9)])
    return float(np.sqrt(np.square(got - want).mean() / np.square(want).mean()))


def load(m: ModelProto, **options: Any) -> Any:
    given: dict[str, Any] = {"calibration": feeds(m, 8), "strict": True, **options}
    return tw.load(m, plugins=["npu"], placement="greedy", **given)


# ------------------------------------------------------------------------------------------------------ whole models


@pytest.mark.slow
def test_a_residual_network() -> None:
    m = network()
    session = load(m)
    assert error(m, session) < 0.03
    taken = tilewright_npu.reports()
    assert [r.region for r in taken] == ["npu:0", "npu:1", "npu:2"]
    depth = 2 * (16 * 16 * 147 * 16 + 2 * 8 * 8 * 144 * 16 + 4 * 4 * 24 * (144 + 216 + 16))
    assert sum(r.multiplications for r in taken) == depth + 2 * 240
    assert all(0 < r.utilisation <= 1 and r.milliseconds > 0 for r in taken)


@pytest.mark.parametrize(
    "rank", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def test_products_of_any_rank(rank: int) -> None:
    m = perceptron(rank)
    assert error(m, load(m)) < 0.03
    (report,) = tilewright_npu.reports()
    rows = {2: 6, 3: 12, 4: 30}[rank]
    assert report.multiplications == rows * 33 * 27
    assert report.bytes_in >= 4 * rows * 20 + 33 * 27 and report.bytes_out == rows * 33 + 4 * rows * 7


def test_a_compiled_file_runs(tmp_path: Path) -> None:
    m = perceptron()
    made = tw.compile(m, plugins=["npu"], placement="greedy", calibration=feeds(m, 4), strict=True)
    made.save(tmp_path / "m.tw")
    (region,) = made.artifact.regions
    assert region.blob[:4] == b"TNPU" and {"w", "v"} <= {n for n, _ in region.constants}
    assert error(m, tw.load(tmp_path / "m.tw", strict=True)) < 0.03


def test_weights_are_not_in_the_program() -> None:
    m = model([helper.make_node("MatMul", ["x", "w"], ["y"])], (4, 512), (4, 512), w=(512, 512))
    made = tw.compile(m, plugins=["npu"], placement="greedy", calibration=feeds(m, 1), strict=True)
    (region,) = made.artifact.regions
    assert len(region.blob) < 8192 < 512 * 512


def test_gemm_scales_and_channels_of_zeros() -> None:
    m = model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], alpha=-0.5, beta=2.0)],
        (5, 9),
        (5, 6),
        w=(9, 6),
        b=(6,),
    )
    weights = numpy_helper.to_array(m.graph.initializer[0]).copy()
    weights[:, 2], weights[:, 3] = 0, 1e-12
    m.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    assert error(m, load(m)) < 0.02


def test_values_that_are_needed_inside_and_outside() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Conv", ["c", "v"], ["d"]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["d", "s"], ["y"]),
    ]
    m = model(nodes, (1, 4, 6, 6), (1, 4, 6, 6), w=(4, 4, 1, 1), v=(4, 4, 1, 1))
    assert error(m, load(m)) < 0.03


# --------------------------------------------------------------------------------------------------------- refusals


def reasons(m: ModelProto) -> list[str]:
    return [r.reason for r in offer(load_graph(m), Npu()).refusals]


@pytest.mark.parametrize(
    ("attributes", "weights", "size", "why"),
    [
        ({"group": 2}, (4, 2, 3, 3), 7, "groups would leave it idle"),
        ({"dilations": [2, 2]}, (4, 4, 3, 3), 5, "do not lie side by side"),
    ],
)
def test_convolutions_that_it_refuses(
    attributes: dict[str, Any], weights: tuple[int, ...], size: int, why: str
) -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    m = model([conv], (1, 4, 9, 9), (1, 4, size, size), w=weights)
    assert any(why in r for r in reasons(m))


def test_what_else_it_refuses() -> None:
    m = model([helper.make_node("MatMul", ["x", "x"], ["y"])], (4, 4), (4, 4))
    assert reasons(m) == ["the weights are not constant"]
    m = model([helper.make_node("Sigmoid", ["x"], ["y"])], (4, 4), (4, 4))
    assert "neither a convolution nor a MatMul" in reasons(m)[0]
    double = model([helper.make_node("MatMul", ["x", "w"], ["y"])], (4, 4), (4, 4))
    double.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    double.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    double.graph.initializer.append(numpy_helper.from_array(np.eye(4), "w"))
    assert reasons(double) == ["only float32 is quantized to int8"]


def test_a_sum_that_is_no_bias_stays_outside() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "x"], ["y"])]
    found = offer(load_graph(model(nodes, (4, 8), (4, 8), w=(8, 8))), Npu())
    assert [u.name for r in found.regions for u in r.units] == ["MatMul"]
    assert any("loses too much" in r.reason for r in found.refusals)


def test_without_data_it_refuses(caplog: pytest.LogCaptureFixture) -> None:
    m = perceptron()
    with pytest.raises(tw.UserError, match="needs data to calibrate with"):
        load(m, calibration=())
    with caplog.at_level(logging.WARNING, "tilewright"):
        session = load(m, calibration=(), strict=False)
    assert "needs data to calibrate with" in caplog.text
    assert error(m, session) < 1e-5


# ------------------------------------------------------------------------------------------------------------ numbers


def region_of(m: ModelProto) -> Region:
    (region,) = offer(load_graph(m), Npu()).regions
    return region


def test_its_time_is_that_of_the_emulator() -> None:
    m, plugin = perceptron(), Npu()
    region = region_of(m)
    prepared = plugin.prepare(region, feeds(m, 2))
    run = plugin.load(plugin.compile(prepared, prepared.constants), region.constants, 1)
    assert isinstance(run, Loaded)
    outputs = [np.zeros(region.seen(v).shape, np.float32) for v in region.graph.outputs]
    run([np.zeros(region.seen(v).shape, np.float32) for v in region.graph.inputs], outputs)
    assert run.report is not None
    seconds = plugin.seconds(region, 1)
    assert seconds == pytest.approx(run.report.cycles / NPU.hertz, rel=0.01)


def test_a_percentile_clips_what_is_rare() -> None:
    m = model([helper.make_node("MatMul", ["x", "w"], ["y"])], (64, 16), (64, 4), w=(16, 4))
    sample = feeds(m, 1)[0]
    sample["x"][0, 0] = 1e4
    region = region_of(m)
    prepared = [p.prepare(region, [sample]) for p in (Npu(), Npu(99.0))]
    highest = [r.ranges["x"][1] for r in prepared if isinstance(r, Calibrated)]
    assert highest[0] == 1e4 and highest[1] < 10


def test_zero_is_exact() -> None:
    for low, high in ((-1.0, 1.0), (0.0, 6.0), (-3.0, 0.0), (2.0, 5.0), (0.0, 0.0)):
        a = Affine.of(low, high)
        assert -128 <= a.zero <= 127 and a.scale > 0
        for x in (low, high):
            assert abs(np.clip(round(x / a.scale) + a.zero, -128, 127) - a.zero - x / a.scale) <= 1


def test_fixed_point_is_close() -> None:
    real = np.exp(np.linspace(-30, 12, 200))
    multiplier, shift = fixed_point(real)
    assert np.allclose(multiplier / 2.0**shift, real, rtol=1e-9)
    assert [a.tolist() for a in fixed_point(np.array([1e-30]))] == [[0], [62]]


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(perceptron().SerializeToString())
    main([str(path), "--calibrate", "2", "--runs", "2"])
    text = capsys.readouterr().out
    assert "1 regions on the NPU" in text and "relative error 0.0" in text and "npu:0" in text
    np.savez(tmp_path / "in.npz", in0=feeds(perceptron(), 1)[0]["x"])
    main([str(path), "--calibrate", str(tmp_path / "in.npz"), "--runs", "1", "--json"])
    assert '"top1_agreement"' in capsys.readouterr().out
