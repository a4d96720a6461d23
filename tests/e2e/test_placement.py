"""Who gets what: by estimates, without tearing a model apart, and at no cost where a plugin takes nothing."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.toy_plugin import Numpy, Refusing, compile_here
from tilewright.cli.main import main
from tilewright.graph.external import YES, Answer, No, Region, Unit
from tilewright.graph.graph import Node
from tilewright.graph.passes.prune import MOST
from tilewright.placement.options import PluginOptions
from tilewright.plugins.registry import register_plugin, unregister_plugin
from tilewright.stages import Stages, stages
from tilewright.support.errors import UserError
from tilewright.support.policy import Policy

RNG = np.random.default_rng(7)
POLICIES = [p.value for p in Policy]


class Hinting(Numpy):
    """Takes some operators, and says how long it takes for each node."""

    name = "hinting"

    def __init__(self, each: Callable[[Node], float | None], *names: str) -> None:
        self.each, self.names = each, names

    def supports(self, unit: Unit) -> Answer:
        return YES if unit.name in self.names else No("not for me")

    def seconds(self, region: Region, threads: int) -> float | None:
        stated = [self.each(n) for n in region.graph.nodes]
        return None if None in stated else sum(t for t in stated if t is not None)


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "tuning.db"))
    compile_here(monkeypatch)
    register_plugin(Numpy())
    yield
    for name in ("numpy", "hinting", "refusing"):
        unregister_plugin(name)


def chain(nodes: list[tuple[str, tuple[int, ...] | None]], shape: tuple[int, ...]) -> onnx.ModelProto:
    """Operators one after the other; those with a shape have weights of that shape."""
    made: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    value = "x"
    for i, (kind, weight) in enumerate(nodes):
        inputs = [value]
        if weight is not None:
            array = (RNG.standard_normal(weight) / np.sqrt(np.prod(weight[1:]))).astype(np.float32)
            weights.append(numpy_helper.from_array(array, f"w{i}"))
            inputs.append(f"w{i}")
        value = "y" if i == len(nodes) - 1 else f"v{i}"
        pads = {"pads": [1, 1, 1, 1]} if kind == "Conv" and weight is not None and weight[-1] == 3 else {}
        groups = {"group": weight[0]} if kind == "Conv" and weight is not None and weight[1] == 1 else {}
        made.append(helper.make_node(kind, inputs, [value], name=f"n{i}", **pads, **groups))
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def dense(*widths: int) -> onnx.ModelProto:
    return chain([("MatMul", pair) for pair in pairwise(widths)], (128, widths[0]))


def mobile(blocks: int, channels: int, pixels: int) -> onnx.ModelProto:
    """Depthwise and pointwise convolutions in turns, each with its activation: every second node is one of them."""
    nodes: list[tuple[str, tuple[int, ...] | None]] = []
    for _ in range(blocks):
        nodes += [
            ("Conv", (channels, 1, 3, 3)),
            ("Relu", None),
            ("Conv", (channels, channels, 1, 1)),
            ("Relu", None),
        ]
    return chain(nodes, (1, channels, pixels, pixels))


def looked_at(model: onnx.ModelProto, *plugins: str, policy: str = "model", strict: bool = True) -> Stages:
    return stages(model, plugin_options=PluginOptions.of(plugins, policy, strict, 1))


def units_of(found: Stages) -> list[str]:
    return [n.name for p in found.placement.regions for n in p.region.graph.nodes]


# ------------------------------------------------------------------------------------------------------ by estimates


@pytest.mark.parametrize(("stated", "regions"), [(1e-6, 1), (1.0, 0)])
def test_a_plugin_gets_what_it_says_it_is_quicker_with(stated: float, regions: int) -> None:
    register_plugin(Hinting(lambda n: stated, "MatMul"))
    model = dense(256, 512, 256)
    found = looked_at(model, "hinting")
    assert len(found.placement.regions) == regions
    reasons = {v.reason for v in found.placement.verdicts}
    assert reasons == ({""} if regions else {"by estimate, others are quicker with it, or no slower"})
    x = {"x": RNG.standard_normal((128, 256)).astype(np.float32)}
    want = tw.load(model, threads=1).run(x)["y"]
    got = tw.load(model, threads=1, plugins=("hinting",), placement="model", strict=True).run(x)["y"]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_each_gets_what_it_is_quicker_with() -> None:
    """The plugin says that it is quick with wide MatMuls, and slow with narrow ones."""
    register_plugin(Hinting(lambda n: 1e-6 if n.inputs[1].size >= 512 * 512 else 1.0, "MatMul"))
    found = looked_at(dense(512, 512, 512, 256, 256, 256), "hinting")
    assert units_of(found) == ["n0", "n1"]


def test_a_plugin_that_does_not_say_gets_nothing_and_the_reason_is_shown(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(dense(256, 512, 256).SerializeToString())
    arguments = ["inspect", str(tmp_path / "m.onnx"), "--placement", "--plugin", "numpy", "--policy", "model"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "does not say how long it takes" in " ".join(result.output.split())
    assert "0 nodes are run by plugins" in result.output


def test_what_was_measured_before_is_believed() -> None:
    """A plugin that says nothing but was measured; it does nothing, which is hard to beat."""

    class Idle(Numpy):
        name = "idle"

        def load(self, blob: bytes, constants: object, threads: int) -> Callable[[object, object], None]:
            return lambda inputs, outputs: None

    model = dense(512, 512, 512)
    register_plugin(Idle())
    try:
        assert not looked_at(model, "idle").placement.regions
        assert looked_at(model, "idle", policy="measured").placement.regions
        assert looked_at(model, "idle").placement.regions
    finally:
        unregister_plugin("idle")


# --------------------------------------------------------------------------------------------------- fragmentation


def check_few(found: Stages, least: int = 0) -> None:
    placement = found.placement
    assert least <= len(placement.regions) <= MOST
    lost = [v for v in placement.verdicts if v.unit.name in ("Conv", "MatMul") and not v.region]
    assert lost and all(v.reason for v in lost)


# Each policy with each size and with each plugin; the other halves in long runs.
TAKERS = [
    pytest.param(
        policy, *size, stated, id=f"{hint}-{name}-{policy}", marks=() if always else pytest.mark.slow
    )
    for policy, is_greedy in (("greedy", True), ("model", False))
    for name, size in (("small", (8, 6)), ("large", (96, 28)))
    for hint, stated in (("silent", None), ("hinting", 1e-4))
    for always in [((name == "small") is (hint == "silent")) is is_greedy]
]


@pytest.mark.parametrize(("policy", "channels", "pixels", "stated"), TAKERS)
def test_a_plugin_that_takes_every_second_node_gets_few_regions_or_none(
    policy: str, channels: int, pixels: int, stated: float | None
) -> None:
    register_plugin(Hinting(lambda n: stated, "Conv"))
    check_few(looked_at(mobile(12, channels, pixels), "hinting", policy=policy))


def test_greedy_keeps_what_has_more_work_than_its_border_costs() -> None:
    register_plugin(Hinting(lambda n: None, "Conv"))
    found = looked_at(mobile(6, 192, 28), "hinting", policy="greedy")
    check_few(found, least=6)
    kernels = [p.region.graph.nodes[0].inputs[1].shape[2:] for p in found.placement.regions]
    assert kernels == [(1, 1)] * 6


def test_measured_placement_does_not_tear_a_model_apart_either() -> None:
    nodes: list[tuple[str, tuple[int, ...] | None]] = [("MatMul", (32, 32)), ("Sigmoid", None)] * 12
    check_few(looked_at(chain(nodes, (8, 32)), "numpy", policy="measured"))


# ----------------------------------------------------------------------------------------------------------- nothing


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plugin_that_takes_nothing_leaves_no_trace(policy: str) -> None:
    """The program is the same to the last byte of its code."""
    register_plugin(Hinting(lambda n: 0.0, "Nonesuch"))
    model = mobile(2, 16, 8)
    plain = tw.compile(model).artifact
    made = tw.compile(model, plugins=("hinting",), placement=policy).artifact
    assert made.regions == ()
    assert made.objects == plain.objects and made.driver == plain.driver
    assert made.program == plain.program and made.arena_bytes == plain.arena_bytes
    assert made.manifest == plain.manifest
    for a, b in zip(made.constants, plain.constants, strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_is_timed_for_a_plugin_that_takes_nothing(tmp_path: Path) -> None:
    register_plugin(Hinting(lambda n: 0.0, "Nonesuch"))
    reported: list[tuple[str, int, int]] = []
    tw.compile(
        mobile(2, 16, 8),
        plugins=("hinting",),
        placement="measured",
        progress=lambda what, done, total: reported.append((what, done, total)),
    )
    assert [t for t in reported if t[0] == "plugins"] == [("plugins", 0, 1)]
    assert not (tmp_path / "tuning.db").exists()


# ---------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("policy", POLICIES)
def test_where_plugins_must_not_fail_one_that_does_is_an_error(policy: str) -> None:
    class Broken(Refusing):
        name = "refusing"

        def seconds(self, region: Region, threads: int) -> float | None:
            return 0.0

    register_plugin(Broken())
    model = dense(256, 512, 256)
    with pytest.raises(UserError, match="out of luck"):
        tw.compile(model, plugins=("refusing",), placement=policy, strict=True)
    assert tw.compile(model, plugins=("refusing",), placement=policy).artifact.regions == ()


def test_progress_of_measurements_is_told() -> None:
    reported: list[tuple[str, int, int]] = []
    tw.compile(
        dense(64, 64, 64),
        plugins=("numpy",),
        placement="measured",
        progress=lambda what, done, total: reported.append((what, done, total)),
    )
    steps = [(done, total) for what, done, total in reported if what == "plugins"]
    total = steps[-1][1]
    assert total > 1 and steps[-1] == (total, total)
