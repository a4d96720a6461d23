"""What `tilewright-runtime` is made of runs programs by itself. The wheel as such: `make wheel`."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.models import mlp
from tilewright.compiler import compile
from tilewright.runtime.command import main
from tilewright.runtime.file import load_artifact
from tilewright.runtime.load_program import load_program
from tilewright.support.errors import UserError

HOME = Path(__file__).resolve().parents[2] / "wheels" / "runtime"
SOURCES = HOME.parents[1] / "src" / "tilewright"
HIDDEN = ("tilewright", "onnx", "llvmlite", "click", "rich", "google")

# In a process that finds none of what must not be needed.
_START = f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HIDDEN!r}:
            raise ImportError(name + " is hidden")
sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture(scope="module")
def hook() -> Any:
    pytest.importorskip("hatchling")
    spec = spec_from_file_location("runtime_hatch_build", HOME / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run(hook: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Python code, or arguments of the command, in a process that has the runtime's modules alone."""
    folder = tmp_path_factory.mktemp("alone")
    hook.collect(HOME / "package", SOURCES, folder / "tilewright_runtime")
    path = os.pathsep.join([str(folder), *(p for p in sys.path if p.endswith("site-packages"))])

    def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _START + code, *arguments],
            env={**os.environ, "PYTHONPATH": path},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a program of static shapes, one with an open dimension, and an input."""
    folder = tmp_path_factory.mktemp("programs")
    model = mlp((8, 4))
    compile(model).save(folder / "static.tw")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    compile(model, dims={"n": (1, 4)}).save(folder / "open.tw")
    return folder


@pytest.mark.parametrize(("program", "rows"), [("static", 1), ("open", 3)])
def test_load_and_run(run: Callable[..., Any], folder: Path, program: str, rows: int) -> None:
    path = folder / f"{program}.tw"
    session = load_program(path)
    (given,), (result,) = session.inputs, session.outputs
    x = np.random.default_rng(0).standard_normal((rows, 8)).astype(np.float32)
    np.save(folder / "x.npy", x)
    done = run(
        "import json\nimport numpy as np\nimport tilewright_runtime as tw\n"
        "session = tw.load(sys.argv[1], threads=1)\n"
        "results = session.run({sys.argv[3]: np.load(sys.argv[2])})\n"
        "session.close()\n"
        "print(json.dumps({k: v.tolist() for k, v in results.items()}))\n",
        *(str(path), str(folder / "x.npy"), given.name),
    )
    assert not done.stderr
    found = np.array(json.loads(done.stdout)[result.name], np.float32)
    np.testing.assert_array_equal(found, session.run({given.name: x})[result.name])


def test_the_command_alone(run: Callable[..., Any], folder: Path) -> None:
    start = "from tilewright_runtime.runtime.command import main\nsys.exit(main(sys.argv[1:]))\n"
    done = run(start, str(folder / "open.tw"), "--dim", "n=2", "--json")
    assert done.returncode == 0 and not done.stderr
    assert json.loads(done.stdout)["outputs"][0]["shape"] == [2, 4]
    assert run(start, str(folder / "absent.tw")).returncode == 1


def test_a_module_of_the_compiler_fails_the_build(hook: Any, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from tilewright.ops.accuracy import Accuracy\n")
    with pytest.raises(RuntimeError, match=r"imports ops/accuracy.py|imports ops/__init__.py"):
        hook.collect(tmp_path / "package", SOURCES, tmp_path / "out")


def test_files_in_and_out(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, x = folder / "open.tw", np.ones((2, 8), np.float32)
    session = load_program(path)
    (given,), (result,) = session.inputs, session.outputs
    np.save(tmp_path / "x.npy", x)
    saved = tmp_path / "y"
    assert (
        main(
            [str(path), "--input", f"{given.name}={tmp_path / 'x.npy'}", "--output", f"{result.name}={saved}"]
        )
        == 0
    )
    np.testing.assert_array_equal(np.load(saved), session.run({given.name: x})[result.name])
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["output", "type", "shape", "min", "max", "mean"] and "2x4" in row.split()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--input", "q=x.npy"], "the model has no input 'q'"),
        (["--output", "q=y.npy"], "the model has no output 'q'"),
        (["--dim", "n=many"], "'many' is not a size of n"),
        (["--dim", "n=9"], "9"),
    ],
)
def test_mistakes(options: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder / "open.tw"), *options]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--threads", "0"], ["--input", "x"], []])
def test_mistakes_of_options(options: list[str], folder: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*([str(folder / "open.tw")] if options else []), *options])
    assert ended.value.code == 2


def test_models_are_not_programs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the file is a model"):
        load_program(tmp_path / "model.onnx")


def test_programs_with_plugins_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Region:
        plugin = "openvino"

    program = load_artifact(folder / "static.tw")
    object.__setattr__(program, "regions", (Region(),))
    monkeypatch.setattr("tilewright.runtime.load_program.load_artifact", lambda path: program)
    with pytest.raises(UserError, match=r"run by plugins \(openvino\)"):
        load_program(folder / "static.tw")
