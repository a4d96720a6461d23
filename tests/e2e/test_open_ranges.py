"""Programs with schedules for several ranges of sizes: right on both sides of each bound, and told by the trace."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.cli.main import main
from tilewright.compiler import CompiledModel
from tilewright.compiler import compile as compile_model
from tilewright.driver.decisions import RangeKernel
from tilewright.driver.trace import ProgramTrace
from tilewright.runtime.open_session import OpenSession
from tilewright.search import ranges
from tilewright.support.artifact import KernelCall, Segment
from tilewright.support.errors import UserError
from tilewright.support.program import leaves

RNG = np.random.default_rng(0)
W = RNG.standard_normal((64, 96), np.float32)
DIMS = {"n": (1, 64)}
EVERYWHERE: dict[str, Any] = {
    "_LEAST_GAIN": 0.0,
    "_LEAST_SHARE": -1e9,
    "_PACKED_GAIN": 1e9,
    "_SMALL_WEIGHTS": 0,
}


def dense(rows: str | int = "n") -> ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, rows, k]) for n, k in (("x", 64), ("y", 96))
    )
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(W, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alternatives are taken where there are some, whatever they gain; never with weights of their own."""
    for name, value in EVERYWHERE.items():
        monkeypatch.setattr(ranges, name, value)


@pytest.fixture(scope="module")
def made() -> CompiledModel:
    with patch.multiple(ranges, **EVERYWHERE):
        return compile_model(dense(), dims=DIMS)


def calls_of(made: CompiledModel) -> list[KernelCall]:
    return [c for s in leaves(made.artifact.program) if isinstance(s, Segment) for c in s.calls]


def wanted(x: Any) -> Any:
    return np.maximum(x @ W, 0)


def test_both_sides_of_each_bound_are_right_and_the_same_with_any_threads(made: CompiledModel) -> None:
    found = [d for d in made.trace.sections["ranges"] if isinstance(d, RangeKernel)]
    assert {d.most for d in found} == {1, 8}
    one, two = (made.session(threads) for threads in (1, 2))
    assert isinstance(one, OpenSession) and isinstance(two, OpenSession)
    for n in (8, 1, 9, 2, 64, 7, 1, 33, 8):  # back and forth: the choice follows
        x = RNG.standard_normal((2, n, 64), np.float32)
        got: Any = one.run({"x": x})["y"]
        again: Any = two.run({"x": x})["y"]
        np.testing.assert_allclose(got, wanted(x), rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(got, again)


def test_one_call_of_several_is_made_for_a_size(made: CompiledModel) -> None:
    (segment,) = [s for s in leaves(made.artifact.program) if isinstance(s, Segment)]
    boxes = ((("n", 1),), (("n", 8),))
    few = [c.kernel for _, c in segment.calls_at(frozenset(boxes))]
    some = [c.kernel for _, c in segment.calls_at(frozenset(boxes[1:]))]
    many = [c.kernel for _, c in segment.calls_at(frozenset())]
    assert len({*few, *some, *many}) > len(many)
    assert set(few).isdisjoint(many) and set(some).isdisjoint(many)


def test_schedules_for_few_rows_read_the_same_weights(
    made: CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes = sum(c.nbytes for c in made.artifact.constants)
    monkeypatch.setattr(ranges, "_SIZES", ())
    alone = compile_model(dense(), dims=DIMS)
    assert "ranges" not in alone.trace.sections
    assert nbytes == sum(c.nbytes for c in alone.artifact.constants)


def test_a_trace_makes_the_same_program_again(made: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_SIZES", ())  # nothing would be found
    text = str(made.trace)
    again = compile_model(dense(), dims=DIMS, trace=ProgramTrace.parse(text))
    assert str(again.trace) == text and "RangeKernel(" in text
    assert again.artifact.program == made.artifact.program
    none = made.trace.with_section("ranges", ())
    assert not any(c.is_optional for c in calls_of(compile_model(dense(), dims=DIMS, trace=none)))


def test_a_decision_for_a_dimension_that_is_not_open_is_refused(made: CompiledModel) -> None:
    (first, *_) = made.trace.sections["ranges"]
    assert isinstance(first, RangeKernel)
    wrong = RangeKernel(first.calls, "m", 1, first.family, first.knobs)
    with pytest.raises(UserError, match="m is not open"):
        compile_model(dense(), dims=DIMS, trace=made.trace.with_section("ranges", (wrong,)))


def test_files_and_bound_programs_have_the_choice_too(made: CompiledModel, tmp_path: Path) -> None:
    made.save(tmp_path / "mlp.tw")
    session = tw.load(tmp_path / "mlp.tw")
    for n in (1, 5, 40):
        x = RNG.standard_normal((2, n, 64), np.float32)
        got: Any = session.bind({"x": x}).run()["y"]
        np.testing.assert_allclose(got, wanted(x), rtol=1e-3, atol=1e-3)
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "mlp.tw")])
    assert "n <= 1" in shown.output and "n > 8" in shown.output


@pytest.mark.usefixtures("everywhere")
def test_a_static_program_has_none() -> None:
    made = compile_model(dense(16))
    assert "ranges" not in made.trace.sections
    assert not any(c.is_optional for c in calls_of(made))
