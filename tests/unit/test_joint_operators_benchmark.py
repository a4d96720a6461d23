"""The benchmark of joint tuning: operators are what their names say, and tables count right results only."""

from math import isnan
from typing import Any

import pytest

from benchmarks.joint_operator_cases import JOINT_CASES, convolution, transposed
from benchmarks.joint_operator_tables import best_peer, of_peak, page_table, ratio, section
from benchmarks.joint_operators import AS_STATED, intensity
from tilewright.driver.trace import ProgramTrace
from tilewright.frontend.onnx.load import load_graph


def cell(ms: float, error: float = 0.0) -> dict[str, object]:
    return {"median_ms": ms, "round_medians_ms": [ms, ms * 1.01, ms * 0.99], "rel_err": error}


CELLS = {
    "tilewright": cell(4.0),
    "stated": cell(3.0),
    "chosen": cell(2.0),
    "joint": cell(1.0),
    "ort": cell(1.5),
    "mnn": cell(0.5, error=0.1),
    "torch": {"error": "no such operator"},
    "peak": cell(1.0),
}


def tuned(trace: str) -> dict[str, object]:
    return {"trace": trace, "own": "[groups]\n[layouts]\nb\na\n", "trials": 24}


@pytest.mark.parametrize("name", JOINT_CASES)
def test_sizes_of_outputs_are_those_of_the_operator(name: str) -> None:
    load_graph(JOINT_CASES[name].build())  # refuses outputs of other shapes than stated


def test_operations_of_an_operator() -> None:
    assert convolution((3, 3), 8, 16, (6, 6), stride=2, groups=2).flops == 2 * 16 * 9 * 4 * 9
    assert convolution((3,), 8, 16, (6,), batch=4).flops == 2 * 4 * 16 * 6 * 8 * 3
    assert transposed((4, 4), 8, 16, (2, 2), stride=2).flops == 2 * 8 * 4 * 16 * 16
    assert intensity("dense_1x1024x1024") < 1 < 10 < intensity("gemm_512")


def test_the_stated_structure_is_a_trace() -> None:
    assert ProgramTrace.parse(str(AS_STATED)) == AS_STATED


def test_ratios_are_of_right_results() -> None:
    found = ratio(CELLS, "stated", "joint")
    assert found is not None and found.value == pytest.approx(3.0)
    assert ratio(CELLS, "mnn", "joint") is None and ratio(CELLS, "torch", "joint") is None
    assert best_peer(CELLS) == "ort"
    assert of_peak(CELLS, 50, 100.0, 1) == 0.5 and of_peak(CELLS, 50, 100.0, 2) == 0.25
    assert isnan(of_peak({"joint": cell(1.0)}, 50, 100.0, 1))


def test_the_table_has_means_and_the_worst() -> None:
    worse = {**CELLS, "joint": cell(4.0)}
    ways = {w: tuned("") for w in ("stated", "chosen")}
    found: dict[str, dict[str, Any]] = {
        "a": {"cells": CELLS, "tuned": {**ways, "joint": tuned("[layouts]\na\n[kernels]\nk\n")}},
        "b": {"cells": worse, "tuned": {**ways, "joint": tuned("[layouts]\na\nb\n")}},
        "not yet": {"tuned": {}},
    }
    text = page_table(found, lambda n: 50, lambda n: {"a": 20.0}.get(n, 1.0), 100.0, 1)
    *_, a, b, mean, worst = text.splitlines()
    assert "other layouts" in a and "1.50 [" in a and "ort" in a and "24, 24, 24" in a
    assert "the compiler's" in b
    assert "**1.50**" in mean and "**0.50**" in mean  # sqrt(3 · 3/4), and the share of the one that computes
    assert "0.75 (b)" in worst


def test_sections_of_a_trace() -> None:
    assert section("[groups]\nx\n[layouts]\nb\na\n[kernels]\n", "layouts") == ["a", "b"]
    assert section("", "layouts") == []
