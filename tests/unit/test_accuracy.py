"""`accuracy=`: how it is written, what it allows, and where it is remembered."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from examples.models import mlp
from tests.onnx_cases import Model
from tilewright import api
from tilewright.cli.main import main
from tilewright.compiler import CompiledModel, compile, compile_graph
from tilewright.driver.keys import program_key
from tilewright.driver.passes import task_key
from tilewright.lowered import lowered
from tilewright.ops.accuracy import DEFAULT, Accuracy, AccuracyLike
from tilewright.runtime import file
from tilewright.stages import stages
from tilewright.support.errors import UserError
from tilewright.target.target import AVX2

MODEL = mlp((24, 16, 8))


@pytest.mark.parametrize(
    ("written", "bound"),
    [
        (1e-6, 1e-6),
        ("1e-6", 1e-6),
        (" 0.5 ", 0.5),
        (np.float32(0.25), 0.25),
        ("exact", None),
        ("Exact", None),
        (Accuracy(None), None),
        (None, 2e-5),
    ],
)
def test_what_is_written_is_read(written: AccuracyLike | None, bound: float | None) -> None:
    assert Accuracy.of(written) == Accuracy(bound)


def test_the_environment_gives_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_ACCURACY", "exact")
    assert Accuracy.of(None) == Accuracy(None)
    assert Accuracy.of(1e-6) == Accuracy(1e-6)
    monkeypatch.setenv("TILEWRIGHT_ACCURACY", "fine")
    with pytest.raises(UserError, match="TILEWRIGHT_ACCURACY = 'fine'"):
        Accuracy.of(None)


@pytest.mark.parametrize("bound", [None, 2e-5, 1 / 3, 1e-300, math.nextafter(2e-5, 1)])
def test_text_is_read_again(bound: float | None) -> None:
    assert Accuracy.of(str(Accuracy(bound))) == Accuracy(bound)


def test_errors_up_to_the_bound_are_allowed() -> None:
    assert DEFAULT.allows(2e-5) and DEFAULT.allows(0.0)
    assert not any(DEFAULT.allows(e) for e in (2.1e-5, math.inf, math.nan))
    assert not Accuracy(None).allows(0.0)


def test_a_stricter_program_serves() -> None:
    exact, fine, coarse = Accuracy(None), Accuracy(1e-6), Accuracy(1e-3)
    order = [exact, fine, coarse]
    for n, wanted in enumerate(order):
        assert [wanted.covers(made) for made in order] == [i <= n for i in range(3)]


# ---------------------------------------------------------------------------------------------------- keys and programs


def test_keys_of_programs_differ() -> None:
    found = {program_key("aa", (), None, AVX2, Accuracy(b)) for b in (None, 2e-5, 1e-6)}
    assert len(found) == 3


def test_a_program_is_cached_for_its_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL.SerializeToString())
    for accuracy, programs in ((None, 1), (2e-5, 1), ("2e-5", 1), ("exact", 2), (1e-6, 3)):
        api.load(path, threads=1, accuracy=accuracy).close()
        assert len(list((tmp_path / "cache").glob("*.tw"))) == programs


def test_a_program_says_how_accurate_it_is() -> None:
    assert compile(MODEL, target="x86-64").artifact.manifest.options["accuracy"] == "2e-05"
    exact = compile(MODEL, target="x86-64", accuracy="exact").artifact
    assert exact.manifest.options["accuracy"] == "exact"
    assert stages(MODEL, accuracy=1e-6).artifact.manifest.options["accuracy"] == "1e-06"


def test_a_compiled_file_without_other_algorithms_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "model.tw"
    compile(MODEL, accuracy=1e-5).save(path)
    for accuracy in (None, 1e-6, "exact"):
        api.load(path, threads=1, accuracy=accuracy).close()


def test_variants_for_shapes_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    model = mlp((8, 4))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    with api.load(model, threads=1, accuracy="exact") as session:
        session.run({"x": np.zeros((3, 8), np.float32)})
    (program,) = (tmp_path / "cache").glob("*.tw")
    assert file.load_artifact(program).manifest.options["accuracy"] == "exact"


def test_what_comes_between_nodes_of_the_host_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def noted(*arguments: Any) -> CompiledModel:
        made = compile_graph(*arguments)
        seen.append(made.artifact.manifest.options["accuracy"])
        return made

    monkeypatch.setattr("tilewright.compiler.compile_graph", noted)
    m = Model()
    places = m.op("NonZero", m.op("Relu", m.input(2, 3)))
    with api.load(m.finish(m.op("Neg", places)), threads=1, accuracy=1e-6, cache=False) as session:
        session.run({session.inputs[0].name: np.ones((2, 3), np.float32)})
    assert seen and set(seen) == {"1e-06"}


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3"])
@pytest.mark.parametrize("bound", [None, 2e-5])
def test_what_is_tuned_is_what_is_compiled(target: str, bound: float | None) -> None:
    """Algorithms depend on both: a choice for another Func would never be found again."""
    m = Model()
    model = m.finish(m.op("Conv", m.input(1, 16, 8, 8), m.weight(16, 16, 3, 3), pads=[1, 1, 1, 1]))
    accuracy = Accuracy(bound)
    module = lowered(model, None, accuracy, target)
    constants = frozenset(c.buffer for c in module.constants)
    keys = {task_key(f, constants) for f in module.funcs}
    assert keys == set(compile(model, accuracy=accuracy, target=target).tasks)


# ----------------------------------------------------------------------------------------------------- the command line


def test_commands_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "m.onnx").write_bytes(MODEL.SerializeToString())

    def call(*arguments: object) -> str:
        result = CliRunner().invoke(main, [str(a) for a in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    program = tmp_path / "m.tw"
    made = json.loads(call("compile", tmp_path / "m.onnx", "-o", program, "--accuracy", "exact", "--json"))
    assert made["accuracy"] == "exact"
    assert json.loads(call("inspect", program, "--json"))["accuracy"] == "exact"
    assert "accuracy: 3e-06" in call("inspect", tmp_path / "m.onnx", "--accuracy", "3e-6")
    call("run", program, "--accuracy", "exact")
    call(
        "bench",
        tmp_path / "m.onnx",
        "--accuracy",
        "1e-6",
        "--rounds",
        "1",
        "--seconds",
        "0",
        "--threads",
        "1",
    )
