"""Tuning from end to end: what is measured is kept, the better schedule is chosen, and compilation uses it."""

import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from examples.models import mlp
from tests.tile_space import gemm, tile_spaces
from tilewright import api, compiler
from tilewright.driver.passes import task_key
from tilewright.driver.tuned import Tuned, tuned_digest, tuning_scope
from tilewright.lowered import lowered
from tilewright.schedule.schedule import Schedule
from tilewright.search.database import Choice, Database, Measurement, RecordScope
from tilewright.stages import stages
from tilewright.support.budget import parse_budget
from tilewright.support.errors import UserError
from tilewright.support.turns import Series
from tilewright.target.target import native, x86_64
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import loops
from tilewright.tuning.failures import Failure
from tilewright.tuning.tune import Tuning
from tilewright.tuning.tune_result import TaskResult, TuneResult, TuningProgress
from tilewright.tuning.tuner import innermost_iterations, tolerance, winner

SCOPE = tuning_scope(native())
STALE = replace(SCOPE, rules="other rules")


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database and a cache of our own."""
    path = tmp_path / "data" / "tuning.db"
    monkeypatch.setenv("TILEWRIGHT_DB", str(path))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # one process that builds is enough, and starts sooner
    return path


def slow_schedule() -> Schedule:
    """A GEMM whose columns are computed one by one; eight at once are several times quicker."""
    s = Schedule(gemm(64, 64, 64))
    j0, j1 = s.sample_perfect_tile("C_j", 2, 16, decision=(64, 1))
    s.reorder("C_i", j0, "C_k", j1)
    s.vectorize(j1)
    return s


def matmul_model(m: int = 16, n: int = 16, k: int = 16) -> onnx.ModelProto:
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("a", (m, k)), ("b", (k, n)), ("y", (m, n)))
    ]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "g", tensors[:2], tensors[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


# ------------------------------------------------------------------------------------------------------------ tuning


def test_the_decisions_of_a_schedule_are_tuned(database: Path) -> None:
    seen: list[TuningProgress] = []
    schedule = slow_schedule()
    result = tw.tune(schedule, budget=60, progress=seen.append)
    (task,) = result.tasks
    assert task.chosen is not None and task.problem == ""
    assert task.speedup > 1.2 and result.best_seconds < result.default_seconds
    assert 1 <= result.trials == task.trials <= task.points + 16
    assert [s for _, s in result.history] == sorted((s for _, s in result.history), reverse=True)
    assert seen and seen[-1].trials == result.trials and seen[-1].tasks == 1
    best = task.schedule()
    assert str(best) != str(schedule)
    a, b = (np.random.default_rng(n).standard_normal((64, 64)).astype(np.float32) for n in range(2))
    np.testing.assert_allclose(run_func(best.func, a, b)[0], a @ b, rtol=1e-3, atol=1e-4)
    purposes = [m.purpose for m in Database(database).measurements(SCOPE, task.key)]
    assert purposes == ["default", *["trial"] * result.trials, "choice"]


def test_the_next_tuning_goes_on_where_one_ended(database: Path) -> None:
    func = gemm(8, 64, 8)
    first = tw.tune(func, trials=6, budget=60, spaces=tile_spaces)
    assert first.trials == 6 and first.tasks[0].points == 36
    again = tw.tune(gemm(8, 64, 8, "renamed"), budget=60, trials=100, spaces=tile_spaces)
    assert again.trials == 36 - 6
    rows = [m for m in Database(database).measurements(SCOPE, task_key(func, ())) if m.purpose == "trial"]
    assert len(rows) == len({tuple(m.decisions.values()) for m in rows}) == 36
    good, refused = ([m for m in rows if (m.status == "ok") is is_good] for is_good in (True, False))
    assert all(m.seconds and "Split(" in m.trace for m in good)
    assert {(m.status, m.message, m.seconds) for m in refused} == {("build_error", "too much code", None)}
    for f in (*first.failed, *again.failed):
        assert (f.status, f.reason, f.rule, f.task) == ("build_error", "too much code", "tile", f.task)
    assert len(refused) == first.failures.get("build_error", 0) + again.failures.get("build_error", 0) == 3


def test_what_an_earlier_tuning_chose_is_not_lost_without_a_comparison(database: Path) -> None:
    """Its time was measured on a busier machine, next to a default that took twice as long too."""
    with Tuning(slow_schedule(), budget=60) as tuning:
        key = tuning.tuners[0].task.key
    store = Database(database)
    store.record(SCOPE, Measurement(key, "default", "default", {}, "ok", 2.0))
    for n in range(5):
        store.record(SCOPE, Measurement(key, "trial", "trace", {"decision0": n}, "ok", 1.0 + n))
    store.record(SCOPE, Measurement(key, "choice", "trace", {"decision0": 0}, "ok", 1.0))
    store.close()
    with Tuning(slow_schedule(), budget=60) as tuning:
        tuning.run()
        (task,) = tuning.result().tasks
    assert task.trials == 0 and task.chosen is not None and task.speedup > 1.2


def test_the_schedule_of_our_own_spaces_can_be_had(database: Path) -> None:
    func = gemm(24, 32, 16)
    (task,) = tw.tune(func, budget=60, trials=4).tasks
    assert task.points > 100 and task.trials == 4
    a, b = (
        np.random.default_rng(n).standard_normal((n, m)).astype(np.float32) for n, m in ((24, 16), (16, 32))
    )
    np.testing.assert_allclose(run_func(task.schedule().func, a, b)[0], a @ b, rtol=1e-4, atol=1e-4)


def test_without_spaces_the_default_stays(database: Path) -> None:
    result = tw.tune(gemm(8, 8, 8), budget=20, spaces=empty_spaces)
    (task,) = result.tasks
    assert task.chosen is None and result.trials == 0 and math.isfinite(task.default_seconds)
    assert result.best_seconds == result.default_seconds


def empty_spaces(*_: object) -> tuple[()]:
    return ()


def test_what_cannot_be_tuned_says_so(database: Path) -> None:
    with pytest.raises(UserError, match="no decisions to tune"):
        tw.tune(Schedule(gemm(8, 8, 8)))
    with pytest.raises(UserError, match="not a time"):
        tw.tune(gemm(8, 8, 8), budget="a while")
    with pytest.raises(UserError, match="trials = 0"):
        tw.tune(gemm(8, 8, 8), trials=0)


def test_an_interrupt_keeps_what_was_found(database: Path) -> None:
    def interrupt(now: TuningProgress) -> None:
        if now.trials:
            raise KeyboardInterrupt

    with Tuning(slow_schedule(), budget=60, progress=interrupt) as tuning:
        with pytest.raises(KeyboardInterrupt):
            tuning.run()
        result = tuning.result()
    assert result.is_interrupted and result.trials > 0
    (task,) = result.tasks
    assert task.chosen is not None  # several times quicker: no comparison is needed
    assert Database(database).choice(SCOPE, task.key) == Choice(*task.chosen)


KILLED = """
import sys
sys.path.append("tests/unit")
from test_tuning import SCOPE, slow_schedule
import tilewright as tw
print(SCOPE.rules, flush=True)
tw.tune(slow_schedule(), budget=60, progress=lambda now: print(now.trials, flush=True))
"""


def test_a_kill_keeps_what_was_measured_and_leaves_no_process(database: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, env=dict(os.environ))
    assert process.stdout is not None
    scope = replace(SCOPE, rules=process.stdout.readline().decode().strip())
    while int(process.stdout.readline()) == 0:
        pass
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with Tuning(slow_schedule(), budget=1) as tuning:
        key = tuning.tuners[0].task.key
    rows = Database(database).measurements(scope, key)
    assert len([m for m in rows if m.purpose == "trial"]) > 0
    assert Database(database).choice(scope, key) is not None
    end = time.monotonic() + 20
    while any(Path(f"/proc/{c}").exists() for c in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{c}").exists() for c in children)


# ------------------------------------------------------------------------------------------------------------- using


def test_the_tasks_of_a_model_are_those_that_compilation_looks_up(database: Path) -> None:
    model = mlp((24, 16, 16, 8))
    with Tuning(model) as tuning:
        assert {t.task.key for t in tuning.tuners} == set(compiler.compile(model).tasks)
        assert sum(t.calls for t in tuning.tuners) >= len(tuning.tuners) > 1


def note_choice(model: onnx.ModelProto, rows: int, rule: str = "tile", scope: RecordScope = SCOPE) -> None:
    (func,) = lowered(model).funcs
    decisions = {"rows": rows, "columns": 16, "steps": 2}
    made = Measurement(task_key(func, ()), "choice", rule, decisions, "ok", 1e-6)
    database = api.default_database()
    database.record(scope, made)
    database.close()


def test_the_next_load_uses_what_was_found(
    database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiler, "SPACES", tile_spaces)
    caplog.set_level(logging.INFO, "tilewright")
    model = matmul_model()
    feeds = {n: np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32) for n in "ab"}

    def loaded() -> str:
        caplog.clear()
        with api.load(model, threads=1) as session:
            np.testing.assert_allclose(session.run(feeds)["y"], feeds["a"] @ feeds["b"], rtol=1e-4, atol=1e-5)
        return caplog.text

    assert "tuned" not in loaded()
    assert "tuned" not in loaded()  # from the cache
    note_choice(model, 2)
    assert "tuned: 1 kernels from the database" in loaded()
    scheduled = stages(model).scheduled.funcs[0]
    assert any(loop.extent == 8 for loop in loops(scheduled.body))  # 16 rows, two at a time
    monkeypatch.setattr("tilewright.compiler.compile_for", None)  # from the cache again
    assert "tuned: 1 kernels from the database" in loaded()


def test_every_new_choice_is_another_program(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "SPACES", tile_spaces)
    model = matmul_model()
    digests = [compiler.compile(model).tuned]
    for rows in (1, 2, 2):
        note_choice(model, rows)
        digests.append(compiler.compile(model).tuned)
    assert digests[0] == "" and len(set(digests)) == 3 and digests[2] == digests[3]


@pytest.mark.parametrize(("rule", "rows"), [("gone", 2), ("tile", 5)])
def test_a_choice_that_no_longer_applies_changes_nothing(
    database: Path, monkeypatch: pytest.MonkeyPatch, rule: str, rows: int
) -> None:
    monkeypatch.setattr(compiler, "SPACES", tile_spaces)
    model = matmul_model()
    untuned = compiler.compile(model)
    note_choice(model, rows, rule)
    made = compiler.compile(model)
    if rule == "gone":
        assert made.artifact.objects == untuned.artifact.objects
    with made.session(1) as session:
        feeds = {n: np.ones((16, 16), np.float32) for n in "ab"}
        assert np.all(session.run(feeds)["y"] == 16)


def test_choices_of_other_targets_do_not_count(database: Path) -> None:
    store = Database(database)
    store.record(SCOPE, Measurement("task", "choice", "tile", {"rows": 2}))
    other = Tuned(x86_64(l1=7), store)
    assert other.choice("task") is None
    assert other.digest == ""


def test_choices_are_looked_up_for_the_threads_that_a_target_ranks_for(database: Path) -> None:
    store = Database(database)
    store.record(SCOPE, Measurement("task", "choice", "tile", {"rows": 2}))
    store.record(SCOPE, Measurement("task", "choice", "tile", {"rows": 4}, threads=2))
    found = [Tuned(native().for_threads(n), store) for n in (1, 2, 3)]
    assert [(c := t.choice("task")) and c.decisions["rows"] for t in found] == [2, 4, 4]
    assert found[0].digest != found[1].digest == found[2].digest
    assert tuned_digest(native(), ["task"]) == found[0].digest
    assert tuned_digest(native().for_threads(2), ["task"]) == found[1].digest


def test_a_stale_choice_is_used_and_the_cache_knows(
    database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiler, "SPACES", tile_spaces)
    caplog.set_level(logging.INFO, "tilewright")
    model = matmul_model()
    api.load(model, threads=1).close()
    assert "tuned" not in caplog.text
    note_choice(model, 2, scope=STALE)
    api.load(model, threads=1).close()
    assert caplog.text.count("tuned: 1 kernels from the database") == 1
    monkeypatch.setattr("tilewright.compiler.compile_for", None)  # from the cache
    api.load(model, threads=1).close()
    assert caplog.text.count("tuned: 1 kernels from the database") == 2


def test_what_is_stale_is_verified_before_anything_else(database: Path) -> None:
    with Tuning(slow_schedule(), budget=60) as tuning:
        key = tuning.tuners[0].task.key
    (best,) = tw.tune(slow_schedule(), budget=60, database=database.with_name("other.db")).tasks
    assert best.chosen is not None
    store = Database(database)
    store.record(STALE, Measurement(key, "choice", *best.chosen, "ok", 1e-6))
    (task,) = tw.tune(slow_schedule(), budget=60, trials=2).tasks
    rows = store.measurements(SCOPE, key)
    assert [m.purpose for m in rows[:3]] == ["default", "trial", "choice"]
    assert (rows[1].rule, rows[1].decisions) == (rows[2].rule, rows[2].decisions) == best.chosen
    assert task.chosen is not None
    found = store.choice(SCOPE, key)
    assert found is not None and found == Choice(*task.chosen) and not found.is_stale


@pytest.mark.parametrize("choice", [("gone", {"n": 1}), ("trace", {"decision0": 10**6})])
def test_what_is_stale_and_no_longer_applies_is_replaced(
    database: Path, choice: tuple[str, dict[str, int]]
) -> None:
    with Tuning(slow_schedule(), budget=60) as tuning:
        key = tuning.tuners[0].task.key
    store = Database(database)
    store.record(STALE, Measurement(key, "choice", *choice, "ok", 1e-6))
    assert store.choice(SCOPE, key) == Choice(*choice)
    tw.tune(slow_schedule(), budget=60, trials=1)
    rows = store.measurements(SCOPE, key)
    decided = next(m for m in rows if m.purpose == "choice")
    assert decided.rule == "default"
    assert all(m.purpose == "default" or m.status == "build_error" for m in rows[: rows.index(decided)])
    assert store.choice(SCOPE, key) != Choice(*choice)


# ---------------------------------------------------------------------------------------------------------- going on


def interrupted_at(trials: int) -> Callable[[TuningProgress], None]:
    def interrupt(now: TuningProgress) -> None:
        if now.trials >= trials:
            raise KeyboardInterrupt

    return interrupt


def test_a_tuning_that_was_interrupted_is_resumed(database: Path) -> None:
    func = gemm(8, 64, 8)
    options: dict[str, Any] = {"spaces": tile_spaces, "database": database}
    with pytest.raises(KeyboardInterrupt):
        tw.tune(func, budget=500, progress=interrupted_at(1), **options)
    with Tuning(func, resume=True, **options) as tuning:
        assert tuning.account.budget == 500 and 0 < tuning.account.used < 500
        assert tuning.budget == 500 - tuning.account.used and tuning.account.trials > 0
        tuning.run()
        assert tuning.trials + tuning.account.trials == 36
    rows = [m for m in Database(database).measurements(SCOPE, task_key(func, ())) if m.purpose == "trial"]
    assert len(rows) == len({tuple(m.decisions.values()) for m in rows}) == 36
    with pytest.raises(UserError, match="the last tuning has ended"):
        tw.tune(func, resume=True, **options)


def test_where_there_is_nothing_to_resume(database: Path) -> None:
    func = gemm(8, 64, 8)
    options: dict[str, Any] = {"spaces": tile_spaces, "resume": True}
    with pytest.raises(UserError, match="the tuning database is not there"):
        tw.tune(func, **options)
    assert not database.exists()
    with pytest.raises(KeyboardInterrupt):
        tw.tune(func, budget=60, spaces=tile_spaces, progress=interrupted_at(1))
    with pytest.raises(UserError, match="no tuning of these kernels, for this machine and 2 threads"):
        tw.tune(func, threads=2, **options)
    with pytest.raises(UserError, match="no tuning of these kernels, for this machine and 1 thread,"):
        tw.tune(gemm(8, 64, 16), **options)
    with pytest.raises(UserError, match="s of 0 s are used"):
        tw.tune(func, budget=1e-3, **options)
    with pytest.raises(UserError, match="of 1 trials were made"):
        tw.tune(func, trials=1, **options)


def test_a_file_that_is_named_must_be_usable(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nonsense " * 1000)
    path.chmod(0o600)
    with pytest.raises(UserError, match="damaged, or no database") as e:
        tw.tune(gemm(8, 8, 8), database=path)
    assert e.value.where == str(path)
    assert path.read_text() == "nonsense " * 1000 and list(tmp_path.iterdir()) == [path]


# ------------------------------------------------------------------------------------------------------------- parts


def test_budgets() -> None:
    assert [parse_budget(b) for b in ("60s", "2m", "1.5h", "7", 3, 0.5)] == [60, 120, 5400, 7, 3, 0.5]
    for bad in ("", "s", "10x", "-3s", 0, -1, math.inf):
        with pytest.raises(UserError):
            parse_budget(bad)


def test_neither_luck_nor_a_trifle_is_a_reason_to_choose() -> None:
    def rounds(*seconds: float) -> Series:
        return Series(tuple((s,) for s in seconds))

    default = rounds(*[1.0] * 15)
    assert winner([default, rounds(*[0.9] * 13, 1.1, 1.1), rounds(*[0.95] * 15)]) == (1, 1 / 0.9)
    assert winner([default, rounds(*[0.9] * 9, *[1.1] * 6)]) == (0, 1.0)
    assert winner([default, rounds(*[0.99] * 15)]) == (0, 1.0)
    assert winner([default]) == (0, 1.0)


def test_tolerance_grows_with_the_reduction() -> None:
    short, long = (tolerance(gemm(4, 4, k)) for k in (4, 4096))
    assert 1e-6 < short < long < 1e-3
    assert innermost_iterations(gemm(3, 4, 5).body) == 60


def test_the_history_of_several_tasks_is_of_the_whole() -> None:
    lost = Failure("oom", "no memory", "a", "tile", {"rows": 4})

    def task(key: str, calls: int, history: tuple[tuple[float, float], ...]) -> TaskResult:
        first, last = history[0][1], history[-1][1]
        return TaskResult(key, key, calls, first, last, None, "", 1, 1, (lost,), history, gemm(2, 2, 2))

    result = TuneResult(
        (task("a", 2, ((0.0, 3.0), (5.0, 2.0))), task("b", 1, ((1.0, 4.0), (9.0, 1.0)))), 10.0
    )
    assert result.history == ((1.0, 10.0), (5.0, 8.0), (9.0, 5.0))
    assert (result.default_seconds, result.best_seconds, result.trials) == (10.0, 5.0, 2)
    assert result.failures == {"oom": 2} and result.tasks[0].failures == {"oom": 1}
    assert result.failed == (replace(lost, count=2),)
