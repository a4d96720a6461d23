"""Engines in processes of their own: pinned alike, in turns, and failures are reported by engine."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fake_engines import Chatty, Dying, Flat, Hanging, Refusing, Right, Slow, Tiring, Wrong
from onnx import TensorProto, helper

from benchmarks.catalogue import ENGINES
from tilewright.cli.catalogue import NATIVE, Peer, interpreter
from tilewright.cli.engine_process import EngineFailure, EngineProcess
from tilewright.cli.guest.job import EngineJob, read_raw_array
from tilewright.cli.guest.serve import EngineServer
from tilewright.cli.guest.turn import MIN_RUNS
from tilewright.cli.measure import Report, measure
from tilewright.support.errors import UserError


def fakes(*kinds: type[Right]) -> dict[str, Peer]:
    return {
        k.__name__.lower(): Peer(
            k.__name__.lower(), k.__name__, f"fake_engines:{k.__name__}", (), "pip install it"
        )
        for k in kinds
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measure") / "relu.onnx"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 6]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


MISSING = {
    "missing": Peer("missing", "Missing", "fake_engines:Right", ("no_such_package",), "pip install it")
}


@pytest.fixture(scope="module")
def report(model: Path) -> Report:
    catalogue = fakes(Right, Slow, Wrong, Flat, Refusing, Dying, Tiring, Chatty) | MISSING
    return measure(
        model, threads=1, against=list(catalogue), rounds=3, seconds=0, timeout=60, catalogue=catalogue
    )


def test_each_engine_that_works_has_figures(report: Report) -> None:
    assert list(report.engines) == ["tilewright", "right", "slow", "wrong", "flat", "chatty"]
    for found in report.engines.values():
        assert len(found.series.rounds) == 3
        assert all(len(r) == MIN_RUNS for r in found.series.rounds)
        assert found.series.median > 0 and found.peak_mb > 1
    assert list(report.ours.start_up) == ["compile", "load", "first_run"]
    assert list(report.engines["right"].start_up) == ["load", "first_run"]
    assert report.speedup["slow"].low > 1


def test_errors_are_against_the_first_engine_without_onnx_runtime(report: Report) -> None:
    assert report.reference == "right"
    assert report.engines["right"].error is None
    assert report.error == 0
    assert report.engines["flat"].error == 0
    assert (report.engines["wrong"].error or 0) > 0.1


def test_what_is_missing_or_fails_is_told(report: Report) -> None:
    absent = {name: str(a) for name, a in report.absent.items()}
    assert absent["refusing"] == "cannot run the model: there is no Relu"
    assert absent["dying"] == "cannot run the model: the process ended with SIGABRT: last words"
    assert absent["tiring"].startswith("failed while it was timed: the process ended with status 7")
    assert "no_such_package is not installed; pip install it" in absent["missing"]
    assert "--python missing=PATH or TILEWRIGHT_PYTHON_MISSING" in absent["missing"]
    assert report.as_json()["absent"]["missing"]["hint"].startswith("pip install it")
    assert len(absent) == 4


def test_engines_of_others_need_nothing_of_ours(report: Report) -> None:
    """An interpreter that has neither tilewright nor onnx will do."""
    assert report.engines["right"].version == "alone"


def test_engines_are_pinned_alike(report: Report) -> None:
    assert len(report.cores) == report.threads == 1


def test_an_engine_that_hangs_is_ended(tmp_path: Path) -> None:
    peer = fakes(Hanging)["hanging"]
    with (
        EngineProcess(peer, interpreter("hanging", {}), 1, [0], tmp_path, timeout=2) as process,
        pytest.raises(EngineFailure, match="no answer in 2 seconds"),
    ):
        process.ask({"do": "load", **job(tmp_path), "feeds": []})


def job(folder: Path) -> dict[str, Any]:
    return {"model": "m.onnx", "threads": 1, "folder": str(folder), "shared": str(folder)}


def test_the_server_answers_with_errors_and_lives_on(tmp_path: Path) -> None:
    reports: list[dict[str, Any]] = []
    server = EngineServer("fake_engines:Right", reports.append)
    failure = server.answer({"do": "load", **job(tmp_path), "packages": ["no_such_package"], "feeds": []})
    assert failure["missing"] == "no_such_package"
    assert failure["types"][0] == "ModuleNotFoundError"
    feeds = EngineJob(**job(tmp_path)).write_feeds({"x": np.array([-1.0, 2.0])})
    answer = server.answer({"do": "load", **job(tmp_path), "feeds": feeds})
    assert reports == [{"progress": ["convert", 1, 1]}]
    assert answer["results"] == ["float64"]
    assert np.array_equal(np.load(tmp_path / "output_0.npy"), [0, 2])
    assert len(server.answer({"do": "turn", "seconds": 0})["times"]) == MIN_RUNS


def test_types_that_numpy_has_not_survive_the_file(tmp_path: Path) -> None:
    import ml_dtypes  # noqa: PLC0415

    value = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    one = EngineJob(**job(tmp_path))
    ((_, dtype),) = one.write_feeds({"x": value})
    assert np.array_equal(read_raw_array(one.feed(0), dtype), value)


def test_the_interpreter_is_that_of_the_option_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_PYTHON_ORT", raising=False)
    assert interpreter("ort", {}) == sys.executable
    monkeypatch.setenv("TILEWRIGHT_PYTHON_ORT", "/bin/sh")
    assert interpreter("ort", {}) == "/bin/sh"
    assert interpreter("ort", {"ort": sys.executable}) == sys.executable
    with pytest.raises(UserError, match="no interpreter '/no/python' for ort"):
        interpreter("ort", {"ort": "/no/python"})


def test_a_class_of_another_package_is_an_engine(model: Path) -> None:
    """Given by its place on the path; it is called after the class."""
    report = measure(model, threads=1, against=["fake_engines:Right"], rounds=1, seconds=0, timeout=60)
    assert list(report.engines) == ["tilewright", "right"]
    assert report.error == 0


def test_another_interpreter_finds_a_class_in_pythonpath_or_in_the_folder_that_the_engine_names(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts in another folder than ours, and has nothing of our path."""
    tests = Path(__file__).parents[1]
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    pythons = {"right": str(other)}

    def engines(peer: Peer | None) -> list[str]:
        catalogue = {} if peer is None else {"right": peer}
        name = "fake_engines:Right" if peer is None else "right"
        options: dict[str, Any] = {"rounds": 1, "seconds": 0, "timeout": 60, "catalogue": catalogue}
        return list(measure(model, threads=1, against=[name], pythons=pythons, **options).engines)

    monkeypatch.setenv("PYTHONPATH", "")
    assert engines(None) == ["tilewright"]
    source = Peer("right", "Right", "fake_engines:Right", (), "", str(tests))
    assert engines(source) == ["tilewright", "right"]
    monkeypatch.chdir(tests)
    monkeypatch.setenv("PYTHONPATH", ".")
    assert engines(None) == ["tilewright", "right"]


def test_every_engine_of_the_benchmarks_has_code_and_a_way_to_install_it() -> None:
    for name, peer in ENGINES.items():
        if peer is NATIVE:  # there with us
            continue
        module, _, kind = peer.source.replace("tilewright_guest", "tilewright.cli.guest").partition(":")
        assert hasattr(import_module(module), kind), name
        assert peer.install.startswith("pip install ") and peer.packages
