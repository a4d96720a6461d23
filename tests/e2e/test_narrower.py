"""Programs for smaller images, beside the one for all sizes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tests.e2e.test_open_images import Network
from tilewright.compiler import CompiledModel
from tilewright.driver.decisions import Narrower
from tilewright.driver.trace import ProgramTrace
from tilewright.runtime.open_session import OpenSession
from tilewright.sessions.dynamic import DynamicSession
from tilewright.support.errors import UserError

DIMS = {"height": (16, 64, 16), "width": (16, 128, 16)}
SIZES = [(16, 16), (16, 32), (32, 64), (48, 64), (16, 128), (64, 128)]


def image(height: int, width: int) -> Any:
    return np.random.default_rng(height + width).standard_normal((1, 3, height, width)).astype(np.float32)


@pytest.fixture(scope="module")
def model() -> ModelProto:
    n = Network([1, 3, "height", "width"])
    x = n.node("Relu", n.conv("x", 3, 32, 3, 2))
    return n.model(n.conv(n.node("Relu", n.conv(x, 32, 64)), 64, 16, 1))


@pytest.fixture(scope="module")
def made(model: ModelProto) -> CompiledModel:
    return tw.compile(model, dims=DIMS)


@pytest.fixture(scope="module")
def session(made: CompiledModel) -> Iterator[OpenSession]:
    with made.session(2) as session:
        assert isinstance(session, OpenSession)
        yield session


def most(session: OpenSession) -> list[tuple[int, ...]]:
    """How large images of each program may be."""
    programs = session._programs  # pyright: ignore[reportPrivateUsage]
    return [p.sizes.inputs[0].shape[2:] for p in programs]


def check(session: OpenSession, model: ModelProto) -> None:
    other: Any = ort.InferenceSession(model.SerializeToString())
    for height, width in SIZES:
        for largest in most(session):  # memory of all programs is full of NaN
            session.run({"x": np.full((1, 3, *largest), np.nan, np.float32)})
        x = image(height, width)
        (want,) = other.run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=2e-4, atol=2e-4)


def test_images_have_programs_for_half_of_each_side_and_for_less(session: OpenSession) -> None:
    assert most(session) == [(16, 16), (16, 32), (32, 64), (64, 128)]
    assert "3 more for smaller ranges" in repr(session)


def test_the_results_are_right_whichever_runs(session: OpenSession, model: ModelProto) -> None:
    check(session, model)


def test_the_narrowest_that_sizes_are_within_runs(made: CompiledModel) -> None:
    session = made.session(1)
    assert isinstance(session, OpenSession)
    for height, width, number in ((16, 16, 0), (16, 32, 1), (32, 32, 2), (16, 128, 3), (48, 32, 3)):
        program, sized = session._program_for([(1, 3, height, width)])  # pyright: ignore[reportPrivateUsage]
        assert program is session._programs[number]  # pyright: ignore[reportPrivateUsage]
        assert sized.inputs[0][2:] == (slice(height), slice(width))
    with pytest.raises(UserError, match="height is 80, and the program is made for height from 16 to 64"):
        session.run({"x": image(80, 64)})


def test_bound_arrays_and_given_outputs(session: OpenSession) -> None:
    x = image(32, 32)
    want = session.run({"x": x})["y"]
    bound = session.bind({"x": x})
    np.testing.assert_array_equal(bound.run()["y"], want)
    out = np.empty_like(want)
    assert session.run({"x": x}, {"y": out})["y"] is out
    np.testing.assert_array_equal(out, want)


def test_a_file_holds_all_of_them_and_equal_weights_once(
    made: CompiledModel, model: ModelProto, tmp_path: Path
) -> None:
    path = tmp_path / "model.tw"
    made.save(path)
    artifact = made.artifact
    digests = [d for a in (artifact, *artifact.narrower) for d in a.digests if d]
    assert len(set(digests)) < len(digests)
    with tw.load(path, threads=2) as loaded:
        assert isinstance(loaded, OpenSession)
        assert most(loaded) == [(16, 16), (16, 32), (32, 64), (64, 128)]
        check(loaded, model)


def test_a_trace_says_which_there_are(made: CompiledModel, model: ModelProto) -> None:
    text = str(made.trace)
    assert text.count("[narrower]\nNarrower(dims=('height', 'width'), sizes=(") == 3
    parsed = ProgramTrace.parse(text)
    assert parsed == made.trace and str(parsed) == text
    again = tw.compile(model, dims=DIMS, trace=parsed)
    assert again.trace == made.trace
    for a, b in zip(
        (again.artifact, *again.artifact.narrower), (made.artifact, *made.artifact.narrower), strict=True
    ):
        assert a.objects == b.objects and a.program == b.program
    alone = tw.compile(model, dims=DIMS, trace=ProgramTrace(narrower=()))
    assert not alone.artifact.narrower and str(alone.trace).endswith("[narrower]\n")
    one = (Narrower(("width",), (48,)), ProgramTrace())
    with tw.compile(model, dims=DIMS, trace=ProgramTrace(narrower=(one,))).session(1) as session:
        assert isinstance(session, OpenSession)
        assert most(session) == [(64, 48), (64, 128)]


def test_traces_are_read_as_they_are_printed() -> None:
    two = tuple((Narrower(("width",), (n,)), ProgramTrace()) for n in (32, 48))
    for narrower in (None, (), two[:1], two, ((two[0][0], ProgramTrace({"joins": ()})), two[1])):
        trace = ProgramTrace({"joins": ()}, narrower=narrower)
        assert ProgramTrace.parse(str(trace)) == trace
    for wrong in (
        "[narrower]\n[joins]\n",
        "[narrower]\n[narrower]\n",
        f"[narrower]\n{two[0][0]}\n{two[0][0]}\n",
    ):
        with pytest.raises(UserError, match=r"is no section|a line is a"):
            ProgramTrace.parse(wrong)
    with pytest.raises(UserError, match="each dimension has one size"):
        ProgramTrace.parse("[narrower]\nNarrower(dims=('width',), sizes=(32, 48))\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Narrower(dims=('depth',), sizes=(8,))", "depth cannot be 8"),
        ("Narrower(dims=('width',), sizes=(40,))", "width cannot be 40"),
    ],
)
def test_a_trace_with_sizes_that_are_not_there(model: ModelProto, line: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tw.compile(model, dims=DIMS, trace=ProgramTrace.parse(f"[narrower]\n{line}\n"))


def test_who_waits_for_a_run_gets_one_program(model: ModelProto) -> None:
    """Dimensions that are seen to vary are opened while a run waits."""
    with tw.load(model, threads=1) as session:
        assert isinstance(session, DynamicSession)
        for size in (32, 64):
            session.run({"x": image(size, size)})
        found = session._open  # pyright: ignore[reportPrivateUsage]
        assert found is not None and len(most(found.session)) == 1


def test_rows_of_matrices_have_none() -> None:
    w = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8]) for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    assert not tw.compile(m, dims={"n": (1, 512)}).artifact.narrower


def test_a_narrower_program_has_the_tasks_of_one_for_its_range(
    made: CompiledModel, model: ModelProto
) -> None:
    """So what tuning finds for the range is used in both."""
    half = tw.compile(
        model, dims={"height": (16, 32, 16), "width": (16, 64, 16)}, trace=ProgramTrace(narrower=())
    )
    assert set(half.tasks) <= set(made.tasks)
