"""`tilewright tune` as users meet it: what it prints, what it keeps, and with which status it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from examples.models import mlp
from tests.tile_space import tile_spaces
from tilewright.cli.main import main
from tilewright.cli.status import ExitStatus
from tilewright.driver.passes import task_key
from tilewright.driver.tuned import tuning_scope
from tilewright.lowered import lowered
from tilewright.search.database import Database, Measurement
from tilewright.target.target import native
from tilewright.tuning.insides import Insides


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data" / "tuning.db"
    monkeypatch.setenv("TILEWRIGHT_DB", str(path))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for module in ("compiler", "tuning.tune"):
        monkeypatch.setattr(f"tilewright.{module}.SPACES", tile_spaces)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_product(tmp_path, 16)


def write_product(tmp_path: Path, columns: int) -> Path:
    shapes = {"a": ("n", 16), "b": (16, columns), "y": ("n", columns)}
    a, b, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    graph = helper.make_graph([node], "g", [a, b], [y])
    path = tmp_path / "product.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    )
    return path


def call(*arguments: object, status: int = ExitStatus.OK) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result


SHAPE = ("--shape", "a=16x16")


def test_tune_tells_what_it_found_and_keeps_it(model: Path, database: Path) -> None:
    found: Any = json.loads(call("tune", model, *SHAPE, "--trials", 4, "--budget", "60s", "--json").stdout)
    (task,) = found["tasks"]
    assert found["trials"] == task["trials"] == 4 and task["points"] == 18 and not found["interrupted"]
    assert 0 < task["best_seconds"] <= task["default_seconds"] and found["history"]
    assert (task["choice"] is None) == (task["best_seconds"] == task["default_seconds"])
    kept = Database(database)
    (program,) = kept.programs()
    rows = kept.inside_trials(tuning_scope(native()), program.model, 1, task["key"])
    assert [t.status for t in rows] == ["ok"] * 4 and bool(program.trace) == found["program"]["is_kept"]
    text = call("tune", model, *SHAPE, "--trials", 2).stdout
    assert "2 trials in" in text and f"kept in {database}" in text and "1 kernels" in text


def test_a_database_can_be_named(model: Path, database: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.db"
    text = call("tune", model, *SHAPE, "--trials", 1, "--db", mine).stdout
    assert f"kept in {mine}" in text and mine.exists() and not database.exists()
    mine.write_bytes(b"nonsense" * 1000)
    result = call("tune", model, *SHAPE, "--db", mine, status=ExitStatus.USER_ERROR)
    assert "damaged, or no database" in result.stderr and str(mine) in result.stderr
    assert mine.read_bytes() == b"nonsense" * 1000


def test_resume_goes_on_with_what_was_interrupted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = call("tune", model, *SHAPE, "--resume", status=ExitStatus.USER_ERROR)
    assert "there is nothing to resume" in nothing.stderr and "leave out --resume" in nothing.stderr
    batches = iter(range(4))
    run = Insides.run

    def interrupted(self: Insides, placed: Any, runs: int) -> Any:
        if next(batches) == 3:
            raise KeyboardInterrupt
        return run(self, placed, runs)

    with monkeypatch.context() as m:
        m.setattr(Insides, "run", interrupted)
        call("tune", model, *SHAPE, "--budget", "500s", status=ExitStatus.INTERRUPTED)
    result = call("tune", model, *SHAPE, "--resume", "--json")
    assert "s of 500 s are used, 3 trials were made" in result.stderr
    found: Any = json.loads(result.stdout)
    assert found["resumed"]["trials"] == 3 and 0 < found["resumed"]["used_seconds"] < 500
    assert found["trials"] == 18 - 3
    ended = call("tune", model, *SHAPE, "--resume", status=ExitStatus.USER_ERROR)
    assert "the last tuning has ended" in ended.stderr


def test_tune_says_why_candidates_failed(tmp_path: Path) -> None:
    model = write_product(tmp_path, 64)
    found: Any = json.loads(call("tune", model, *SHAPE, "--budget", "60s", "--json").stdout)
    (failed,) = found["failed"]
    assert found["tasks"][0]["failed"] == found["failed"]
    assert failed["status"] == "build_error" and failed["reason"] == "too much code"
    assert failed["count"] == found["failures"]["build_error"] > 1
    assert failed["example"]["rule"] == "tile" and "rows" in failed["example"]["decisions"]
    os.remove(os.environ["TILEWRIGHT_DB"])
    text = call("tune", model, *SHAPE, "--budget", "60s").stdout
    assert f"  {failed['count']} build error: too much code (such as tile: rows " in text


def test_inspect_says_what_is_tuned(model: Path, database: Path) -> None:
    assert json.loads(call("inspect", model, *SHAPE, "--json").stdout)["tuned_kernels"] == 0
    (func,) = lowered(model, {"a": (16, 16)}).funcs
    decisions = {"rows": 2, "columns": 16, "steps": 2}
    Database(database).record(
        tuning_scope(native()), Measurement(task_key(func, ()), "choice", "tile", decisions)
    )
    assert json.loads(call("inspect", model, *SHAPE, "--json").stdout)["tuned_kernels"] == 1
    assert "tuned: 1 kernels from the database" in call("inspect", model, *SHAPE).stdout


def test_ctrl_c_shows_what_was_found_and_ends_with_130(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Insides, "run", interrupted)
    result = call("tune", model, *SHAPE, status=ExitStatus.INTERRUPTED)
    assert "what was measured is kept" in result.stderr
    assert "0 of 1 kernels are better" in result.stdout


def test_a_real_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    """The signal reaches the whole group, as from a terminal."""
    path = tmp_path / "mlp.onnx"
    path.write_bytes(mlp((32, 64, 32)).SerializeToString())
    process = subprocess.Popen(
        [sys.executable, "-m", "tilewright", "tune", str(path), "--budget", "1h"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end = time.monotonic() + 60
    while not (pids := children.read_text().split()) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.INTERRUPTED, err
    assert b"what was measured is kept" in err and b"kernels are better" in out and b"Traceback" not in err
    assert pids and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_mistakes(model: Path) -> None:
    assert "is not a time" in call("tune", model, "--budget", "soon", status=ExitStatus.USER_ERROR).stderr
    program = model.with_suffix(".tw")
    program.touch()
    assert "machine code only" in call("tune", program, status=ExitStatus.USER_ERROR).stderr
    call("tune", "missing.onnx", status=ExitStatus.USER_ERROR)
    call("tune", model, "--trials", 0, status=ExitStatus.USAGE)
