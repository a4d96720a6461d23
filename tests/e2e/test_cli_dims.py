"""Open dimensions on the command line: one program for a range of sizes, made, run, timed and looked at."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from tilewright.cli.dims import DimOption, parse_dim, sizes_of
from tilewright.cli.main import main
from tilewright.cli.peak import measure_limits
from tilewright.cli.status import ExitStatus

RANGES = ("--dim", "batch=1..4", "--dim", "n=1..40")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tilewright.cli.profile.measure_limits", partial(measure_limits, seconds=0))


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Rows of 8 by a matrix, and their last three."""
    weights = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    constants = {
        "w": weights,
        "from": np.array([-3]),
        "to": np.array([1 << 40]),
        "axis": np.array([1]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Slice", ["a", "from", "to", "axis"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "n", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    initializers = [numpy_helper.from_array(a, name) for name, a in constants.items()]
    graph = helper.make_graph(nodes, "rows", [x], [y], initializers)
    path = tmp_path / "rows.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(made.SerializeToString())
    return str(path)


def call(*arguments: object, status: int = ExitStatus.OK) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result


def call_json(*arguments: object, status: int = ExitStatus.OK) -> Any:
    return json.loads(call(*arguments, "--json", status=status).stdout)


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        ("128", DimOption(128, 128, 1, (128,))),
        ("1..512", DimOption(1, 512)),
        ("0..512", DimOption(0, 512)),
        ("32..512:32", DimOption(32, 512, 32)),
        ("1..512@16,128", DimOption(1, 512, 1, (16, 128))),
        ("16,1,128,16", DimOption(1, 128, 1, (16, 1, 128))),
        *(
            (wrong, None)
            for wrong in ("", "0", "x", "1..", "5..4", "0..0", "1..4:0", "1..4@5", "2..8:2@3", "4@4")
        ),
    ],
)
def test_what_is_written(text: str, dim: DimOption | None) -> None:
    assert parse_dim(text) == dim


def test_all_combinations_of_sizes() -> None:
    dims = {"a": DimOption(1, 2, 1, (1, 2)), "b": DimOption(1, 9), "c": DimOption(3, 4, 1, (3, 4))}
    at = [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert sizes_of(dims) == [{"a": a, "c": c} for a, c in at]
    assert sizes_of({}) == [{}]


def test_a_file_for_all_sizes(model: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.tw"
    made = call_json("compile", model, *RANGES, "-o", path)
    assert [(d["name"], d["least"], d["most"]) for d in made["dims"]] == [("batch", 1, 4), ("n", 1, 40)]
    for n in (7, 40):
        (output,) = call_json("run", path, "--dim", f"n={n}", "--dim", "batch=2")["outputs"]
        assert output["shape"] == [2, 3, 5]
    (output,) = call_json("run", path)["outputs"]
    assert output["shape"] == [4, 3, 5]
    assert "n from 1 to 40" in call("inspect", path).stdout
    wrong = call("run", path, "--dim", "n=41", status=ExitStatus.USER_ERROR)
    assert "n is 41, and the program is made for n from 1 to 40" in wrong.stderr
    assert "compile the model with a wider range: --dim n=LEAST..MOST" in wrong.stderr
    wrong = call("run", path, "--dim", "n=1..60", status=ExitStatus.USER_ERROR)
    assert "n is from 1 to 60, and the program is made for n from 1 to 40" in wrong.stderr
    wrong = call("run", path, "--shape", "x=1x7x5", status=ExitStatus.USER_ERROR)
    assert "the program is made for batch from 1 to 4, n from 1 to 40" in wrong.stderr


def test_files_tell_the_sizes(model: str, tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((3, 9, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    (output,) = call_json("run", model, *RANGES, "--input", f"x={tmp_path / 'x.npy'}")["outputs"]
    assert output["shape"] == [3, 3, 5]


def test_run_and_compare_at_a_size(model: str) -> None:
    at = ("--dim", "batch=2", "--dim", "n=1..40@6")
    (output,) = call_json("run", model, *at)["outputs"]
    assert output["shape"] == [2, 3, 5]
    assert call_json("compare", model, *at)["agrees"]


def test_inspect_shows_what_is_open(model: str) -> None:
    summary = call_json("inspect", model, *RANGES)
    assert [d["text"] for d in summary["dims"]] == ["batch from 1 to 4", "n from 1 to 40"]
    assert summary["guards"] == ["2 + n * -1 < 0"]
    assert [s["name"] for s in summary["inputs"]] == ["x"]
    assert summary["inputs"][0]["sizes"] == ["batch", "n", "8"]
    assert summary["inputs"][0]["shape"] == [4, 40, 8]
    text = call("inspect", model, *RANGES).stdout
    assert "open: n from 1 to 40" in text
    assert "only for sizes with: 2 + n * -1 < 0" in text
    other = call_json("inspect", model, "--dim", "batch=1", "--dim", "n=1..40")  # no view of another range
    assert [d["name"] for d in other["dims"]] == ["n"]
    assert "n" in call("inspect", model, *RANGES, "--ir", "graph").stdout


def test_profile_at_a_size(model: str) -> None:
    made = call_json(
        "inspect",
        model,
        "--profile",
        "--seconds",
        0,
        "--threads",
        1,
        "--dim",
        "batch=2",
        "--dim",
        "n=1..40@6",
    )
    assert made["sizes"] == {"n": 6}
    assert made["kernels"]


def test_bench_times_one_program_at_each_size(model: str) -> None:
    quick = ("--rounds", 2, "--seconds", 0, "--threads", 1)
    made = call_json("bench", model, "--dim", "batch=2", "--dim", "n=4,20,9", "--against", "ort", *quick)
    assert [r["sizes"] for r in made["results"]] == [{"batch": 2, "n": n} for n in (4, 20, 9)]
    for r in made["results"]:
        assert r["error"] < 1e-5
        assert r["engines"]["tilewright"]["start_up_seconds"]["compile"] > 0
        assert "ort" in r["speedup"]
        assert r["note"] is None
    compiled = {r["engines"]["tilewright"]["start_up_seconds"]["compile"] for r in made["results"]}
    assert len(compiled) == 1
    assert "batch 2, n 4:" in call("bench", model, "--dim", "batch=2", "--dim", "n=4,9", *quick).stdout


def test_plugins_have_a_part_in_programs_for_ranges(model: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 7, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    path, plugin = str(tmp_path / "model.tw"), ("--plugin", "onnxruntime", "--policy", "greedy")
    call_json("compile", model, *RANGES, *plugin, "-o", path)
    assert call_json("inspect", path)["external"] == ["onnxruntime:0"]
    sums = [
        call_json("run", m, *options, "--input", f"x={tmp_path / 'x.npy'}")["outputs"][0]
        for m, options in ((model, RANGES), (model, (*RANGES, *plugin)), (path, ()))
    ]
    assert sums[0]["shape"] == sums[1]["shape"] == sums[2]["shape"]
    assert "onnxruntime" in call("inspect", model, *RANGES, *plugin, "--placement").stdout


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("compile", "--dim", "n=1,2"), ExitStatus.USAGE, "compile takes no sizes"),
        (("run", "--dim", "n=1,2"), ExitStatus.USAGE, "run takes one size"),
        (("run", "--dim", "n=1.."), ExitStatus.USAGE, "a range such as 1..512"),
        (("run", "--dim", "n=1..4@9"), ExitStatus.USAGE, "outside of its range"),
        (("run", "--dim", "n=1..4"), ExitStatus.USER_ERROR, "'batch' is not given"),
        (("run", "--dim", "m=1..4"), ExitStatus.USER_ERROR, "no open dimension 'm'"),
        (("run", "--dim", "n=1..4", "--shape", "x=1x4x8"), ExitStatus.USER_ERROR, "leave one of them out"),
        (("run",), ExitStatus.USER_ERROR, "with --dim"),
        (("tune", "--dim", "n=1..4"), ExitStatus.USER_ERROR, "'batch' is not given"),
    ],
)
def test_mistakes(model: str, arguments: tuple[str, ...], status: int, said: str) -> None:
    command, *options = arguments
    assert said in call(command, model, *options, status=status).stderr
