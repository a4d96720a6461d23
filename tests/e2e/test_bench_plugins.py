"""`tilewright bench` of programs with plugins."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from examples.models import mlp
from tilewright.cli import bench
from tilewright.cli.main import main
from tilewright.cli.measure import Measured, Plugins, Report
from tilewright.cli.status import ExitStatus
from tilewright.support.turns import Series

pytest.importorskip("onnxruntime")

QUICK = ("--rounds", 2, "--seconds", 0, "--threads", 1)
GREEDY = ("--plugin", "onnxruntime", "--policy", "greedy", "--strict")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "mlp.onnx"
    path.write_bytes(mlp((8, 16, 4)).SerializeToString())
    return path


def call(*arguments: object, status: int = ExitStatus.OK) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result


def one(*arguments: object) -> dict[str, Any]:
    (report,) = json.loads(call("bench", *arguments, *QUICK, "--json").stdout)["results"]
    return report


@pytest.mark.slow
def test_regions_are_told_and_compared_with_native_code(model: Path) -> None:
    report = one(model, *GREEDY, "--against", "native")
    assert set(report["engines"]) == {"tilewright", "native"} and report["absent"] == {}
    assert report["reference"] == "native" and report["error"] < 1e-5
    plugins = report["plugins"]
    assert (plugins["names"], plugins["policy"]) == (["onnxruntime"], "greedy")
    (region,) = plugins["regions"]
    assert (region["region"], region["plugin"]) == ("onnxruntime:0", "onnxruntime") and region["version"]


@pytest.mark.slow
def test_placement_may_be_measured(model: Path) -> None:
    report = one(model, "--plugin", "onnxruntime")
    assert report["plugins"]["policy"] == "measured"
    assert report["plugins"]["regions"] is not None


def test_a_program_has_its_plugins(model: Path, tmp_path: Path) -> None:
    program = tmp_path / "m.tw"
    call("compile", model, "-o", program, *GREEDY)
    text = call("bench", program, *QUICK, "--strict").stdout
    assert "tilewright + onnxruntime" in text
    assert "onnxruntime:" not in text and " runs 1 region\n" in text


def test_native_code_alone_has_none(model: Path) -> None:
    assert one(model)["plugins"] is None


def test_a_plugin_that_does_not_exist_is_the_users_fault(model: Path) -> None:
    result = call("bench", model, *QUICK, "--plugin", "nonesuch", status=ExitStatus.USER_ERROR)
    assert "there is no plugin 'nonesuch'" in result.stderr


def shown(plugins: Plugins, capsys: pytest.CaptureFixture[str]) -> str:
    ours = Measured("1.0", {"load": 0.25, "first_run": 0.05}, Series(((0.001, 0.002),)), 100.0)
    bench.show(Report("m.onnx", 1, (0,), {"tilewright": ours}, plugins=plugins), 1e-4)
    return capsys.readouterr().out


def test_who_runs_what_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    two = {"a:0": ("a", "1.5"), "a:1": ("a", "1.5")}
    text = shown(Plugins(("a", "b"), "measured", two), capsys)
    assert "tilewright + a " in text
    assert "plugins, measured: a 1.5 runs 2 regions, b runs nothing\n" in text
    text = shown(Plugins(("a",), "greedy", {}), capsys)
    assert "+" not in text and "plugins, greedy: a runs nothing\n" in text
    text = shown(Plugins(("a",), "measured", None), capsys)
    assert "plugins, measured: a, in a program for each part of the model\n" in text
