"""Tuning for ranges of open dimensions: candidates are timed and compared at several sizes, and found by range."""

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.onnx_cases import check_outputs
from tests.tile_space import tile_spaces
from tilewright import api, compiler
from tilewright.codegen.driver import driver_ir
from tilewright.codegen.objects import compile_object
from tilewright.driver.passes import task_key
from tilewright.driver.tuned import tuning_scope
from tilewright.lowered import lowered
from tilewright.ops.accuracy import DEFAULT as USUAL
from tilewright.search.database import Measurement
from tilewright.target.target import native
from tilewright.tir.func import Func
from tilewright.tuning.candidate import DEFAULT, Maker, Task, tensor_spec
from tilewright.tuning.open_settings import shape_at, sizes_read, sizes_to_time
from tilewright.tuning.trial import Experiment, TrialSizes, TrialStatus, random_input
from tilewright.tuning.trials import Trials

RANGE = {"m": (1, 16)}


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "tuning.db"))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def product() -> onnx.ModelProto:
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("a", ["m", 16]), ("b", [16, 16]), ("y", None))
    ]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "g", tensors[:2], tensors[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def open_func(most: int = 16) -> Func:
    (func,) = lowered(product(), None, USUAL, "native", {"m": (1, most)}).funcs
    return func


def test_candidates_run_at_the_ends_of_a_range_and_between() -> None:
    func = open_func(64)
    assert [at["m"] for at in sizes_to_time(func)] == [64, 8, 1]
    assert [shape_at(func.outputs[0], at) for at in sizes_to_time(func)] == [(64, 16), (8, 16), (1, 16)]


def test_an_open_model_is_tuned() -> None:
    result = tw.tune(product(), dims=RANGE, spaces=tile_spaces, trials=4, budget=30)
    (task,) = result.tasks
    assert (task.trials, task.failed, task.problem) == (4, (), "")
    assert 0 < task.best_seconds <= task.default_seconds < 1
    assert task.key in compiler.compile(product(), dims=RANGE).tasks


def test_a_candidate_has_to_be_right_at_every_size() -> None:
    func, machine = open_func(), native()
    inputs = [p for p in func.params if p not in func.outputs]
    sizes = tuple(
        TrialSizes(sizes_read(func, at), tuple(shape_at(b, at) for b in func.outputs))
        for at in sizes_to_time(func)
    )
    specs, results = (tuple(map(tensor_spec, group)) for group in (inputs, func.outputs))
    experiment = Experiment(
        specs, results, compile_object(driver_ir(machine), machine), 1, 1e-4, 256 << 20, 0, sizes
    )
    candidate, _ = Maker(Task("task", func, frozenset(), machine, tile_spaces)).make(DEFAULT, {})
    arrays = {p.name: random_input(tensor_spec(p), n) for n, p in enumerate(inputs)}
    want = np.asarray(arrays["a"]) @ np.asarray(arrays["b"])
    beyond, wrong = want.copy(), want.copy()
    beyond[1:] = np.nan  # at one row, nobody looks at the others
    wrong[0, 3] += 1
    with Trials() as trials:
        for last, status in ((beyond, TrialStatus.OK), (wrong, TrialStatus.WRONG_RESULT)):
            trials.prepare(experiment, [want.tobytes(), want.tobytes(), last.tobytes()])
            assert trials.run(candidate, runs=2, slow=1.0, timeout=20).status is status


def test_a_choice_is_for_its_range(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(compiler, "SPACES", tile_spaces)
    caplog.set_level(logging.INFO, "tilewright")
    decisions = {"rows": 2, "columns": 16, "steps": 2}
    store = api.default_database()
    row = Measurement(task_key(open_func(), ()), "choice", "tile", decisions, "ok", 1e-6)
    store.record(tuning_scope(native()), row)
    store.close()
    rng = np.random.default_rng(0)
    for most, count in ((16, 1), (32, 0)):
        caplog.clear()
        with tw.load(product(), dims={"m": (1, most)}, threads=1) as session:
            for m in (1, 3, most):
                a, b = (rng.standard_normal((n, 16)).astype(np.float32) for n in (m, 16))
                check_outputs(session.run({"a": a, "b": b}), {"y": a @ b})
        assert caplog.text.count("tuned: 1 kernels from the database") == count
