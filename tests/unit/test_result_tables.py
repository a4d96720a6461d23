"""Tables as users see them: of `bench`, of `inspect --profile`, and of the pages of networks and operators."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from benchmarks import operator_tables
from benchmarks.network_tables import pages
from benchmarks.results import write
from benchmarks.suite_measure import as_cells
from benchmarks.suite_results import read_results
from benchmarks.svg import bar_chart
from tilewright.cli import bench
from tilewright.cli.measure import Absent, Measured, Report
from tilewright.cli.peak import Limits
from tilewright.cli.profile import KernelProfile, Profile
from tilewright.cli.profile_table import show_profile
from tilewright.support.turns import Series

Golden = Callable[[str, str], None]


def measured(seconds: float, error: float | None, version: str = "1.0") -> Measured:
    rounds = tuple((seconds * f * 0.99, seconds * f, seconds * f * 1.2) for f in (1.0, 1.02, 1.01))
    return Measured(version, {"load": 0.25, "first_run": 0.05}, Series(rounds), 100.0, error)


def test_bench(golden: Golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "machine", lambda: SimpleNamespace(summary=lambda: "a machine, 2 cores"))
    report = Report(
        "model.onnx",
        1,
        (1,),
        {
            "tilewright": measured(0.040, 9.2e-7),
            "ort": measured(0.044, None, "1.31.1"),
            "mnn": measured(0.0401, 1.3e-3),
            "ncnn": measured(0.030, float("inf")),
        },
        {
            "openvino": Absent("openvino is not installed", "pip install openvino"),
            "torch": Absent("cannot run the model: no such operator"),
        },
        "ort",
    )
    bench.show(report, 1e-4)
    golden("bench_table.txt", capsys.readouterr().out)
    assert report.as_json()["engines"]["ncnn"]["error"] is None  # JSON knows no infinity


def test_profile(golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    made = Profile(
        2,
        (0, 1),
        25,
        0.0103,
        0.0101,
        0.99,
        Limits(200e9, 25e9),
        (
            KernelProfile(
                "k3_conv_0123456789ab", 4, 28, 0.008, 1_200_000_000, 8_000_000,
                "Winograd F(4×4, 3×3): contraction 6x16", "1x56x56x64 → 1x56x56x64",
            ),
            KernelProfile("k9_add_ba9876543210", 1, 1, 0.002, 100_352, 1_204_224, "elementwise", "1x8x8x8 → 1x8x8x8"),
            KernelProfile("k1_pad_aa9876543210", 1, 1, 0.00002, 0, 1_204_224, "copy", "1x3x8x8 → 1x3x10x10"),
            KernelProfile("k2_pad_aa9876543210", 2, 1, 0.000002, 0, 1_204, "copy", "1x3x8x8 → 1x3x10x10"),
            KernelProfile("k0_pad_aa9876543210", 1, 1, 0.000001, 0, 1_204, "fill", "1x3x10x10"),
        ),
    )  # fmt: skip
    show_profile(made)
    show_profile(replace(made, total=0.02, on_core=0.5))
    golden("profile_table.txt", capsys.readouterr().out)


# ------------------------------------------------------------------------------------------------------------ networks


def cell(ms: float, error: float = 1e-6, version: str = "1.0") -> dict[str, object]:
    rounds = [ms * f for f in (1.0, 1.04, 0.98, 1.01, 0.99)]
    return {"median_ms": ms, "round_medians_ms": rounds, "rel_err": error, "version": version}


def results(ours: float) -> dict[str, object]:
    return {
        "1": {
            "peak": cell(1.0),
            "tilewright": cell(ours, version="0.1.0"),
            "ort": cell(1.2 * ours, version="1.31.1"),
            "mnn": cell(0.5 * ours, error=3e-3),
            "openvino": {"error": "RuntimeError: cannot open /home/somebody/models/net.xml\nmore"},
        },
        "2": {"tilewright": cell(ours / 1.9), "ort": cell(1.2 * ours / 1.5)},
    }


def test_networks(golden: Golden, tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    files[0].write_text(json.dumps({"resnet18": results(40.0), "mlp": results(0.2)}))
    files[1].write_text(json.dumps({"mlp": {"1": {"ort": cell(0.3)}}, "resnet50_batch8": results(700.0)}))
    parts, charts = pages(read_results(files))
    golden("networks_page.md", "\n\n".join(parts) + "\n")
    assert list(charts) == ["networks-1.svg", "networks-2.svg"]
    assert all("resnet18" in c and "resnet50" not in c for c in charts.values())


def test_engines_have_the_names_of_bench(tmp_path: Path) -> None:
    """The suite calls Inductor with frozen weights `inductor_fz`, and XLA `jax`; so do files of ours."""
    path = tmp_path / "suite.json"
    cells = {"tilewright": cell(10.0), "inductor_fz": cell(14.0), "inductor": cell(18.0), "jax": cell(30.0)}
    path.write_text(json.dumps({"resnet18": {"1": {**cells, "ort": cell(15.0)}}}))
    (_, text, *_), charts = pages(read_results([path]))
    assert text.splitlines()[0].startswith(
        "| network | tilewright | ort | inductor | xla | inductor, not frozen | best |"
    )
    assert "| 14.00 (1.40) |" in text and "| inductor | 1.40 [" in text
    assert "resnet18, inductor: 1.40" in charts["networks-1.svg"]
    report = Report("m.onnx", 1, (1,), {"tilewright": measured(0.01, 0.0), "inductor": measured(0.02, 0.0)})
    assert list(as_cells(report)) == ["tilewright", "inductor_fz"]


def test_operators(golden: Golden, tmp_path: Path) -> None:
    def rows(ours: float) -> dict[str, object]:
        """The peak is 100 GFLOP/s a core, and we reach 80."""
        found = {
            threads: {
                "tilewright": {**cell(ours / threads), "gflop": 0.08 * ours},
                "ort": {**cell(1.1 * ours / threads), "gflop": 0.08 * ours},
                "peak": {**cell(2.0), "gflop": 0.2 * threads},
            }
            for threads in (1, 2)
        }
        return {str(threads): cells for threads, cells in found.items()}

    plain, tuned = tmp_path / "plain.json", tmp_path / "tuned.json"
    others: dict[str, dict[str, object]] = {
        "1": {"tilewright": cell(0.2), "ort": {"error": "no such operator"}, "torch": cell(0.3)},
        "2": {"tilewright": {"error": "no such kernel"}, "torch": cell(0.2)},
    }
    plain.write_text(
        json.dumps({"gemm_512": rows(3.0), "dep_3x3_32_112": others, "c2d_1x1_64_256_56": rows(1.0)})
    )
    tuned.write_text(json.dumps({"gemm_512": rows(2.5)}))
    parts = operator_tables.pages(read_results([plain]), read_results([tuned]))
    golden("operators_page.md", "\n\n".join(parts) + "\n")


def test_a_ratio_is_that_of_one_run(tmp_path: Path) -> None:
    """The machine was half as fast when the second file was measured."""
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, factor, peer in ((files[0], 1.0, "ort"), (files[1], 2.0, "mnn")):
        cells = {"tilewright": cell(10.0 * factor), peer: cell(15.0 * factor)}
        path.write_text(json.dumps({"vit_b16": {"1": cells}}))
    parts, _ = pages(read_results(files))
    assert "| vit_b16 | 20.00 | 15.00 (1.50) | 30.00 (1.50) |" in parts[1]


def test_a_wrong_result_of_ours_counts_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"net": {"1": {"tilewright": cell(1.0, error=1e-3), "ort": cell(2.0)}}}))
    parts, _ = pages(read_results([path]))
    row = next(line for line in parts[1].splitlines() if line.startswith("| net |"))
    assert "1.00†" in row and "0.00 [0.00, 0.00]" in row


def test_a_page_says_where_it_comes_from_and_not_where_files_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.results.FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["networks.py", "--from", "/home/me/a.json", "--from=/home/me/b.json"])
    text = write("page", "Title", "It is fast.", "Method.", "Part.", measured_at="1234567").read_text()
    assert "`python -m benchmarks.networks --from a.json --from=b.json`" in text
    assert "- commit: 1234567" in text and "load average" not in text
    assert text.index("It is fast.") < text.index("Part.") < text.index("Method.") < text.index("- commit")
    assert "load average" in write("page", "Title", "It is fast.", "Method.").read_text()


def test_a_bar_chart_has_a_bar_for_each_value() -> None:
    groups = {"a & b": {"ort": 1.5, "mnn": 0.5}, "c": {"ort": 2.0}}
    root = ElementTree.fromstring(bar_chart("T", "times", groups, line=1.0))
    space = "{http://www.w3.org/2000/svg}"
    titles = [e.text for e in root.iter(f"{space}title")]
    assert titles == ["a & b, ort: 1.50", "a & b, mnn: 0.50", "c, ort: 2.00"]
    bars = [
        float(e.get("height", 0)) for e in root.iter(f"{space}rect") if e.find(f"{space}title") is not None
    ]
    assert bars[0] == pytest.approx(3 * bars[1], rel=0.01) and bars[2] == pytest.approx(4 * bars[1], rel=0.01)
    assert {"a & b", "c", "ort", "mnn", "times"} <= {e.text for e in root.iter(f"{space}text")}
