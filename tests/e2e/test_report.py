"""`tilewright report`: time is attributed to nodes of the model, and what is written can be read again."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner, Result

from examples.models import transformer_encoder
from tests.report_samples import small_cnn
from tilewright.cli.main import main
from tilewright.report.data import ReportData, load_report
from tilewright.report.page import MOST_BYTES

MODELS: dict[str, Any] = {"cnn": small_cnn, "transformer": lambda: transformer_encoder(1, 32, 2, 16)}


def invoke(*args: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, args)])


@pytest.fixture(scope="module", params=list(MODELS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReportData]:
    """A folder with model, page and data; and the data."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "m.onnx").write_bytes(MODELS[request.param]().SerializeToString())
    done = invoke(
        folder / "m.onnx",
        "-o",
        folder / "m.html",
        "--data",
        folder / "m.json",
        "--threads",
        1,
        "--seconds",
        0,
    )
    assert done.exit_code == 0, done.output
    return folder, load_report(folder / "m.json")


def test_time_belongs_to_nodes_of_the_model(made: tuple[Path, ReportData]) -> None:
    folder, report = made
    assert report.run.kernel_seconds > 0
    assert report.attributed >= 0.95
    assert sum(n.seconds for n in report.nodes) == pytest.approx(report.run.attributed_seconds)
    assert sum(c.seconds for c in report.calls) == pytest.approx(report.run.kernel_seconds)
    assert sum(k.seconds for k in report.kernels) == pytest.approx(report.run.kernel_seconds)
    names = {n.name for n in _onnx_nodes(folder / "m.onnx")}
    assert {n.name for n in report.nodes} == names


def test_contractions_have_the_work_and_their_own_names(made: tuple[Path, ReportData]) -> None:
    """Also those that a pass has taken out: a Conv whose BatchNormalization took its place, MatMuls that became one."""
    _, report = made
    heavy = [n for n in report.nodes if n.op in ("Conv", "MatMul", "Gemm")]
    assert all(n.box is not None and n.seconds > 0 for n in heavy)
    for n in heavy:
        assert n.box is not None
        inside = [report.nodes[i] for i in report.boxes[n.box].nodes]
        light = [m for m in inside if m.op in ("Relu", "BatchNormalization", "Reshape", "Transpose")]
        assert all(m.seconds <= n.seconds for m in light)


def test_the_page_is_small_and_kernels_are_described(made: tuple[Path, ReportData]) -> None:
    folder, report = made
    assert (folder / "m.html").stat().st_size <= MOST_BYTES
    slow = max(report.kernels, key=lambda k: k.seconds)
    assert slow.lowered is not None and "def " in report.texts[slow.lowered]
    assert slow.assembly is not None and "%" in report.texts[slow.assembly]
    assert slow.family and slow.flops
    assert len(report.boxes) < len(report.nodes)
    assert all(r < n for n, b in enumerate(report.boxes) for r in b.reads)
    assert any(b.reads for b in report.boxes)


def test_a_kept_report_is_shown_again(made: tuple[Path, ReportData], tmp_path: Path) -> None:
    folder, report = made
    done = invoke(
        folder / "m.json", "-o", tmp_path / "again.html", "--json", "--chrome-trace", tmp_path / "t.json"
    )
    assert done.exit_code == 0, done.output
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == len(report.timeline.spans) > 0
    assert json.loads(done.stdout) == json.loads((folder / "m.json").read_text())
    assert (tmp_path / "again.html").read_text() == (folder / "m.html").read_text()
    assert report.model.name == "m.onnx"


def test_a_compiled_program_has_times_and_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(small_cnn().SerializeToString())
    program, page = tmp_path / "m.tw", tmp_path / "m.html"
    assert CliRunner().invoke(main, ["compile", str(tmp_path / "m.onnx"), "-o", str(program)]).exit_code == 0
    done = invoke(program, "-o", page, "--threads", 1, "--seconds", 0, "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["kernels"] and not data["boxes"] and not data["nodes"]
    assert "A compiled program holds machine code only" in data["missing"][0]
    assert "A compiled program holds machine code only" in page.read_text()


def test_a_run_is_compared_with_an_earlier_one(made: tuple[Path, ReportData], tmp_path: Path) -> None:
    folder, report = made
    page = tmp_path / "m.html"
    done = invoke(folder / "m.json", "--compare", folder / "m.json", "-o", page, "--json")
    assert done.exit_code == 0, done.output
    compared = json.loads(done.stdout)["comparison"]
    assert compared["count"] == len(report.nodes)
    assert "1.00 times as fast" in page.read_text()
    done = invoke(folder / "m.json", "--compare", folder / "m.html", "-o", page)
    assert done.exit_code == 1
    assert "no JSON text" in done.output


def test_pages_that_cannot_be_written_are_the_users_fault(
    made: tuple[Path, ReportData], tmp_path: Path
) -> None:
    folder, _ = made
    done = invoke(folder / "m.json", "-o", tmp_path / "absent" / "m.html")
    assert done.exit_code == 1
    assert "cannot write m.html" in done.output


def _onnx_nodes(path: Path) -> Any:
    return onnx.load(path).graph.node
