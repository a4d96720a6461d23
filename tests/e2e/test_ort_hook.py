"""Programs that import onnxruntime, unedited, through `python -m tilewright.ort`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

# Makes onnxruntime a package that is not installed, for whoever looks for it.
ABSENT = """
import sys
from importlib.machinery import PathFinder
class Blind:
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] == "onnxruntime" else PathFinder.find_spec(name, path, target)
    def find_distributions(self, context):
        return [] if context.name == "onnxruntime" else PathFinder.find_distributions(context)
sys.meta_path[:] = [Blind() if f is PathFinder else f for f in sys.meta_path]
"""


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright.ort", *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("program")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    for op, domain, attributes in (("Relu", "", {}), ("UnfoldTensor", "com.microsoft", {"size": 2})):
        node = helper.make_node(op, ["x"], ["y"], domain=domain, **attributes)
        graph = helper.make_graph([node], "g", [x], [y])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        (found / f"{op.lower()}.onnx").write_bytes(model.SerializeToString())
    (found / "beside.py").write_text("answer = 42\n")
    (found / "app.py").write_text(
        "import sys, numpy as np, beside\n"
        "import onnxruntime as ort\n"
        "from onnxruntime import InferenceSession, SessionOptions\n"
        "from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument\n"
        "import onnxruntime.capi._pybind_state as C\n"
        "assert C.InvalidArgument is InvalidArgument is ort.capi.onnxruntime_pybind11_state.InvalidArgument\n"
        "session = InferenceSession(sys.argv[1])\n"
        "print(repr(session))\n"
        "print(session.run(None, {'x': np.array([[1, -2], [3, 5]], np.float32)})[0].tolist())\n"
        "try:\n"
        "    session.run(None, {'x': np.ones(3, np.float32)})\n"
        "except InvalidArgument as e:\n"
        "    print(type(e).__name__)\n"
        "print(__name__, sys.argv[2:], beside.answer)\n"
    )
    return found


def test_a_program_gets_ours(folder: Path) -> None:
    done = run("app.py", "relu.onnx", "--option", cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("run by Tilewright>")
    assert lines[1:] == ["[[1.0, 0.0], [3.0, 5.0]]", "InvalidArgument", "__main__ ['--option'] 42"]


def test_a_module_gets_ours(folder: Path) -> None:
    done = run("-m", "app", "relu.onnx", "--option", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "run by Tilewright>" in done.stdout
    assert "__main__ ['--option'] 42" in done.stdout


def test_the_real_one_is_there_for_what_we_do_not_run(folder: Path) -> None:
    done = run("app.py", "unfoldtensor.onnx", cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("run by ONNX Runtime>")
    assert lines[1] == "[[[1.0, -2.0]], [[3.0, 5.0]]]"
    assert lines[2] == "InvalidArgument"  # of ours, though the real one has raised it
    assert done.stderr.count("unfoldtensor.onnx is run by ONNX Runtime, not by Tilewright") == 1


def test_other_modules_are_the_real_ones(folder: Path) -> None:
    code = (
        "import onnxruntime, onnxruntime.quantization as q, importlib.util, importlib.metadata\n"
        "from onnxruntime.tools import symbolic_shape_infer\n"
        "print(q.__file__, importlib.util.find_spec('onnxruntime') is not None)\n"
        "print(onnxruntime.InferenceSession.__module__, onnxruntime.SparseTensor.__module__)\n"
    )
    done = run("-c", code, cwd=folder)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.endswith(f"{Path('onnxruntime', 'quantization', '__init__.py')} True")
    assert second.startswith("tilewright.ort.inference_session onnxruntime.")


def test_programs_work_where_onnxruntime_is_not_installed(folder: Path) -> None:
    code = ABSENT + (
        "import importlib.util, importlib.metadata\n"
        "assert importlib.util.find_spec('onnxruntime') is not None\n"
        "import onnxruntime\n"
        "assert importlib.metadata.version('onnxruntime') == onnxruntime.__version__\n"
        "assert importlib.util.find_spec('onnxruntime') is not None\n"
        "assert importlib.metadata.version('numpy')\n"
        "print(repr(onnxruntime.InferenceSession('relu.onnx')), hasattr(onnxruntime, 'SparseTensor'))\n"
        "try:\n"
        "    onnxruntime.InferenceSession('unfoldtensor.onnx')\n"
        "except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as e:\n"
        "    print(e)\n"
    )
    done = run("-c", code, cwd=folder)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.endswith("run by Tilewright> False")
    assert "pip install onnxruntime" in second


def test_what_is_no_program(folder: Path) -> None:
    assert run(cwd=folder).returncode == 2
    missing = run("missing.py", cwd=folder)
    assert missing.returncode == 2
    assert "there is no file 'missing.py'" in missing.stderr
    assert "usage" in run("--help", cwd=folder).stdout


def test_the_exit_code_is_the_programs(folder: Path) -> None:
    assert run("-c", "raise SystemExit(3)", cwd=folder).returncode == 3
