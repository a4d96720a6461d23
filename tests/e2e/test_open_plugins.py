"""Plugins in programs for ranges of sizes: the same results as without, whoever runs a region in the end."""

import logging
from collections.abc import Iterator, Mapping, Sequence
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
    Sized,
    SizedLast,
    SizedShort,
    Unloadable,
    compile_here,
    registered,
)
from tilewright.frontend.onnx.load import load_graph
from tilewright.graph.external import Answer, Capabilities, No, Region, RunRegion
from tilewright.graph.interp import interpret_graph
from tilewright.runtime.open_session import OpenSession
from tilewright.sessions.dynamic import DynamicSession
from tilewright.support.arrays import Array
from tilewright.support.artifact import ExternalCall

RNG = np.random.default_rng(7)
node = helper.make_node


class Burning(Sized):
    name = "burning"
    load = Failing.load


class Driverless(Sized):
    name = "driverless"
    load = Unloadable.load


class BurningLast(SizedLast):
    name = "burning_last"
    load = Failing.load


class Declining(Sized):
    """Says so before it compiles."""

    name = "declining"

    def accepts(self, region: Region) -> Answer:
        return No("only for given sizes") if region.is_open else super().accepts(region)


class Refusing(Sized):
    """Says so when it compiles."""

    name = "refusing"

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        if region.is_open:
            raise ValueError("no code for open sizes")
        return super().compile(region, constants)


class SizedClipping(Clipping, Sized):
    name = "sized_clipping"
    capabilities = Sized.capabilities


class Idle(Sized):
    """Does nothing, which is hard to beat; and says so."""

    name = "idle"

    def seconds(self, region: Region, threads: int) -> float | None:
        return sum(v.bytes for v in region.graph.inputs) / 1e15

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        return lambda inputs, outputs: None


class Overwriting(Sized):
    """May write where it reads."""

    name = "overwriting"
    capabilities = Capabilities(open_sizes=True, in_place=True)


PLUGINS = (
    *(Sized, SizedLast, SizedShort, Burning, BurningLast, Driverless, Declining, Refusing, SizedClipping),
    *(Idle, Overwriting),
)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    Sized.seen.clear()
    compile_here(monkeypatch)
    with registered(PLUGINS, monkeypatch, tmp_path):
        yield


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def model(nodes: Sequence[Any], inputs: dict[str, list[Any]], **constants: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def dense() -> onnx.ModelProto:
    """A softmax for us, a MatMul and an activation for the plugin, and a softmax for us again."""
    steps = [
        node("Softmax", ["x"], ["p"]),
        node("MatMul", ["p", "w"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("Softmax", ["r"], ["y"]),
    ]
    return model(steps, {"x": ["n", 8]}, w=floats(8, 16))


def inner() -> onnx.ModelProto:
    """An open dimension inside of another: what is in use is not contiguous."""
    steps = [
        node("Exp", ["x"], ["e"]),
        node("Relu", ["e"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        node("Sqrt", ["t"], ["y"]),
    ]
    return model(steps, {"x": ["batch", "n", 5]})


def heads() -> onnx.ModelProto:
    """Reshapes whose numbers are computed from shapes, as exporters write them."""
    steps = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"]),
        node("Gather", ["s", "one"], ["n"]),
        node("Unsqueeze", ["b", "zero"], ["b1"]),
        node("Unsqueeze", ["n", "zero"], ["n1"]),
        node("Concat", ["b1", "n1", "split"], ["to"], axis=0),
        node("Mul", ["b1", "n1"], ["bn"]),
        node("Concat", ["bn", "whole"], ["flat"], axis=0),
        node("Tanh", ["x"], ["u"]),
        node("MatMul", ["u", "w"], ["q"]),
        node("Reshape", ["q", "to"], ["q4"]),
        node("Transpose", ["q4"], ["qt"], perm=[0, 2, 1, 3]),
        node("MatMul", ["qt", "v"], ["m"]),
        node("Transpose", ["m"], ["mt"], perm=[0, 2, 1, 3]),
        node("Reshape", ["mt", "flat"], ["f"]),
        node("Exp", ["f"], ["y"]),
    ]
    numbers = {"zero": ints(0)[0], "one": ints(1)[0], "split": ints(2, 4), "whole": ints(8)}
    return model(steps, {"x": ["batch", "n", 8]}, w=floats(8, 8), v=floats(4, 4), **numbers)


def image() -> onnx.ModelProto:
    steps = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c"], ["r"]),
        node("Softmax", ["r"], ["y"], axis=1),
    ]
    return model(steps, {"x": [1, 3, "h", "v"]}, w=floats(6, 3, 3, 3))


RANGES: dict[str, tuple[int, int]] = {"n": (1, 9), "batch": (1, 4), "h": (3, 12), "v": (3, 10)}
SIZES: tuple[dict[str, int], ...] = (
    {"n": 4, "batch": 3, "h": 5, "v": 8},
    {"n": 9, "batch": 4, "h": 12, "v": 10},
    {"n": 1, "batch": 1, "h": 3, "v": 3},
    {"n": 9, "batch": 1, "h": 12, "v": 4},
    {"n": 2, "batch": 4, "h": 4, "v": 10},
)


def ranges(m: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    names = {d.dim_param for i in m.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    return {n: r for n, r in RANGES.items() if n in names}


def feeds(m: onnx.ModelProto, at: dict[str, int]) -> dict[str, Array]:
    shapes = {
        i.name: [d.dim_value or at[d.dim_param] for d in i.type.tensor_type.shape.dim] for i in m.graph.input
    }
    return {name: floats(*shape) for name, shape in shapes.items()}


def reference(m: onnx.ModelProto, given: dict[str, Array]) -> Array:
    return interpret_graph(load_graph(m, {n: a.shape for n, a in given.items()}), given)["y"]


def check(m: onnx.ModelProto, session: Any, tolerance: float = 2e-6) -> None:
    """With plugins the model computes what it does without, at all sizes."""
    with tw.load(m, threads=1, dims=ranges(m)) as native:
        for at in SIZES:
            given = feeds(m, at)
            want, got = reference(m, given), session.run(given)["y"]
            assert got.shape == want.shape
            for found in (got, native.run(given)["y"]):
                np.testing.assert_allclose(found, want, rtol=0, atol=tolerance * np.abs(want).max())


def load(m: onnx.ModelProto, plugin: str, **options: Any) -> Any:
    options = {"placement": "greedy", "threads": 1, **options}
    return tw.load(m, dims=ranges(m), plugins=[plugin], **options)


# ------------------------------------------------------------------------------------------------------- what it runs


@pytest.mark.parametrize("build", [dense, inner, heads])
def test_a_region_runs_at_all_sizes(build: Any) -> None:
    m = build()
    made = tw.compile(m, dims=ranges(m), plugins=["sized"], placement="greedy", strict=True)
    calls = [s for s in made.artifact.program if isinstance(s, ExternalCall)]
    assert len(calls) == len(made.artifact.regions) == 1
    check(m, made.session(1, strict=True))
    assert len(set(Sized.seen)) > 3, "it was given arrays of the sizes in use"


def test_the_region_has_named_dimensions() -> None:
    m = heads()
    (code,) = tw.compile(
        m, dims=ranges(m), plugins=["sized"], placement="greedy", strict=True
    ).artifact.regions
    graph = onnx.ModelProto.FromString(code.model).graph
    given, made = (
        [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (graph.input[0], graph.output[0])
    )
    assert given == ["batch", "n", 8] and made == ["batch * n", 8]


@pytest.mark.parametrize("plugin", ["sized_last", "burning_last"])
def test_channels_are_last_for_a_plugin_that_wants_them_so(plugin: str) -> None:
    m = image()
    made = tw.compile(m, dims=ranges(m), plugins=[plugin], placement="greedy", strict=True)
    assert [r.last for r in made.artifact.regions] == [True]
    check(m, made.session(1))


def test_elements_cross_the_border_as_the_plugin_wants_them() -> None:
    m = dense()
    check(m, load(m, "sized_short", strict=True), 4e-3)


def test_outputs_may_lie_over_inputs() -> None:
    check(inner(), load(inner(), "overwriting", strict=True))


def test_bound_arrays_have_sizes_too() -> None:
    m = inner()
    session = load(m, "sized", strict=True)
    for at in SIZES:
        given = feeds(m, at)
        bound = session.bind(given)
        for _ in range(2):
            np.testing.assert_allclose(bound.run()["y"], reference(m, given), rtol=1e-6)
            given["x"] += 1


def test_a_compiled_file_has_its_regions_and_sizes(tmp_path: Path) -> None:
    m = heads()
    made = tw.compile(m, dims=ranges(m), plugins=["sized"], placement="greedy", strict=True)
    made.save(tmp_path / "m.tw")
    with tw.load(tmp_path / "m.tw", threads=1, strict=True) as session:
        check(m, session)
    assert Sized.seen


def test_programs_are_cached(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(dense().SerializeToString())
    for plugin, programs in (("sized", 1), ("sized", 1), ("burning", 2)):
        options = {"dims": {"n": (1, 9)}, "plugins": [plugin], "placement": "greedy"}
        with tw.load(tmp_path / "m.onnx", threads=1, **options) as session:  # pyright: ignore[reportArgumentType]
            session.run({"x": floats(3, 8)})
        assert len(list((tmp_path / "cache").glob("*.tw"))) == programs


def test_dimensions_that_are_seen_to_vary_are_opened_with_plugins(caplog: pytest.LogCaptureFixture) -> None:
    m = dense()
    session = tw.load(m, threads=1, plugins=["sized"], placement="greedy", strict=True)
    assert isinstance(session, DynamicSession)
    with caplog.at_level(logging.INFO, "tilewright"):
        for n in (3, 5, 7):
            x = floats(n, 8)
            np.testing.assert_allclose(session.run({"x": x})["y"], reference(m, {"x": x}), atol=1e-6)
    assert caplog.text.count("compiling for") == 2 and "n from 1 to 64" in caplog.text
    assert [shapes[0][0] for shapes in Sized.seen] == [3, 5, 7]


# -------------------------------------------------------------------------------------------------------- when it fails


BURNING, DRIVERLESS = ("burning", "on fire"), ("driverless", "no driver")


# Each model with one of them, and each of them with one model at least; the others in long runs.
@pytest.mark.parametrize(
    ("build", "plugin", "why"),
    [
        pytest.param(build, *failing, marks=() if failing is always else pytest.mark.slow)
        for build, always in ((dense, BURNING), (inner, DRIVERLESS), (heads, BURNING))
        for failing in (BURNING, DRIVERLESS)
    ],
)
def test_native_code_takes_over_for_all_sizes(
    build: Any, plugin: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    m = build()
    with caplog.at_level(logging.WARNING, "tilewright"):
        check(m, load(m, plugin))
    assert caplog.text.count(f"{why}); native code runs this region from now on") == 1
    with pytest.raises(tw.UserError, match=why):
        load(m, plugin, strict=True).run(feeds(m, SIZES[0]))


def test_what_native_code_says_when_it_cannot_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    session = load(dense(), "burning")

    def fails(*_: Any, **__: Any) -> Any:
        raise tw.UserError("an operator of the model does not take open dimensions: n / 3")

    monkeypatch.setattr("tilewright.compiler.compile_graph", fails)
    with pytest.raises(tw.UserError, match=r"on fire\), and native code cannot take over: an operator"):
        session.run({"x": floats(3, 8)})


@pytest.mark.parametrize(
    ("plugin", "why"), [("refusing", "no code for open sizes"), ("declining", "only for given sizes")]
)
def test_a_plugin_may_decline_what_is_open(plugin: str, why: str, caplog: pytest.LogCaptureFixture) -> None:
    m = dense()
    with caplog.at_level(logging.WARNING, "tilewright"):
        made = tw.compile(m, dims=ranges(m), plugins=[plugin], placement="greedy")
    assert made.artifact.regions == ()
    check(m, made.session(1))
    assert (f"native code instead: its compiler failed: ValueError: {why}" in caplog.text) == (
        plugin == "refusing"
    )
    static = tw.compile(m, shapes={"x": (4, 8)}, plugins=[plugin], placement="greedy", strict=True)
    assert len(static.artifact.regions) == 1


def test_a_region_that_is_declined_is_an_error_if_plugins_must_not_fail() -> None:
    with pytest.raises(tw.UserError, match=r"could not compile it: .*no code for open sizes"):
        load(dense(), "refusing", strict=True)


def test_sizes_that_the_inputs_of_a_region_do_not_tell(caplog: pytest.LogCaptureFixture) -> None:
    """All rows are one axis when the plugin gets them, and it would have to take them apart again."""
    steps = [
        node("Shape", ["x"], ["s"]),
        node("Reshape", ["x", "rows"], ["f"]),
        node("Exp", ["f"], ["e"]),
        node("Add", ["e", "b"], ["a"]),
        node("Reshape", ["a", "s"], ["r"]),
        node("Sqrt", ["r"], ["y"]),
    ]
    m = model(steps, {"x": ["batch", "n", 8]}, rows=ints(-1, 8), b=np.abs(floats(8)))

    with caplog.at_level(logging.WARNING, "tilewright"):
        made = tw.compile(m, dims=ranges(m), plugins=["sized"], placement="greedy")
    assert "does not follow from the shapes of the region's inputs" in caplog.text
    check(m, made.session(1))


# ----------------------------------------------------------------------------------------------------------- placement


@pytest.mark.parametrize("placement", ["measured", "model"])
def test_placement_is_decided_at_the_largest_sizes(placement: str) -> None:
    steps = [
        node("MatMul", ["x", "w"], ["h"]),
        node("MatMul", ["h", "w"], ["s"]),
        node("Softmax", ["s"], ["y"]),
    ]
    m = model(steps, {"x": ["rows", 256]}, w=floats(256, 256))
    dims = {"rows": (1, 128)}
    made = tw.compile(m, dims=dims, plugins=["idle"], placement=placement, strict=True)
    assert [r.plugin for r in made.artifact.regions] == ["idle"]
    slow = tw.compile(m, dims=dims, plugins=["sized"], placement=placement)
    assert slow.artifact.regions == ()


def test_a_plugin_calibrates_with_samples_of_any_size() -> None:
    m = dense()
    samples = [{"x": floats(n, 8)} for n in (2, 7)]
    made = tw.compile(
        m, dims=ranges(m), plugins=["sized_clipping"], placement="greedy", strict=True, calibration=samples
    )
    (code,) = made.artifact.regions
    seen = max(np.exp(s["x"] - s["x"].max(1, keepdims=True)).max() for s in samples)
    assert 0 < np.frombuffer(code.blob[1:9])[0] <= seen


# --------------------------------------------------------------------------------------------------------------- state


def check_states(m: onnx.ModelProto, dims: dict[str, Any], start: Any = None, pairs: Any = None) -> None:
    """A state goes on as it does without the plugin."""
    options: dict[str, Any] = {"plugins": ["sized"], "placement": "greedy", "strict": True}
    made, native = (tw.load(m, threads=1, dims=dims, **o) for o in (options, {}))
    assert isinstance(made, OpenSession) and isinstance(native, OpenSession)
    one, other = (s.state(start, pairs=pairs) for s in (made, native))
    for n in (3, 1, 1, 3, 2):
        x = floats(n if start is None else 2, 5)
        np.testing.assert_allclose(one.step({"x": x})["y"], other.step({"x": x})["y"], atol=1e-5)
        assert one.sizes == other.sizes
    assert len(Sized.seen) >= 5


def test_what_is_appended_in_place_stays_native_and_state_works() -> None:
    steps = [
        node("MatMul", ["x", "w"], ["k"]),
        node("Concat", ["past", "k"], ["present"], axis=0),
        node("MatMul", ["present", "v"], ["u"]),
        node("ReduceMax", ["u", "axis"], ["y"], keepdims=0),
    ]
    inputs = {"x": ["n", 5], "past": ["past", 7]}
    m = model(steps, inputs, w=floats(5, 7), v=floats(7, 3), axis=ints(0))
    m.graph.output.append(helper.make_tensor_value_info("present", TensorProto.FLOAT, None))
    check_states(m, {"n": (1, 4), "past": (0, 12)})
    made = tw.compile(m, dims={"n": (1, 4), "past": (1, 12)}, plugins=["sized"], placement="greedy")
    assert made.artifact.manifest.in_place and len(made.artifact.regions) == 2


def test_a_state_that_a_plugin_writes_is_kept() -> None:
    steps = [
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["h", "u"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        node("Relu", ["c"], ["next"]),
        node("Exp", ["next"], ["y"]),
    ]
    inputs = {"x": ["n", 5], "h": ["n", 7]}
    m = model(steps, inputs, w=0.1 * floats(5, 7), u=0.1 * floats(7, 7))
    m.graph.output.append(helper.make_tensor_value_info("next", TensorProto.FLOAT, None))
    check_states(m, {"n": (1, 3)}, {"h": np.zeros((2, 7), np.float32)}, {"next": "h"})
