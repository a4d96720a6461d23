"""The command line as users and scripts meet it: what is printed where, and with which status it ends."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from examples.demo import demo
from examples.models import mlp
from tilewright.cli.main import main
from tilewright.cli.output import progress_bar
from tilewright.cli.peak import measure_limits
from tilewright.cli.status import ExitStatus

QUICK = ("--rounds", "2", "--seconds", "0")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tilewright.cli.profile.measure_limits", partial(measure_limits, seconds=0))


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(mlp((8, 16, 4)).SerializeToString())
    return str(path)


def call(*arguments: object, status: int = ExitStatus.OK) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result


def call_json(*arguments: object, status: int = ExitStatus.OK) -> Any:
    return json.loads(call(*arguments, "--json", status=status).stdout)


# ---------------------------------------------------------------------------------------------------------------- run


def test_run_describes_the_outputs(model: str) -> None:
    lines = call("run", model).stdout.splitlines()
    assert lines[0].split() == ["output", "type", "shape", "min", "max", "mean"]
    assert lines[1].split()[:3] == ["y", "float32", "1x4"]
    (output,) = call_json("run", model)["outputs"]
    assert output["shape"] == [1, 4]
    assert output["min"] <= output["mean"] <= output["max"]


def test_a_model_in_which_the_host_has_a_part(tmp_path: Path) -> None:
    path = tmp_path / "where.onnx"
    nodes = [helper.make_node("NonZero", ["x"], ["p"], name="places"), helper.make_node("Neg", ["p"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    graph = helper.make_graph(nodes, "where", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    summary = call_json("inspect", path)
    assert summary["host"] == [
        {"node": "places", "op": "NonZero", "why": "the shape of its result depends on data"}
    ]
    assert summary["nodes_after_host"] == 1
    assert "depends on data" in call("inspect", path).stdout
    (output,) = call_json("run", path)["outputs"]
    assert output["shape"] == [2, 12]
    (found,) = call_json("bench", path, *QUICK, "--against", "ort", "--threads", 1)["results"]
    assert found["error"] == 0
    profile = call_json("inspect", path, "--profile", "--seconds", 0, "--threads", 1)
    assert profile["host"][0]["op"] == "NonZero" and profile["nodes_after_host"] == 1
    result = call("compile", path, "-o", tmp_path / "where.tw", status=ExitStatus.USER_ERROR)
    assert "node 'places': NonZero" in result.stderr
    assert "try: `tilewright run` runs such models" in result.stderr


def test_open_dimensions_need_a_shape_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "open.onnx"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "open", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    assert "--shape" in call("run", path, status=ExitStatus.USER_ERROR).stderr
    for command in ("compile", "inspect", "tune"):
        message = call(command, path, status=ExitStatus.USER_ERROR).stderr
        assert "try: pass its shape, for example --shape x=1\n" in message and "shapes=" not in message
    assert call_json("run", path, "--shape", "x=5")["outputs"][0]["shape"] == [5]
    np.save(tmp_path / "x.npy", np.ones(7, np.float32))
    assert call_json("run", path, "--input", f"x={tmp_path / 'x.npy'}")["outputs"][0]["shape"] == [7]


def test_run_depends_on_the_seed_only(model: str) -> None:
    first, again, other = (call("run", model, "--seed", s).stdout for s in (1, 1, 2))
    assert first == again != other


def test_run_reads_inputs_and_writes_outputs(model: str, tmp_path: Path) -> None:
    x, y = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(x, np.zeros((1, 8), np.float32))
    call("run", model, "--input", f"x={x}", "--output", f"y={y}")
    assert np.load(y).shape == (1, 4)
    call("run", model, "--input", f"x={x}", "--expect", f"y={y}")
    np.save(y, np.load(y) + 1)
    result = call("run", model, "--input", f"x={x}", "--expect", f"y={y}", status=ExitStatus.MISMATCH)
    assert "y differs" in result.stderr


def test_run_takes_the_shape_that_a_file_leaves_open(tmp_path: Path) -> None:
    proto = mlp((8, 4))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    path = tmp_path / "open.onnx"
    path.write_bytes(proto.SerializeToString())
    (output,) = call_json("run", path, "--shape", "x=3x8")["outputs"]
    assert output["shape"] == [3, 4]


# ------------------------------------------------------------------------------------------------- compile and inspect


def test_a_compiled_program_gives_the_same_bits(model: str, tmp_path: Path) -> None:
    program, y = tmp_path / "m.tw", tmp_path / "y.npy"
    report = call_json("compile", model, "-o", program)
    assert report["file_bytes"] == program.stat().st_size > report["code_bytes"] > 0
    assert report["seconds"]["total"] >= max(report["seconds"].values())
    call("run", model, "--output", f"y={y}")
    call("run", program, "--expect", f"y={y}", "--tolerance", 0)
    of_program, of_model = (call_json("inspect", path)["kernels"] for path in (program, model))
    assert [(k["name"], k["parts"]) for k in of_program] == [(k["name"], k["parts"]) for k in of_model]
    result = call("inspect", program, "--ir", "graph", status=ExitStatus.USER_ERROR)
    assert "inspect the .onnx file" in result.stderr


def test_compile_names_the_program_after_the_model(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "mlp.tw" in call("compile", model).stdout
    assert (tmp_path / "mlp.tw").exists()


def test_inspect_summarises(model: str) -> None:
    summary = call_json("inspect", model)
    assert [s["name"] for s in summary["inputs"] + summary["outputs"]] == ["x", "y"]
    assert summary["kernels"]
    multiply_adds = 8 * 16 + 16 * 4
    assert 2 * multiply_adds <= summary["flops"] < 4 * multiply_adds
    assert summary["weights_bytes"] >= 4 * (8 * 16 + 16 + 16 * 4 + 4)
    text = call("inspect", model).stdout
    assert all(k["name"] in text for k in summary["kernels"])


@pytest.mark.parametrize(
    ("stage", "sign"),
    [
        ("graph", "1, 8"),
        ("tir", "def "),
        ("scheduled", "def "),
        ("lowered", "def "),
        ("llvm", "define "),
        ("asm", "ret"),
    ],
)
def test_inspect_prints_every_stage(model: str, stage: str, sign: str) -> None:
    text = call("inspect", model, "--ir", stage).stdout
    assert sign in text
    assert call_json("inspect", model, "--ir", stage)["text"].strip() == text.strip()


def test_inspect_picks_a_kernel(model: str) -> None:
    kernels = [k["name"] for k in call_json("inspect", model)["kernels"]]
    text = call("inspect", model, "--ir", "llvm", "--kernel", kernels[0]).stdout
    assert text in call("inspect", model, "--ir", "llvm").stdout
    result = call("inspect", model, "--ir", "llvm", "--kernel", "nonsense", status=ExitStatus.USER_ERROR)
    assert kernels[0] in result.stderr
    digest = kernels[0].rpartition("_")[2]
    assert call("inspect", model, "--ir", "llvm", "--kernel", digest).stdout == text
    result = call("inspect", model, "--ir", "llvm", "--kernel", "_", status=ExitStatus.USER_ERROR)
    assert "several kernels have '_' in their names" in result.stderr and kernels[1] in result.stderr
    call("inspect", model, "--kernel", kernels[0], status=ExitStatus.USAGE)


def test_inspect_profiles(model: str, tmp_path: Path) -> None:
    program = tmp_path / "m.tw"
    call("compile", model, "-o", program)
    found, bare = (
        call_json("inspect", p, "--profile", "--seconds", 0, "--threads", 1) for p in (model, program)
    )
    assert found["total_seconds"] == pytest.approx(found["kernel_seconds"] + found["outside_seconds"])
    assert {k["name"] for k in found["kernels"]} == {k["name"] for k in bare["kernels"]}
    assert all(k["bytes"] > 0 and k["layout"] for k in found["kernels"])
    assert all(k["bytes"] is None for k in bare["kernels"])
    text = call("inspect", model, "--profile", "--seconds", 0).stdout
    assert all(k["name"] in text for k in found["kernels"])
    assert "GB/s read from memory" in text


# ---------------------------------------------------------------------------------------------------- bench and doctor


def test_bench_separates_the_phases(model: str) -> None:
    (report,) = call_json("bench", model, *QUICK, "--threads", 1)["results"]
    ours = report["engines"]["tilewright"]
    assert list(ours["start_up_seconds"]) == ["compile", "load", "first_run"]
    assert 0 < ours["median_seconds"] <= ours["p90_seconds"] <= ours["p99_seconds"]
    assert 0 < ours["low_seconds"] <= ours["high_seconds"]
    assert len(ours["round_medians_seconds"]) == 2
    assert (report["speedup"], report["absent"], report["error"]) == ({}, {}, None)


def test_bench_against_onnx_runtime(model: str) -> None:
    (report,) = call_json("bench", model, *QUICK, "--against", "ort", "--threads", 1)["results"]
    assert set(report["engines"]) == {"tilewright", "ort"}
    assert report["reference"] == "ort"
    assert report["error"] < 1e-5
    ratio = report["speedup"]["ort"]
    assert ratio["low"] <= ratio["value"] <= ratio["high"]


def test_bench_shows_each_number_of_threads(model: str) -> None:
    """An engine that is not there is named, with the way to get it, and is no error."""
    text = call(
        "bench", model, *QUICK, "--against", "ort,benchmarks.engines.ncnn:Ncnn", "--threads", "1,2"
    ).stdout
    assert text.count("reference") == 2
    assert "1 thread(s) pinned" in text and "2 thread(s) pinned" in text
    assert (
        "ncnn is not installed; put benchmarks.engines.ncnn into PYTHONPATH, and install what it imports"
        in text
    )


def test_bench_of_differing_results_is_a_mismatch(model: str) -> None:
    result = call(
        "bench",
        model,
        *QUICK,
        "--against",
        "ort",
        "--threads",
        1,
        "--tolerance",
        -1,
        status=ExitStatus.MISMATCH,
    )
    assert "results differ" in result.stderr


def test_bench_refuses_more_threads_than_cores(model: str) -> None:
    assert "usable core" in call("bench", model, "--threads", 1000, status=ExitStatus.USER_ERROR).stderr


def test_bench_cannot_compare_a_program(model: str, tmp_path: Path) -> None:
    program = tmp_path / "m.tw"
    call("compile", model, "-o", program)
    (report,) = call_json("bench", program, *QUICK, "--threads", 1)["results"]
    assert list(report["engines"]["tilewright"]["start_up_seconds"]) == ["load", "first_run"]
    assert (
        "give the .onnx file"
        in call("bench", program, "--against", "ort", status=ExitStatus.USER_ERROR).stderr
    )


def test_doctor_finds_this_machine_fit() -> None:
    report = call_json("doctor", "--peak")
    assert report["ok"], report["findings"]
    assert {"compiler", "cache", "arithmetic"} <= {f["name"] for f in report["findings"]}
    assert "GFLOP/s" in call("doctor", "--peak").stdout


def test_doctor_reports_a_broken_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("no executable memory")

    monkeypatch.setattr("tilewright.cli.doctor.load", broken)
    report = call_json("doctor", status=ExitStatus.USER_ERROR)
    assert "no executable memory" in next(f["detail"] for f in report["findings"] if f["ok"] is False)


def test_probe_measures_a_fresh_process(model: str) -> None:
    for engine in ("tilewright", "ort"):
        # A process of its own: one that has run before may need no more memory than it has.
        command = [sys.executable, "-m", "benchmarks.probe", model, "--engine", engine, "--threads", "1"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert found["load_seconds"] > 0
        assert found["peak_mb"] > 0


@pytest.mark.parametrize("is_small", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_demo_succeeds(is_small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_small:
        monkeypatch.setattr("examples.demo.resnet18", lambda size: mlp((size, 16, 4)))
    result = CliRunner().invoke(demo, ["--size", "32", "--threads", "1", *QUICK])
    assert result.exit_code == ExitStatus.OK, result.output
    assert "memory at its peak" in result.output


def test_another_process_finds_the_program_in_the_cache(model: str, tmp_path: Path) -> None:
    """Whatever order sets have there."""
    found: list[set[str]] = []
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "tilewright", "run", model]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True)
        found.append({p.name for p in (tmp_path / "cache").iterdir()})
    assert found[0] == found[1] != set()


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("command", ["run", "compile", "inspect", "bench", "compare"])
def test_a_missing_file_is_the_users_fault(command: str, tmp_path: Path) -> None:
    result = call(command, tmp_path / "absent.onnx", status=ExitStatus.USER_ERROR)
    assert "absent.onnx" in result.stderr
    assert "Traceback" not in result.output


def test_a_damaged_file_is_the_users_fault(tmp_path: Path) -> None:
    for name in ("damaged.onnx", "damaged.tw"):
        (tmp_path / name).write_bytes(b"\xff" * 100)
        assert name in call("run", tmp_path / name, status=ExitStatus.USER_ERROR).stderr


@pytest.mark.parametrize(
    "options",
    [("--input", "z=z.npy"), ("--input", "x=absent.npy"), ("--output", "z=z.npy"), ("--target", "z80")],
)
def test_values_that_do_not_fit_the_model_are_the_users_fault(model: str, options: tuple[str, str]) -> None:
    result = call("run", model, *options, status=ExitStatus.USER_ERROR)
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [(), ("--shape", "x=1xq"), ("--threads", "0"), ("--input", "x"), ("--nonsense",), ("a", "b")],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    model = () if arguments in ((), ("a", "b")) else ("m.onnx",)
    assert "Usage:" in call("run", *model, *arguments, status=ExitStatus.USAGE).stderr


def test_a_bug_of_ours_shows_its_traceback(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a broken promise")

    monkeypatch.setattr("tilewright.cli.run.load", broken)
    result = call("run", model, status=ExitStatus.INTERNAL_ERROR)
    assert "RuntimeError: a broken promise" in result.stderr
    assert "report" in result.stderr


def test_ctrl_c_ends_with_130(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewright.cli.run.load", interrupted)
    assert call("run", model, status=ExitStatus.INTERRUPTED).stdout == ""


def test_help_is_no_error() -> None:
    for command in ([], ["run"], ["compile"], ["inspect"], ["bench"], ["compare"], ["doctor"]):
        assert "Usage:" in call(*command, "--help").stdout


def test_no_progress_bar_when_nobody_watches() -> None:
    with progress_bar() as progress:
        assert progress is None


def test_module_and_closed_pipe(model: str) -> None:
    """`python -m tilewright` is the command, and a reader that leaves early is no error."""
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    assert reader.stdin is not None
    reader.wait()
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", "inspect", model, "--ir", "llvm"],
        stdout=reader.stdin,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    reader.stdin.close()
    assert (done.returncode, done.stderr) == (ExitStatus.OK, "")
