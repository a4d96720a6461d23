"""How the command begins and is interrupted: help and mistakes need no compiler, and Ctrl-C leaves no traceback."""

import inspect
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from examples.models import mlp
from tilewright.cli.command import Command, SubCommands
from tilewright.cli.commands import COMMANDS
from tilewright.cli.interrupts import is_interrupt
from tilewright.cli.status import ExitStatus
from tilewright.compiler import compile

HEAVY = ("numpy", "onnx", "llvmlite", "rich", "ml_dtypes", "tilewright.compiler", "tilewright.api")

# By all the words that they are called with.
WORKING = {
    " ".join(words): command
    for name, c in COMMANDS.items()
    for words, command in (
        [((name, n), d) for n, d in c.commands.items()] if isinstance(c, SubCommands) else [((name,), c)]
    )
    if isinstance(command, Command)
}

TAKING_A_MODEL = [n for n, c in WORKING.items() if n in COMMANDS and "model" in {p.name for p in c.params}]

# What a module that is interrupted while it is imported looks like, and one that makes another failure of it.
_INTERRUPTED = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
_DISGUISED = (
    "import os, signal, time\n"
    "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)\n"
    "except KeyboardInterrupt:\n    raise ImportError('broken')\n"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(mlp((8, 4)).SerializeToString())
    return path


def imported(*arguments: str, path: str | None = None) -> tuple[int, str, set[str]]:
    """The status and the messages of a run of the command, and the modules that it has imported."""
    program = (
        "import sys\nfrom tilewright.cli.entry import main\n"
        f"sys.argv = {['tilewright', *arguments]!r}\n"
        "try:\n    main()\nexcept SystemExit as e:\n    status = int(e.code or 0)\n"
        "print('\\n' + ' '.join(sys.modules))\nsys.exit(status)\n"
    )
    environment = os.environ if path is None else {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, done.stderr, set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (ExitStatus.OK, ("--help",)),
        (ExitStatus.OK, ("--version",)),
        *((ExitStatus.OK, (name, "--help")) for name in COMMANDS),
        *((ExitStatus.OK, (*name.split(), "--help")) for name in WORKING),
        *((ExitStatus.USER_ERROR, (n, "absent.onnx")) for n in TAKING_A_MODEL),
        (ExitStatus.USAGE, ("db", "nonsense")),
        (ExitStatus.USER_ERROR, ("run", "absent.onnx", "--accuracy", "2")),
        (ExitStatus.USAGE, ("run", "absent.onnx", "--shape", "x=1xq")),
        (ExitStatus.USAGE, ("nonsense",)),
    ],
)
def test_help_and_mistakes_import_no_compiler(status: ExitStatus, arguments: tuple[str, ...]) -> None:
    found, messages, modules = imported(*arguments)
    assert found == status, messages
    assert modules.isdisjoint(HEAVY)
    if arguments[-1] == "absent.onnx":
        assert (
            "error: cannot read absent.onnx: No such file" in messages and "try: check the path" in messages
        )


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A program of static shapes, and one with an open dimension."""
    folder = tmp_path_factory.mktemp("programs")
    model = mlp((8, 4))
    compile(model).save(folder / "static.tw")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    compile(model, dims={"n": (1, 4)}).save(folder / "open.tw")
    return {"static": folder / "static.tw", "open": folder / "open.tw"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "static"),
        ("run", "open", "--dim", "n=3"),
        ("inspect", "static"),
        ("inspect", "open", "--json"),
        ("inspect", "static", "--trace"),
        ("bench", "static", "--rounds", "1", "--seconds", "0.01"),
    ],
)
def test_a_compiled_program_needs_no_onnx_and_no_llvm(
    arguments: tuple[str, ...], programs: dict[str, Path], tmp_path: Path
) -> None:
    """Nor does the process that `bench` times it in: both are hidden, so that nobody can import them."""
    command, program, *options = arguments
    for package in ("onnx", "llvmlite"):
        (tmp_path / f"{package}.py").write_text(f"raise ImportError('{package} is hidden')")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    status, messages, modules = imported(command, str(programs[program]), *options, path=path)
    assert status == ExitStatus.OK, messages
    assert modules.isdisjoint({"onnx", "llvmlite", "tilewright.compiler", "google.protobuf"})


@pytest.mark.parametrize("name", WORKING)
def test_the_work_of_a_command_takes_its_options(name: str) -> None:
    command = WORKING[name]
    module, function = command.work.split(":")
    work = getattr(import_module(module), function)
    assert set(inspect.signature(work).parameters) == {p.name for p in command.params}
    assert command.name == name.split()[-1]


# ---------------------------------------------------------------------------------------------------------- interrupts


@pytest.mark.parametrize("text", [_INTERRUPTED, _DISGUISED])
@pytest.mark.parametrize("package", ["click", "numpy", "rich", "onnx", "llvmlite"])
def test_an_import_that_is_interrupted(package: str, text: str, tmp_path: Path, model: Path) -> None:
    """The first are imported before the command works, the last two when it has found that it must compile."""
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / f"{package}.py").write_text(text)
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", "run", str(model)],
        env={**os.environ, "PYTHONPATH": path, "TILEWRIGHT_CACHE": "off"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (ExitStatus.INTERRUPTED, "", "interrupted")


@pytest.mark.parametrize("after", [0.3, 0.8, 1.6])
def test_ctrl_c_at_a_terminal_reaches_all_processes(after: float, tmp_path: Path) -> None:
    """Of the group, as a terminal does it: workers that are starting print nothing either."""
    path = tmp_path / "wide.onnx"
    path.write_bytes(mlp((64, *range(65, 95), 8)).SerializeToString())
    started = subprocess.Popen(
        [sys.executable, "-m", "tilewright", "compile", str(path), "-o", str(tmp_path / "wide.tw")],
        env={**os.environ, "TILEWRIGHT_CACHE": "off", "TILEWRIGHT_WORKERS": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(after)
    os.killpg(started.pid, signal.SIGINT)
    _, messages = started.communicate(timeout=60)
    assert messages.strip() in ("interrupted", "")
    assert started.returncode == (ExitStatus.INTERRUPTED if messages else ExitStatus.OK)


def test_an_interrupt_is_recognised_behind_what_came_of_it() -> None:
    error = ImportError("numpy is broken")
    error.__context__ = ValueError()
    assert not is_interrupt(error)
    error.__context__.__cause__ = KeyboardInterrupt()
    assert is_interrupt(error)
    circle = ValueError()
    circle.__cause__ = circle.__context__ = circle
    assert not is_interrupt(circle)
