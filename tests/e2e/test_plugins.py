"""Parts of a model that plugins run, from the model to the result."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.toy_plugin import ChannelsLast, Crashing, Failing, Numpy, Refusing, Unloadable, registered
from tilewright.graph.external import RunRegion
from tilewright.plugins.registry import find_plugin, plugin_names, register_plugin, unregister_plugin
from tilewright.runtime import file
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

RNG = np.random.default_rng(3)
PLUGINS = (Numpy, ChannelsLast, Crashing, Failing, Refusing, Unloadable)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    with registered(PLUGINS, monkeypatch, tmp_path):
        yield


def model(nodes: list[onnx.NodeProto], shape: tuple[int, ...], **weights: tuple[int, ...]) -> onnx.ModelProto:
    arrays = {n: RNG.standard_normal(s).astype(np.float32) for n, s in weights.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def perceptron() -> onnx.ModelProto:
    """A MatMul and an activation for the plugin, a softmax for us, and a MatMul for the plugin again."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("Softmax", ["r"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    return model(nodes, (4, 8), w=(8, 16), b=(16,), v=(16, 3))


def image() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m", "v"], ["y"]),
    ]
    return model(nodes, (1, 3, 10, 12), w=(16, 3, 3, 3), v=(8, 16, 1, 1))


def feed(m: onnx.ModelProto) -> dict[str, Array]:
    dims = m.graph.input[0].type.tensor_type.shape.dim
    return {"x": RNG.standard_normal([d.dim_value for d in dims]).astype(np.float32)}


def check_close(got: Array, want: Array) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.abs(want).max())


def check(m: onnx.ModelProto, *plugins: str, strict: bool = True) -> tw.CompiledModel:
    """With plugins the model computes what it does without."""
    x = feed(m)
    want = tw.load(m, threads=1, accuracy="exact").run(x)["y"]
    made = tw.compile(m, accuracy="exact", plugins=plugins, placement="greedy", strict=strict)
    got = made.session(1, strict=strict).run(x)["y"]
    check_close(got, want)
    return made


def test_regions_of_a_plugin_run_between_native_code() -> None:
    made = check(perceptron(), "numpy")
    assert [r.key for r in made.artifact.regions] == ["numpy:0", "numpy:1"]
    assert [n for r in made.artifact.regions for n, _ in r.constants] == ["w", "b", "v"]


def test_a_plugin_that_wants_channels_last_gets_them() -> None:
    made = check(image(), "last")
    assert [r.last for r in made.artifact.regions] == [True, True]


def test_a_whole_model_may_be_one_region() -> None:
    m = model([helper.make_node("MatMul", ["x", "w"], ["y"])], (4, 8), w=(8, 16))
    assert len(check(m, "numpy").artifact.regions) == 1


def test_constants_are_kept_by_name_and_not_in_the_code() -> None:
    m = model([helper.make_node("MatMul", ["x", "w"], ["y"])], (4, 200), w=(200, 300))
    (region,) = check(m, "numpy").artifact.regions
    assert len(region.blob) < 1000


def test_a_compiled_file_has_its_regions(tmp_path: Path) -> None:
    m = perceptron()
    made = check(m, "numpy")
    made.save(tmp_path / "m.tw")
    assert file.load_artifact(tmp_path / "m.tw").regions == made.artifact.regions
    x = feed(m)
    with tw.load(tmp_path / "m.tw", threads=1) as session:
        check_close(session.run(x)["y"], made.session(1).run(x)["y"])


def test_a_program_with_plugins_is_cached_apart(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(perceptron().SerializeToString())
    for plugins, programs in (((), 1), (("numpy",), 2), ((), 2), (("numpy",), 2), (("failing", "numpy"), 3)):
        tw.load(tmp_path / "m.onnx", threads=1, plugins=plugins, placement="greedy").close()
        assert len(list((tmp_path / "cache").glob("*.tw"))) == programs


def test_the_first_named_plugin_goes_first() -> None:
    made = check(image(), "numpy", "last")
    assert {r.plugin for r in made.artifact.regions} == {"numpy", "last"}


# ----------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(("name", "why"), [("crashing", "SIGABRT"), ("refusing", "out of luck")])
def test_a_compiler_that_fails_loses_the_region(
    name: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tilewright"):
        made = check(perceptron(), name, strict=False)
    assert made.artifact.regions == ()
    assert why in caplog.text
    with pytest.raises(UserError, match=why):
        tw.compile(perceptron(), plugins=(name,), placement="greedy", strict=True)


@pytest.mark.parametrize(("name", "why"), [("failing", "on fire"), ("unloadable", "no driver")])
def test_a_region_that_fails_is_native_from_then_on(
    name: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    m = perceptron()
    x = feed(m)
    want = tw.load(m, threads=1).run(x)["y"]
    with caplog.at_level(logging.WARNING, "tilewright"):
        session = tw.load(m, threads=1, plugins=(name,), placement="greedy")
        for _ in range(3):
            check_close(session.run(x)["y"], want)
    assert caplog.text.count(why) == 2  # once for each of the regions
    with pytest.raises(UserError, match=why):
        tw.load(m, threads=1, plugins=(name,), placement="greedy", strict=True).run(x)


def test_channels_stay_last_when_native_code_takes_over() -> None:
    class Burning(ChannelsLast):
        name = "burning"
        load = Failing.load

    register_plugin(Burning())
    try:
        check(image(), "burning", strict=False)
    finally:
        unregister_plugin("burning")


def test_a_plugin_that_is_gone_is_replaced_by_native_code(caplog: pytest.LogCaptureFixture) -> None:
    m = perceptron()
    x = feed(m)
    made = tw.compile(m, plugins=("numpy",), placement="greedy")
    want = made.session(1).run(x)["y"]
    unregister_plugin("numpy")
    check_close(made.session(1).run(x)["y"], want)
    assert "there is no plugin 'numpy'" in caplog.text


def test_names_that_do_not_exist() -> None:
    with pytest.raises(UserError, match="there is no plugin 'nonesuch'") as e:
        tw.load(perceptron(), plugins=("nonesuch",))
    assert "numpy" in str(e.value.hint)
    with pytest.raises(UserError, match="'best' is no placement"):
        tw.load(perceptron(), plugins=("numpy",), placement="best")


def test_registered_plugins_are_found() -> None:
    assert {"numpy", "last"} <= set(plugin_names())
    assert isinstance(find_plugin("numpy"), Numpy)


# --------------------------------------------------------------------------------------------------- by measurement


def test_a_slow_plugin_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Sleeping(Numpy):
        name = "sleeping"

        def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
            run = super().load(blob, constants, threads)

            def slow(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
                time.sleep(0.005)
                run(inputs, outputs)

            return slow

    register_plugin(Sleeping())
    try:
        with caplog.at_level(logging.INFO, "tilewright"):
            made = tw.compile(perceptron(), plugins=("sleeping",), placement="measured")
    finally:
        unregister_plugin("sleeping")
    assert made.artifact.regions == ()
    assert "placement: native" in caplog.text and "sleeping" in caplog.text


def test_a_quick_plugin_gets_what_it_is_quick_at() -> None:
    """It does nothing, which is hard to beat."""

    class Idle(Numpy):
        name = "idle"

        def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
            return lambda inputs, outputs: None

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    register_plugin(Idle())
    try:
        made = tw.compile(
            model(nodes, (256, 512), w=(512, 512)), plugins=("idle",), placement="measured", strict=True
        )
    finally:
        unregister_plugin("idle")
    assert [r.plugin for r in made.artifact.regions] == ["idle"]
