"""Plugins from the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from tests.toy_plugin import Numpy
from tilewright.cli.main import main
from tilewright.plugins.registry import register_plugin, unregister_plugin

GREEDY = ("--plugin", "numpy", "--policy", "greedy")


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "tuning.db"))
    w = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 8))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 16))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    register_plugin(Numpy())
    yield tmp_path / "m.onnx"
    unregister_plugin("numpy")


def run(*arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result.output


def run_json(*arguments: object) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json"))


def test_a_model_runs_with_a_plugin(path: Path) -> None:
    with_plugin = run_json("run", path, *GREEDY, "--strict")
    assert with_plugin["outputs"][0]["name"] == "y"
    file = path.with_suffix(".tw")
    run("compile", path, "-o", file, *GREEDY)
    assert "external: numpy:0" in run("inspect", file)
    run("run", file, "--strict")


def test_placement_is_shown_and_drawn(path: Path, tmp_path: Path) -> None:
    found = run_json("inspect", path, "--placement", *GREEDY, "--svg", tmp_path / "p.svg")
    assert [r["region"] for r in found["regions"]] == ["numpy:0"]
    assert found["native_nodes"] == 1
    (refused,) = [u for u in found["units"] if u["reason"]]
    assert refused["unit"] == "Softmax" and refused["reason"] == "numpy does not care for Softmax"
    drawing = ElementTree.parse(tmp_path / "p.svg").getroot()
    titles = [t.text or "" for t in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert any("numpy does not care for Softmax" in t for t in titles)
    text = run("inspect", path, "--placement", *GREEDY)
    assert "why not" in text and "1 nodes are run by plugins, 1 by native code" in text


def test_what_does_not_go_together(path: Path) -> None:
    assert "belong together" in run("inspect", path, "--placement", status=2)
    assert "belong together" in run("inspect", path, "--plugin", "numpy", status=2)
    assert "there is no plugin 'none'" in run("run", path, "--plugin", "none", status=1)
