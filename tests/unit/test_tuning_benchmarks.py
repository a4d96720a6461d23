"""Benchmarks of tuning: what they read and count."""

from pathlib import Path
from typing import Any

from benchmarks.candidate_rate import few_table, kinds_table, points_table, rates_table, too_few
from benchmarks.metaschedule import COLUMNS, curves, row
from benchmarks.metaschedule_records import drop_cut_line, read_records
from benchmarks.tuner_kills import problems_text, summary


def cell(ms: float) -> dict[str, Any]:
    return {"median_ms": ms, "round_medians_ms": [ms] * 3, "rel_err": 0.0}


def kernel(name: str, share: float, points: int, kind: str = "gemm, sum over 1") -> dict[str, Any]:
    return {"kernel": name, "kind": kind, "calls": 1, "share": share, "points": points}


NETWORKS = {
    "one": [kernel("a", 0.6, 500), kernel("b", 0.3, 12, "stream"), kernel("c", 0.005, 1)],
    "two": [],
}


def test_records_of_metaschedule(tmp_path: Path) -> None:
    lines = [
        '[0, ["t", [0.002, 0.003], "llvm", []]]',
        '[1, ["t", [0.5], "llvm", []]]',
        '[0, ["t", [0.001], "llvm", []]]',
        '[0, ["t", [10000000000.0], "llvm", []]]',
        '[0, ["t", null, "llvm", []]]',
        '[0, ["t", [0.0',
    ]
    path = tmp_path / "records.json"
    path.write_text("\n".join(lines))
    found = read_records(path.read_text().splitlines())
    assert (found.candidates, found.failed, found.best) == (5, 2, {0: 0.001, 1: 0.5})
    drop_cut_line(path)
    assert path.read_text().splitlines() == lines[:-1]


def test_the_table_and_the_curves_of_metaschedule() -> None:
    result = {
        "tvm": {
            "elapsed_seconds": 10.0,
            "candidates": 64,
            "failed": 2,
            "workloads": 1,
            "history": [(1.0, 0, 0, 0), (5.0, 64, 0.004, 1)],
        },
        "tilewright": {"trials": 100, "elapsed_seconds": 10.0, "history": [(1.0, 0.002), (2.0, 0.001)]},
        "cells": {"tilewright": cell(2.0), "tuned": cell(1.0), "tvm_tuned": cell(3.0), "tvm": {"error": "x"}},
    }
    made = row("gemm", result)
    assert len(made) == len(COLUMNS)
    assert made[:6] == ["gemm", "2.000", "1.000", "failed", "3.000", "3.00 [3.00, 3.00]"]
    assert made[6:] == ["100", "10.0", "64 (2)", "6.4"]
    lines = curves({"gemm": result})
    assert lines == {"gemm": [(1.0, 1.0), (2.0, 0.5)], "gemm, MetaSchedule": [(5.0, 2.0)]}


def test_kernels_with_too_few_points_are_those_that_count() -> None:
    assert [(n, k["kernel"]) for n, k in too_few(NETWORKS)] == [("one", "b")]
    *_, one, two = points_table(NETWORKS).splitlines()
    assert one == "| one | 2 | 90% | 1 | 30% | 12 (b, stream, 30.0%) |"
    assert "no program" in two
    assert few_table(NETWORKS).splitlines()[-1] == "| b | one | stream | 30.0% | 12 |"
    assert kinds_table(NETWORKS).splitlines()[2] == "| gemm, sum over 1 | 1 | 500 | 500 |"


def test_rates() -> None:
    rates = {
        "gemm": {"kernel": "a", "microseconds": 12.4, "trials": 48, "failed": 1, "elapsed_seconds": 4.0},
        "chain": {"kernel": "b", "trials": 0, "failed": 0, "elapsed_seconds": 1.0, "problem": "no reference"},
    }
    *_, gemm, chain = rates_table(rates).splitlines()
    assert gemm == "| gemm | a | 12 | 48 | 1 | 12.0 |" and "no reference" in chain


def test_the_summary_of_kills() -> None:
    kill: dict[str, Any] = {
        "is_early": False,
        "is_resumed": True,
        "lost_rows": 0,
        "largest_run": 4,
        "problems": [],
    }
    pieces = [
        [{**kill, "measured": 10, "lost": 0}, {**kill, "measured": 30, "lost": 3}],
        [{**kill, "measured": 7, "lost": 1, "is_early": True, "problems": ["damaged"]}],
    ]
    lines = dict(line.strip("| ").rsplit(" | ", 1) for line in summary(pieces).splitlines()[2:])
    assert lines["kills"] == "3" and lines["measurements"] == "37" and lines["measurements lost"] == "4"
    assert lines["lost in a kill, at most"] == "3" and lines["the largest run"] == "4"
    assert lines["kills after which something was wrong"] == "1"
    assert "damaged" in problems_text(pieces)[0] and problems_text(pieces[:1]) == []
