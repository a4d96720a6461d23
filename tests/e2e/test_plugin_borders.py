"""What crosses the border of a plugin's region: types of elements, memory that is used twice, open shapes, and samples
to calibrate with.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.toy_plugin import (
    Clipping,
    Failing,
    FailingInPlace,
    InPlace,
    Numpy,
    Settled,
    Short,
    ShortLast,
    compile_here,
    registered,
)
from tilewright.calibration import values_of
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.interp import interpret_graph
from tilewright.plugins.registry import register_plugin, unregister_plugin
from tilewright.support.arrays import Array
from tilewright.support.artifact import ExternalCall
from tilewright.support.errors import UserError

RNG = np.random.default_rng(5)
PLUGINS = (Clipping, Failing, FailingInPlace, InPlace, Numpy, Settled, Short, ShortLast)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    compile_here(monkeypatch)
    with registered(PLUGINS, monkeypatch, tmp_path):
        yield


def model(
    nodes: list[onnx.NodeProto], shape: tuple[int | str, ...], **weights: tuple[int, ...]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(RNG.standard_normal(s).astype(np.float32), n) for n, s in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def dense(rows: int | str = 4) -> onnx.ModelProto:
    """A softmax for us, a MatMul and an activation for the plugin, and a softmax for us again."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"]),
        helper.make_node("MatMul", ["p", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"]),
    ]
    return model(nodes, (rows, 8), w=(8, 16))


def image() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=1),
    ]
    return model(nodes, (1, 3, 10, 12), w=(16, 3, 3, 3))


def chain() -> onnx.ModelProto:
    """Exponentials for us around an activation for the plugin, with values as large as each other."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Neg", ["e"], ["n"]),
        helper.make_node("Abs", ["n"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["y"]),
    ]
    return model(nodes, (64, 1024))


def run(m: onnx.ModelProto, x: Array, plugin: str, **options: object) -> Array:
    session = tw.load(m, plugins=[plugin], placement="greedy", **options)  # pyright: ignore[reportArgumentType]
    return session.run({"x": x})["y"]


def reference(m: onnx.ModelProto, x: Array) -> Array:
    return interpret_graph(load_graph(m, {"x": x.shape}), {"x": x})["y"]


# ------------------------------------------------------------------------------------------------------------ dtypes


@pytest.mark.parametrize(
    ("m", "plugin", "shape"), [(dense(), "short", (4, 8)), (image(), "short_last", (1, 3, 10, 12))]
)
def test_values_cross_the_border_as_the_plugin_wants_them(
    m: onnx.ModelProto, plugin: str, shape: tuple[int, ...]
) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    made = tw.compile(m, plugins=[plugin], placement="greedy", strict=True)
    crossing = [
        spec.dtype
        for step in made.artifact.program
        if isinstance(step, ExternalCall)
        for _, spec in (*step.inputs, *step.outputs)
    ]
    assert crossing and set(crossing) == {"float16"}
    got, want = made.session().run({"x": x})["y"], reference(m, x)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=4e-3 * np.abs(want).max())
    assert np.abs(got - want).max() > 0, "half precision leaves a trace"


def test_native_code_takes_over_with_its_own_types(caplog: pytest.LogCaptureFixture) -> None:
    class ShortAndFailing(Short, Failing):
        name = "short_and_failing"

    register_plugin(ShortAndFailing())
    m, x = dense(), RNG.standard_normal((4, 8)).astype(np.float32)
    try:
        with caplog.at_level(logging.WARNING):
            got = run(m, x, "short_and_failing")
    finally:
        unregister_plugin("short_and_failing")
    assert "native code runs this region" in caplog.text
    np.testing.assert_allclose(got, reference(m, x), atol=4e-3)


# ---------------------------------------------------------------------------------------------------------- in place


def test_outputs_lie_over_inputs_where_the_plugin_allows_it() -> None:
    m, x = chain(), RNG.standard_normal((64, 1024)).astype(np.float32)

    class Apart(InPlace):
        name = "apart"
        capabilities = Numpy.capabilities

    register_plugin(Apart())
    try:
        apart = tw.compile(m, plugins=["apart"], placement="greedy", strict=True)
    finally:
        unregister_plugin("apart")
    joined = tw.compile(m, plugins=["in_place"], placement="greedy", strict=True)
    assert joined.artifact.arena_bytes == apart.artifact.arena_bytes // 2
    np.testing.assert_allclose(joined.session().run({"x": x})["y"], reference(m, x), rtol=1e-6)


def test_a_failure_in_place_is_told_and_the_next_run_is_right() -> None:
    m, x = chain(), RNG.standard_normal((64, 1024)).astype(np.float32)
    session = tw.load(m, plugins=["failing_in_place"], placement="greedy")
    with pytest.raises(UserError, match=r"outputs lie over inputs.*the device is on fire"):
        session.run({"x": x})
    np.testing.assert_allclose(session.run({"x": x})["y"], reference(m, x), rtol=1e-6)


# ------------------------------------------------------------------------------------------------------- open shapes


def test_a_plugin_for_fixed_shapes_gets_nothing_of_a_model_with_open_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = RNG.standard_normal((3, 8)).astype(np.float32)
    m = dense("rows")
    with caplog.at_level(logging.WARNING):
        got = run(m, x, "settled")
    assert "does not compile for shapes that are left open" in caplog.text
    np.testing.assert_allclose(got, reference(m, x), atol=1e-6)
    fixed = tw.compile(m, shapes={"x": (3, 8)}, plugins=["settled"], placement="greedy", strict=True)
    assert fixed.artifact.regions


def test_other_plugins_are_asked_for_each_shape(caplog: pytest.LogCaptureFixture) -> None:
    m = dense("rows")
    session = tw.load(m, plugins=["numpy"], placement="greedy", strict=True)
    with caplog.at_level(logging.INFO):
        for rows in (3, 5, 7):
            x = RNG.standard_normal((rows, 8)).astype(np.float32)
            np.testing.assert_allclose(session.run({"x": x})["y"], reference(m, x), atol=1e-6)
    assert (
        caplog.text.count("a program for each shape: numpy compiles parts of a model for given shapes") == 1
    )


@pytest.mark.parametrize(
    ("plugin", "what"), [("settled", "shapes that are left open"), ("numpy", "ranges of dimensions")]
)
def test_plugins_for_given_shapes_are_no_part_of_a_program_for_all_sizes(
    plugin: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    m = dense("rows")
    with caplog.at_level(logging.WARNING):
        session = tw.load(m, dims={"rows": (1, 9)}, plugins=[plugin], placement="greedy")
    assert f"{plugin} gets nothing: it does not compile for {what}" in caplog.text
    x = RNG.standard_normal((4, 8)).astype(np.float32)
    got: Any = session.run({"x": x})["y"]
    np.testing.assert_allclose(got, reference(m, x), atol=1e-6)


# ------------------------------------------------------------------------------------------------------- calibration


def test_a_plugin_calibrates_with_what_flows_into_its_region() -> None:
    m = dense()
    samples = [{"x": RNG.standard_normal((4, 8)).astype(np.float32)} for _ in range(3)]
    made = tw.compile(m, plugins=["clipping"], placement="greedy", strict=True, calibration=samples)
    seen = max(v["p"].max() for s in samples for v in values_of(load_graph(m), [s]))
    (code,) = made.artifact.regions
    assert np.frombuffer(code.blob[1:9])[0] == pytest.approx(seen, rel=1e-6)


def test_without_samples_the_plugin_says_what_is_missing() -> None:
    with pytest.raises(UserError, match="nothing to calibrate with"):
        tw.compile(dense(), plugins=["clipping"], placement="greedy", strict=True)


def test_other_samples_make_another_program() -> None:
    m, x = dense(), 9 * RNG.standard_normal((4, 8)).astype(np.float32)
    small, large = ({"x": a} for a in (np.zeros((4, 8), np.float32), x))
    one, two = (run(m, x, "clipping", calibration=[s], strict=True) for s in (small, large))
    np.testing.assert_allclose(two, reference(m, x), atol=1e-6)
    assert np.abs(one - two).max() > 1e-3


def test_samples_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="a sample to calibrate with has z") as e:
        tw.compile(dense(), plugins=["clipping"], placement="greedy", calibration=[{"z": np.zeros(3)}])
    assert e.value.hint == "the model takes x"


def test_all_values_of_a_graph() -> None:
    m, x = dense(), RNG.standard_normal((4, 8)).astype(np.float32)
    (values,) = values_of(load_graph(m), [{"x": x}])
    assert values.keys() == {"x", "p", "h", "r", "y"}
    np.testing.assert_allclose(values["y"], reference(m, x), atol=1e-6)
    np.testing.assert_array_equal(values["r"], np.maximum(values["h"], 0))
