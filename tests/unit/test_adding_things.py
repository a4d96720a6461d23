"""A package of somebody else's adds one of each kind (`tests/toy_extension`, a file each), and all of it is used as if
it were ours.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
import toy_extension
from click.testing import CliRunner
from native import run_native
from onnx import TensorProto, helper
from toy_extension.graph_pass import drop_second_abs
from toy_extension.step import Halve

import tilewright as tw
from tilewright.cli import commands
from tilewright.cli.main import main
from tilewright.driver.keys import compiler_digest, rules_digest
from tilewright.families import families
from tilewright.graph import passes
from tilewright.graph.passes import all_passes, register_pass
from tilewright.schedule import steps
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps import register_step
from tilewright.schedule.trace import parse_trace, print_trace
from tilewright.search.default import choose_schedule
from tilewright.support import extensions
from tilewright.support.errors import UserError
from tilewright.target import intrinsics, names
from tilewright.target.intrinsics import register_intrinsics
from tilewright.target.names import register_target, resolve_target
from tilewright.tir.interp import run_func

TESTS = Path(__file__).parents[1]
KINDS = (steps, families, passes, intrinsics, names, commands)
N = 64


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package is known in a test, and forgotten afterwards."""
    for kind in KINDS:
        monkeypatch.setattr(kind.ADDED, "items", {})
    toy_extension.register()
    yield


@tw.func
def add(A: tw.f32[N], B: tw.f32[N], C: tw.out(tw.f32[N])):
    for i in tw.grid(N):
        C[i] = A[i] + B[i]


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, N)).astype(np.float32)
    return a, b


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = ||x||"""
    path = tmp_path / "abs.onnx"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [N]) for n in "xy")
    nodes = [helper.make_node("Abs", ["x"], ["h"]), helper.make_node("Abs", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "abs", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def call(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


# ------------------------------------------------------------------------------------------------------------ one each


def test_a_step_is_taken_saved_loaded_and_replayed(tmp_path: Path) -> None:
    s = Schedule(add)
    outer, inner = s.apply(Halve("i")).names
    s.unroll(inner)
    assert parse_trace(print_trace(s.trace)) == s.trace
    s.save(tmp_path / "add.trace")
    again = Schedule.load(add, tmp_path / "add.trace")
    assert str(again.func) == str(s.func)
    assert f"for {outer} in range({N // 2})" in str(again.func)
    a, b = arrays()
    np.testing.assert_array_equal(run_func(again.func, a, b)[0], a + b)


def test_a_family_is_chosen_by_its_cost() -> None:
    chosen = choose_schedule(add, resolve_target("x86-64"))
    assert chosen.family == "toy"
    assert chosen.draft.trace[-1] == Halve("i")


def test_a_pass_runs_where_it_was_put(model: Path) -> None:
    order = [p.__name__ for p in all_passes()]
    assert order.index("drop_second_abs") == order.index("eliminate_common") - 1
    assert call("inspect", model, "--ir", "tir").count("@func") == 1
    text = call("inspect", model, "--trace")
    assert "Kernel(calls=('h',), family='toy')" in text  # of two nodes the first is left


def test_an_intrinsic_takes_the_place_of_loops() -> None:
    s = Schedule(add)
    _, inner = s.split("i", (None, 4))
    s.tensorize(inner, "toy.f32.add_4")
    a, b = arrays()
    np.testing.assert_array_equal(run_func(s.func, a, b)[0], a + b)
    np.testing.assert_array_equal(run_native(s.func, [a, b], resolve_target("x86-64"))[0], a + b)


def test_a_target_is_compiled_for_and_inspected(model: Path, tmp_path: Path) -> None:
    assert "vmovaps" not in call("inspect", model, "--ir", "asm", "--target", "toy")
    call("compile", model, "--target", "toy", "-o", tmp_path / "abs.tw")
    x = arrays()[0]
    np.testing.assert_array_equal(tw.load(tmp_path / "abs.tw").run({"x": x})["y"], abs(x))


def test_a_command_is_called_and_listed(model: Path) -> None:
    assert json.loads(call("toy", model, "--json")) == {"nodes": 2}
    assert "Count the nodes of MODEL." in call("--help")


@pytest.mark.parametrize(
    ("page", "files"),
    [("pass", ["graph_pass"]), ("command", ["command", "count"]), ("target", ["target"])],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_the_code_of_a_page_is_that_of_the_toy(page: str, files: list[str]) -> None:
    text = (TESTS.parent / "docs" / f"adding-a-{page}.md").read_text(encoding="utf-8")
    for code, file in zip(re.findall(r"```python\n(.*?)```", text, re.DOTALL), files, strict=True):
        assert (TESTS / "toy_extension" / f"{file}.py").read_text(encoding="utf-8").endswith(code)


# ---------------------------------------------------------------------------------------------------- all from outside


def outside(
    *arguments: object, extension: str = "toy_extension.registered"
) -> subprocess.CompletedProcess[str]:
    """The command in a process that knows of the extension by the environment alone."""
    paths = os.pathsep.join([str(TESTS), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "TILEWRIGHT_EXTENSIONS": extension}
    command = [sys.executable, "-m", "tilewright", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_command_line_finds_an_extension_by_itself(model: Path) -> None:
    counted = outside("toy", model, "--json")
    assert json.loads(counted.stdout) == {"nodes": 2}, counted.stderr
    traced = outside("inspect", model, "--trace", "--target", "toy")
    assert "family='toy'" in traced.stdout, traced.stderr


def test_an_installed_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("toy", "toy_extension.registered", extensions.GROUP)
    monkeypatch.setattr(extensions, "entry_points", lambda group: [entry] if group == entry.group else [])
    monkeypatch.delitem(sys.modules, "toy_extension.registered", raising=False)
    monkeypatch.setattr(commands.ADDED, "items", {})
    extensions.load_extensions.cache_clear()
    try:
        assert "toy" in main.list_commands(click.Context(main))
    finally:
        extensions.load_extensions.cache_clear()


def test_an_extension_that_cannot_be_imported_is_named(model: Path) -> None:
    failed = outside("run", model, extension="no_such_extension")
    assert failed.returncode == 1
    assert "the extension no_such_extension cannot be imported: ModuleNotFoundError" in failed.stderr
    assert "TILEWRIGHT_EXTENSIONS" in failed.stderr


# --------------------------------------------------------------------------------------------------------------- rules


def test_programs_with_and_without_an_extension_are_different_entries_of_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_toy = compiler_digest(), rules_digest()
    for kind in KINDS:
        monkeypatch.setattr(kind.ADDED, "items", {})
    assert compiler_digest() != with_toy[0] and rules_digest() != with_toy[1]


def test_the_same_again_is_no_mistake() -> None:
    toy_extension.register()
    assert all_passes().count(drop_second_abs) == 1


def test_names_are_given_once() -> None:
    class Split(Halve): ...

    with pytest.raises(UserError, match="there is another step 'Split'"):
        register_step(Split)
    with pytest.raises(UserError, match="there is another target 'native'"):
        register_target("native", toy_extension.toy_target)
    with pytest.raises(UserError, match="there is another intrinsic 'x86"):
        register_intrinsics(intrinsics.INTRINSICS[0])
    with pytest.raises(UserError, match="there is another command 'toy'"):
        commands.register_command(commands.Command("toy", "m:f", "", []))
    with pytest.raises(UserError, match="there is another graph pass 'simplify'"):
        register_pass(passes.simplify)
    with pytest.raises(UserError, match="drop_second_abs is no pass of ours"):
        register_pass(drop_second_abs, before=drop_second_abs)
