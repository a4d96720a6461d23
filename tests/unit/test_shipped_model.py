"""A learned model at work in compilation: which schedules it makes the default, and what happens without one."""

import logging
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.driver.decisions import Kernel
from tilewright.driver.shipped_model import SCHEDULES_MODEL
from tilewright.learned.ensemble import NEVER, CostTrees
from tilewright.learned.features import FEATURES
from tilewright.learned.model_file import StoredTrees, read_trees
from tilewright.training.export import write_trees

ROWS = FEATURES.index("knob_rows")


def dense() -> ModelProto:
    w = np.random.default_rng(0).standard_normal((96, 64), np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [60, 96]), ("y", [60, 64]))
    )
    graph = helper.make_graph([node], "dense", [x], [y], [numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def few_rows(most: int) -> StoredTrees:
    """One tree: tiles of more rows take three times as long as they are said to, and so does what has no rows."""
    columns = np.array([[ROWS, ROWS, ROWS]])
    thresholds = np.array([[np.log2(2.5 + most), 0.0, NEVER]], np.float32)
    leaves = np.log(np.array([[3.0, 1.0, 3.0, 3.0]], np.float32))
    return StoredTrees(CostTrees(columns, thresholds, leaves, np.full((1, 3), 0.5)), True, None, {})


def rows_chosen(model: ModelProto) -> int:
    kernels = tw.compile(model).trace.sections["kernels"]
    (kernel,) = (k for k in kernels if isinstance(k, Kernel))
    return dict(kernel.knobs)["rows"]


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cost.onnx"
    monkeypatch.setenv(SCHEDULES_MODEL.variable, str(path))
    return path


@pytest.mark.parametrize("cache", ["on", "off"])
def test_the_model_decides_the_default_schedule(
    cache: str, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled by the compiler that it decides for, or by numpy where nothing is kept."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off" if cache == "off" else str(tmp_path / "cache"))
    write_trees(model_file, few_rows(2))
    assert rows_chosen(dense()) <= 2
    monkeypatch.setenv(SCHEDULES_MODEL.variable, "off")
    assert rows_chosen(dense()) > 2


def test_a_file_that_is_no_model_is_said_to_be_none(
    model_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model_file.write_bytes(b"not a model")
    with caplog.at_level(logging.WARNING):
        assert rows_chosen(dense()) > 2
    assert "closed forms" in caplog.text and str(model_file) in caplog.text


# ------------------------------------------------------------------------------------------------- the one that ships


def test_the_model_that_ships_is_of_this_version_and_small() -> None:
    """Features that change make it useless: train it again then (docs/learned-model.md)."""
    path = SCHEDULES_MODEL.shipped
    stored = read_trees(path)
    assert path.stat().st_size <= 2 << 20 and stored.guard is not None
    assert stored.training["rows"] > 20_000 and stored.training["task"] == "schedules"


def test_what_ships_ranks_without_warning_and_gives_the_same_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = np.random.default_rng(1).standard_normal((60, 96), np.float32)
    answers: list[np.ndarray] = []
    for setting in ("off", ""):
        monkeypatch.setenv(SCHEDULES_MODEL.variable, setting)
        monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / f"cache{setting}"))
        with caplog.at_level(logging.WARNING), tw.load(dense()) as session:
            answers.append(session.run({"x": x})["y"])
    assert not caplog.text
    assert answers[0] == pytest.approx(answers[1], abs=1e-4)
