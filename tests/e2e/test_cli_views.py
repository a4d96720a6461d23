"""What `inspect` has shown it shows again without compiling; and never what has changed since."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from examples.models import mlp
from tests.tile_space import tile_spaces
from tilewright.cli import inspection
from tilewright.cli.commands.inspect import STAGES
from tilewright.cli.main import main
from tilewright.cli.status import ExitStatus
from tilewright.driver.passes import task_key
from tilewright.driver.tuned import tuning_scope
from tilewright.lowered import lowered
from tilewright.search.database import Database, Measurement
from tilewright.target.target import native


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "tuning.db"))


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Gains an entry whenever a model is compiled to be looked at."""
    seen: list[Any] = []
    real = inspection.stages

    def counted(model: Any, **options: Any) -> Any:
        seen.append(options)
        return real(model, **options)

    monkeypatch.setattr(inspection, "stages", counted)
    return seen


def write(path: Path, proto: onnx.ModelProto) -> Path:
    """As if it had been there for a while."""
    onnx.save(proto, path)
    os.utime(path, ns=(1_000_000_000, path.stat().st_mtime_ns))
    return path


def call(*arguments: object, status: int = ExitStatus.OK) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result.stdout


def test_every_view_is_made_once(tmp_path: Path, compilations: list[Any]) -> None:
    model = write(tmp_path / "m.onnx", mlp((8, 16, 4)))
    first = call("inspect", model)
    assert call("inspect", model) == first and len(compilations) == 1
    names = [k["name"] for k in json.loads(call("inspect", model, "--json"))["kernels"]]
    assert len(compilations) == 1
    trace = call("inspect", model, "--trace")
    assert call("inspect", model, "--trace") == trace and len(compilations) == 2
    assert json.loads(call("inspect", model, "--trace", "--json"))["trace"]
    compilations.pop()
    for n, stage in enumerate(STAGES):
        text = call("inspect", model, "--ir", stage)
        assert call("inspect", model, "--ir", stage) == text and len(compilations) == 2 + n
    for stage in ("lowered", "llvm"):
        one = call("inspect", model, "--ir", stage, "--kernel", names[0])
        assert one.strip() in call("inspect", model, "--ir", stage)
        assert one == call("inspect", model, "--ir", stage, "--kernel", names[0].rpartition("_")[2])
    assert len(compilations) == 1 + len(STAGES)
    for _ in range(2):  # LLVM is not asked about the others
        call("inspect", model, "--ir", "asm", "--kernel", names[0])
    assert len(compilations) == 2 + len(STAGES)


def test_other_options_are_other_views(tmp_path: Path, compilations: list[Any]) -> None:
    model = write(tmp_path / "m.onnx", mlp((8, 16, 4)))
    for options in (
        (),
        ("--target", "x86-64"),
        ("--accuracy", "exact"),
        ("--check-indices",),
        ("--shape", "x=1x8"),
    ):
        call("inspect", model, *options)
    assert len(compilations) == 5


def test_a_model_that_has_changed_is_compiled_again(tmp_path: Path, compilations: list[Any]) -> None:
    model = write(tmp_path / "m.onnx", mlp((8, 16, 4)))
    call("inspect", model)
    write(model, mlp((8, 24, 4)))
    assert json.loads(call("inspect", model, "--json"))["weights_bytes"] > 4 * 8 * 24
    assert len(compilations) == 2


def test_external_data_that_has_changed_is_read_again(tmp_path: Path, compilations: list[Any]) -> None:
    """Weights decide what a program is: a few that are equal are one."""
    model, data = tmp_path / "m.onnx", tmp_path / "w.bin"
    w = numpy_helper.from_array(np.ones((8, 4), np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, s)) for n, s in (("x", 8), ("y", 4)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(proto, model, save_as_external_data=True, location="w.bin", size_threshold=0)
    for _ in range(2):
        call("inspect", model)
    assert len(compilations) == 1
    data.write_bytes(np.zeros((8, 4), np.float32).tobytes())
    call("inspect", model)
    assert len(compilations) == 2


def test_tuning_makes_other_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[Any]
) -> None:
    for module in ("compiler", "tuning.tune"):
        monkeypatch.setattr(f"tilewright.{module}.SPACES", tile_spaces)
    model = write(tmp_path / "m.onnx", mlp((16, 16)))
    call("inspect", model)
    func = next(f for f in lowered(model).funcs)
    choice = Measurement(task_key(func, ()), "choice", "tile", {"rows": 1, "columns": 16, "steps": 2})
    Database(tmp_path / "tuning.db").record(tuning_scope(native()), choice)
    call("inspect", model)
    assert len(compilations) == 2


def test_without_a_cache_everything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[Any]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    model = write(tmp_path / "m.onnx", mlp((8, 4)))
    for _ in range(2):
        call("inspect", model)
    assert len(compilations) == 2


def test_what_is_kept_needs_no_compiler(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", mlp((8, 4)))
    program = (
        "import sys\nfrom tilewright.cli.main import main\n"
        f"try:\n    main(['inspect', {str(model)!r}])\nexcept SystemExit as e:\n    assert not e.code\n"
        "print(sorted(m for m in ('onnx', 'llvmlite', 'tilewright.compiler') if m in sys.modules))\n"
    )
    said = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    first, again = (text.splitlines() for text in said)
    assert first[:-1] == again[:-1] and first[-1] != "[]" and again[-1] == "[]"


def test_a_damaged_view_is_made_again(tmp_path: Path, compilations: list[Any]) -> None:
    model = write(tmp_path / "m.onnx", mlp((8, 4)))
    first = call("inspect", model)
    for entry in (tmp_path / "cache").iterdir():
        if entry.suffix != ".tw" and entry.is_file():
            entry.write_bytes(entry.read_bytes()[:-1])
    assert call("inspect", model) == first and len(compilations) == 2
