"""Indices out of range: brought into range by default, errors if the user asks for it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tests.onnx_cases import Array
from tilewright.cli.main import main
from tilewright.cli.status import ExitStatus
from tilewright.compiler import compile_for
from tilewright.driver.keys import program_key
from tilewright.frontend.onnx.load import load_graph
from tilewright.ops.accuracy import DEFAULT
from tilewright.runtime import file
from tilewright.runtime.session import Session
from tilewright.sessions.dynamic import DynamicSession
from tilewright.support.errors import UserError
from tilewright.target.target import AVX2, BASELINE

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def info(name: str, array: Any, shape: Any = None) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)
    return helper.make_tensor_value_info(name, kind, np.shape(array) if shape is None else shape)


def single(
    op: str, inputs: dict[str, Any], constants: dict[str, Any] | None = None, **attrs: Any
) -> ModelProto:
    """A model of one node, called after its operator."""
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    domain = attrs.pop("domain", "")
    node = helper.make_node(op, [*inputs, *(constants or {})], ["y"], name=f"my_{op}", domain=domain, **attrs)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [info(n, a) for n, a in inputs.items()], [y], stored)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def ints(*values: Any) -> Array:
    return np.array(values, np.int64)


# An operator, feeds whose indices are in range, the input that has them, a wrong one in its place, and what is said.
CASES: dict[str, tuple[str, dict[str, Any], str, Array, str, dict[str, Any]]] = {
    "gather": ("Gather", {"x": floats(5, 3), "i": ints(0, -5, 4)}, "i", ints(0, 5, 9), "9 5 -5 4", {}),
    "negative": ("Gather", {"x": floats(5, 3), "i": ints(0, -5, 4)}, "i", ints(0, -6, 1), "-6 5 -5 4", {}),
    "axis": (
        "Gather",
        {"x": floats(5, 3), "i": ints([0], [2])},
        "i",
        ints([3], [0]),
        "3 3 -3 2",
        {"axis": 1},
    ),
    "small_type": (
        "Gather",
        {"x": floats(5), "i": ints(0, 4).astype(np.int32)},
        "i",
        ints(0, 7).astype(np.int32),
        "7 5 -5 4",
        {},
    ),
    "elements": (
        "GatherElements",
        {"x": floats(3, 4), "i": ints([0, 1, 2, 0])},
        "i",
        ints([0, 1, 2, 3]),
        "3 3 -3 2",
        {},
    ),
    "several_axes": (
        "GatherND",
        {"x": floats(3, 9), "i": ints([2, 8], [-3, -9])},
        "i",
        ints([2, 8], [8, 2]),
        "8 3 -3 2",
        {},
    ),
    "last_axis": ("GatherND", {"x": floats(3, 9), "i": ints([2, 8])}, "i", ints([2, -10]), "-10 9 -9 8", {}),
    "batch": (
        "GatherND",
        {"x": floats(2, 3), "i": ints([2], [0])},
        "i",
        ints([3], [0]),
        "3 3 -3 2",
        {"batch_dims": 1},
    ),
    "scatter": (
        "ScatterElements",
        {"x": floats(4, 2), "i": ints([3, 0]), "u": floats(1, 2)},
        "i",
        ints([3, 4]),
        "4 4 -4 3",
        {},
    ),
    "scatter_slices": (
        "ScatterND",
        {"x": floats(4, 2), "i": ints([3], [0]), "u": floats(2, 2)},
        "i",
        ints([3], [-5]),
        "-5 4 -4 3",
        {},
    ),
    "regions": (
        "RoiAlign",
        {"x": floats(2, 1, 4, 4), "boxes": np.array([[0, 0, 3, 3]], np.float32), "i": ints(1)},
        "i",
        ints(-1),
        "-1 2 0 1",
        {"sampling_ratio": 1},
    ),
    "regions_on_the_host": (
        "RoiAlign",
        {"x": floats(2, 1, 4, 4), "boxes": np.array([[0, 0, 3, 3]], np.float32), "i": ints(1)},
        "i",
        ints(2),
        "2 2 0 1",
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_index_out_of_range_is_named(case: str) -> None:
    op, feeds, name, wrong, expected, attrs = CASES[case]
    model = single(op, feeds, **attrs)
    with tw.load(model, threads=1) as plain, tw.load(model, threads=1, check_indices=True) as checked:
        assert [o.name for o in checked.outputs] == ["y"]
        want = plain.run(feeds)["y"]
        np.testing.assert_array_equal(checked.run(feeds)["y"], want)
        assert list(checked.run(feeds)) == ["y"]
        plain.run({**feeds, name: wrong})
        for _ in range(2):
            with pytest.raises(UserError) as e:
                checked.run({**feeds, name: wrong})
            index, extent, first, last = expected.split()
            assert e.value.message == (
                f"node 'my_{op}' ({op}): index {index} is out of range on an axis of extent {extent}"
            )
            assert e.value.hint == f"indices have to be from {first} to {last}"
            np.testing.assert_array_equal(checked.run(feeds)["y"], want)  # it goes on


@pytest.mark.parametrize("case", [c for c in CASES if not c.startswith("regions")])
def test_onnx_runtime_refuses_the_same(case: str) -> None:
    op, feeds, name, wrong, _, attrs = CASES[case]
    judge = ort.InferenceSession(single(op, feeds, **attrs).SerializeToString())
    judge.run(None, feeds)
    with pytest.raises(Exception, match=r"(?i)out of|invalid"):
        judge.run(None, {**feeds, name: wrong})


def test_rows_of_a_quantised_table() -> None:
    x, scale = RNG.integers(0, 256, (5, 16)).astype(np.uint8), RNG.random((5, 1)).astype(np.float32)
    attrs = {"gather_axis": 0, "quantize_axis": 1, "block_size": 32, "bits": 4, "domain": "com.microsoft"}
    feeds = {"x": x, "i": ints(4), "scale": scale}
    session = tw.load(single("GatherBlockQuantized", feeds, **attrs), threads=1, check_indices=True)
    session.run(feeds)
    with pytest.raises(UserError, match="index 5 is out of range on an axis of extent 5"):
        session.run({**feeds, "i": ints(5)})


def test_one_hot_has_no_wrong_indices() -> None:
    """ONNX says what an index beyond the depth gives: all `off`."""
    values = np.array([0, 1], np.float32)
    model = single("OneHot", {"i": ints(0, 9)}, {"depth": np.int64(3), "values": values})
    session = tw.load(model, threads=1, check_indices=True)
    np.testing.assert_array_equal(session.run({"i": ints(0, 9)})["y"], [[1, 0, 0], [0, 0, 0]])


# ----------------------------------------------------------------------------------------------------- where they are


def test_constant_indices_are_checked_when_compiled() -> None:
    model = single("Gather", {"x": floats(5, 3)}, {"i": ints(0, 5)})
    tw.load(model, threads=1)
    with pytest.raises(UserError, match=r"'my_Gather'.*index 5 is out of range"):
        tw.load(model, threads=1, check_indices=True)


def embedding(*, rows: Any = 10) -> ModelProto:
    """Ids are computed from an input, and used twice."""
    nodes = [
        helper.make_node("Add", ["i", "one"], ["j"], name="next"),
        helper.make_node("Gather", ["table", "j"], ["e"], name="embed"),
        helper.make_node("Gather", ["other", "j"], ["f"], name="again"),
        helper.make_node("Add", ["e", "f"], ["y"], name="sum"),
    ]
    stored = {"one": ints(1), "table": floats(10, 4), "other": floats(10, 4)}
    graph = helper.make_graph(
        nodes,
        "g",
        [info("i", ints(0), [rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 4])],
        [numpy_helper.from_array(a, n) for n, a in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("threads", [1, 2])
def test_computed_indices(threads: int) -> None:
    session = tw.load(embedding(), threads=threads, check_indices=True)
    session.run({"i": np.arange(10) - 5})
    with pytest.raises(
        UserError, match=r"node 'embed' \(Gather\): index 10 is out of range on an axis of extent 10"
    ):
        session.run({"i": np.arange(10)})


def test_bound_arrays() -> None:
    session = tw.load(embedding(), threads=1, check_indices=True)
    ids = np.zeros(10, np.int64)
    bound = session.bind({"i": ids})
    first = bound.run()["y"].copy()
    bound.inputs["i"][3] = 9
    with pytest.raises(UserError, match="index 10"):
        bound.run()
    bound.inputs["i"][3] = 0
    np.testing.assert_array_equal(bound.run()["y"], first)
    assert list(bound.outputs) == ["y"]


def test_open_dimensions() -> None:
    session = tw.load(embedding(rows="n"), threads=1, check_indices=True)
    assert isinstance(session, DynamicSession)
    for n in (3, 4):
        assert session.run({"i": np.arange(n)})["y"].shape == (n, 4)
        with pytest.raises(UserError, match="index 12"):
            session.run({"i": np.full(n, 11)})


def test_no_indices_at_all() -> None:
    session = tw.load(embedding(rows="n"), threads=1, check_indices=True)
    assert session.run({"i": np.zeros(0, np.int64)})["y"].shape == (0, 4)


def looped() -> ModelProto:
    """What is looked up grows: from some number of lengths on it is interpreted."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Gather", ["table", "step"], ["row"], name="inner"),
            helper.make_node("Unsqueeze", ["row", "zero"], ["rows"]),
            helper.make_node("Concat", ["all", "rows"], ["more"], axis=0),
            helper.make_node("Gather", ["more", "last"], ["picked"], name="picking"),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("all", TensorProto.FLOAT, ["k", 4]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("more", TensorProto.FLOAT, ["m", 4]),
            helper.make_tensor_value_info("picked", TensorProto.FLOAT, [4]),
        ],
    )
    stored = {"table": floats(12, 4), "zero": ints(0), "start": floats(1, 4)}
    graph = helper.make_graph(
        [helper.make_node("Loop", ["times", "", "start"], ["end", "every"], name="loop", body=body)],
        "g",
        [info("times", np.int64(0)), info("last", np.int64(0))],
        [
            helper.make_tensor_value_info("end", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("every", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(a, n) for n, a in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_a_loop_that_compiles_and_interprets() -> None:
    session = tw.load(looped(), threads=1, check_indices=True)
    assert session.run({"times": np.int64(12), "last": np.int64(1)})["end"].shape == (13, 4)
    for times, last, expected in (
        (13, 0, "'inner'.*index 12"),
        (2, 2, "'picking'.*index 2"),
        (12, -4, "index -4"),
    ):
        with pytest.raises(UserError, match=expected):
            session.run({"times": np.int64(times), "last": np.int64(last)})


def test_strings_on_the_host() -> None:
    words = np.array(["a", "b"], object)
    for op, more in (("Gather", {}), ("ScatterElements", {"u": np.array(["c"], object)})):
        inputs = {"x": words, "i": ints(1), **more}
        infos = [
            helper.make_tensor_value_info(n, TensorProto.INT64 if n == "i" else TensorProto.STRING, [len(a)])
            for n, a in inputs.items()
        ]
        y = helper.make_tensor_value_info("y", TensorProto.STRING, None)
        graph = helper.make_graph([helper.make_node(op, [*inputs], ["y"], name="words")], "g", infos, [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        session = tw.load(model, threads=1, check_indices=True)
        session.run(inputs)
        with pytest.raises(UserError, match=f"node 'words' \\({op}\\): index 2 is out of range"):
            session.run({**inputs, "i": ints(2)})
        tw.load(model, threads=1).run({**inputs, "i": ints(2)})


def test_a_plugin_that_runs_the_lookup() -> None:
    session = tw.load(embedding(), threads=1, check_indices=True, plugins=["onnxruntime"], placement="greedy")
    session.run({"i": np.arange(10) - 5})
    with pytest.raises(UserError):
        session.run({"i": np.arange(10)})


# ------------------------------------------------------------------------------------------------- programs and options


def test_code_without_checks_is_as_if_there_were_no_such_option() -> None:
    plain, checked = load_graph(embedding()), load_graph(embedding(), check_indices=True)
    assert plain.checks is None and len(plain.outputs) == 1
    assert checked.checks is not None and len(checked.checks) == 1 and len(checked.outputs) == 3
    assert [n.name for n in checked.nodes][: len(plain.nodes)] == [n.name for n in plain.nodes]
    made = compile_for(BASELINE, embedding(), "", workers=0).artifact
    assert made.manifest.checks == () and "check_indices" not in made.manifest.options
    assert made.manifest.written == made.manifest.outputs


def test_programs_are_kept_apart_in_the_cache(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(embedding(), model)
    for _ in range(2):  # compiled, and then found
        for checked in (True, False):
            with tw.load(model, threads=1, check_indices=checked) as session:
                if checked:
                    with pytest.raises(UserError, match="index 10"):
                        session.run({"i": np.arange(10)})
                else:
                    session.run({"i": np.arange(10)})
    keys = {program_key("m", (), None, AVX2, DEFAULT, check_indices=c) for c in (True, False)}
    assert len(keys) == 2


def test_a_file_says_whether_it_checks(tmp_path: Path) -> None:
    plain, checked = tmp_path / "plain.tw", tmp_path / "checked.tw"
    tw.compile(embedding()).save(plain)
    tw.compile(embedding(), check_indices=True).save(checked)
    found = file.load_artifact(checked).manifest
    assert found.options["check_indices"] == "on"
    (check,) = found.checks
    assert (check.node, check.dtype, check.extents) == ("node 'embed' (Gather)", "int64", (10,))
    for wanted in (None, True):
        with (
            tw.load(checked, threads=1, check_indices=wanted) as session,
            pytest.raises(UserError, match="index 10"),
        ):
            session.run({"i": np.arange(10)})
    with pytest.raises(UserError, match="compiled without checks of indices"):
        tw.load(plain, check_indices=True)
    Session(file.load_artifact(plain), 1).run({"i": np.arange(10)})


def test_the_environment_sets_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CHECK_INDICES", "1")
    with tw.load(embedding(), threads=1) as session, pytest.raises(UserError, match="index 10"):
        session.run({"i": np.arange(10)})
    tw.load(embedding(), threads=1, check_indices=False).run({"i": np.arange(10)})
    monkeypatch.setenv("TILEWRIGHT_CHECK_INDICES", "perhaps")
    with pytest.raises(UserError, match="neither on nor off"):
        tw.load(embedding(), threads=1)


def test_the_command_line(tmp_path: Path) -> None:
    path, ids = tmp_path / "m.onnx", tmp_path / "i.npy"
    onnx.save(embedding(), path)
    np.save(ids, np.arange(10))

    def call(*arguments: object, status: int = ExitStatus.OK) -> Any:
        result = CliRunner().invoke(main, [str(a) for a in arguments])
        assert result.exit_code == status, result.output
        return result

    call("run", path, "--input", f"i={ids}")
    result = call("run", path, "--input", f"i={ids}", "--check-indices", status=ExitStatus.USER_ERROR)
    assert result.stderr == (
        "error: node 'embed' (Gather): index 10 is out of range on an axis of extent 10\n"
        "  try: indices have to be from -10 to 9\n"
    )
    program = tmp_path / "m.tw"
    assert not json.loads(call("compile", path, "-o", program, "--json").stdout)["check_indices"]
    refused = call("run", program, "--check-indices", status=ExitStatus.USER_ERROR).stderr
    assert "compile the model again with --check-indices" in refused
    assert json.loads(call("compile", path, "-o", program, "--check-indices", "--json").stdout)[
        "check_indices"
    ]
    assert "index 10" in call("run", program, "--input", f"i={ids}", status=ExitStatus.USER_ERROR).stderr
    assert "indices are checked, of 1 nodes" in call("inspect", program).stdout
    summary = json.loads(call("inspect", path, "--check-indices", "--json").stdout)
    assert summary["checked_indices"] == ["node 'embed' (Gather)"] and [
        o["name"] for o in summary["outputs"]
    ] == ["y"]
    assert json.loads(call("inspect", path, "--json").stdout)["checked_indices"] is None
    call("inspect", program, "--profile", "--seconds", 0, "--threads", 1)
    command = [sys.executable, "-m", "tilewright", "run", str(program), "--input", f"i={ids}"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == ExitStatus.USER_ERROR
