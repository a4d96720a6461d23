"""`inspect --traffic`: bytes of every kernel at every level, beside its time, and a drawing of how values flow."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from tilewright.cli.main import main
from tilewright.cli.status import ExitStatus

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A softmax of 64 x 256."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 256]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "g", info[:1], info[1:])
    opsets = [helper.make_opsetid("", 18)]
    path = tmp_path / "softmax.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def call(*arguments: object, status: int = ExitStatus.OK) -> str:
    result = CliRunner().invoke(main, ["inspect", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.stdout


def found(*arguments: object) -> dict[str, Any]:
    return json.loads(call(*arguments, "--traffic", "--json"))


def test_a_kernel_must_move_its_inputs_and_outputs(model: Path) -> None:
    shown = found(model)
    assert shown["total"]["must_move_bytes"] == 2 * 4 * 64 * 256
    assert set(shown["total"]["moved_bytes"]) == {"L1", "L2", "L3", "memory"}
    assert shown["total"]["measured_seconds"] is None


def test_times_are_measured_if_it_is_profiled_too(model: Path) -> None:
    shown = found(model, "--profile", "--seconds", "0", "--threads", "1")
    assert shown["total"]["measured_seconds"] > 0
    assert all(k["bound_by"] for k in shown["kernels"])


def test_the_table_has_a_row_for_all(model: Path) -> None:
    lines = call(model, "--traffic").splitlines()
    assert "must move" in lines[0]
    assert any(line.startswith("all ") for line in lines)


def test_values_that_stayed_near_are_drawn_so(model: Path, tmp_path: Path) -> None:
    call(model, "--traffic", "--svg", tmp_path / "flow.svg")
    drawing = ElementTree.parse(tmp_path / "flow.svg").getroot()
    boxes = [r.get("class", "") for r in drawing.iter(f"{SVG}rect") if "box" in r.get("class", "")]
    before, after = boxes[: len(boxes) // 2], boxes[len(boxes) // 2 :]
    assert all("memory" in b for b in before)
    assert sum("memory" in b for b in after) == 2
    assert any("registers" in b for b in after)


def test_a_model_that_the_host_runs_has_nothing_to_draw(model: Path, tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(n, t, s) for n, t, s in (("x", 1, [4]), ("y", 7, [1, None])))
    graph = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), model)
    assert found(model)["kernels"] == []
    call(model, "--traffic", "--svg", tmp_path / "flow.svg", status=ExitStatus.USER_ERROR)


@pytest.mark.parametrize("other", [["--ir", "tir"], ["--trace"], ["--kernel", "y"]], ids=str)
def test_other_views_are_refused_beside_it(model: Path, other: list[str]) -> None:
    call(model, "--traffic", *other, status=ExitStatus.USAGE)


def test_a_compiled_program_has_no_loops_to_look_at(tmp_path: Path) -> None:
    (tmp_path / "p.tw").write_bytes(b"")
    call(tmp_path / "p.tw", "--traffic", status=ExitStatus.USER_ERROR)
