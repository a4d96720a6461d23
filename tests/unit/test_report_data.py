"""A report's data: what is written is read back, and what is damaged is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report_samples import made_up
from tilewright.report.data import NodeFacts, load_report, report_from_json
from tilewright.support.errors import UserError


def test_a_report_comes_back_from_json() -> None:
    report = made_up(3)
    assert report_from_json(json.loads(json.dumps(report.as_json()))) == report


def test_unknown_values_come_back_as_unknown() -> None:
    report = made_up()
    unknown = replace(report.kernels[0], flops=None, assembly=None)
    report = replace(report, kernels=(unknown, *report.kernels[1:]))
    report = replace(report, nodes=(NodeFacts("gone", "Shape", "2", 0.0, None, "folded"),), boxes=())
    report = replace(report, calls=tuple(replace(c, box=None) for c in report.calls))
    assert report_from_json(json.loads(json.dumps(report.as_json()))) == report


def _without_run(data: dict[str, Any]) -> None:
    del data["run"]


def _text_for_seconds(data: dict[str, Any]) -> None:
    data["run"]["seconds"] = "fast"


def _no_such_kernel(data: dict[str, Any]) -> None:
    data["calls"][0]["kernel"] = 99


def _no_such_text(data: dict[str, Any]) -> None:
    data["kernels"][0]["lowered"] = -1


@pytest.mark.parametrize("damage", [_without_run, _text_for_seconds, _no_such_kernel, _no_such_text])
def test_a_damaged_report_is_refused(damage: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(json.dumps(made_up().as_json()))
    damage(data)
    with pytest.raises(UserError, match="the report is damaged"):
        report_from_json(data, "kept.json")


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": "tilewright report, version 0"}'])
def test_another_file_is_no_report(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UserError, match="this is not a tilewright report of version 1") as caught:
        load_report(path)
    assert caught.value.where == str(path)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(UserError, match="no JSON text"):
        load_report(path)
    with pytest.raises(UserError, match="cannot read the report"):
        load_report(tmp_path / "absent.json")
