"""One test for each mistake with `accuracy=`: the message names it, and says what to write instead."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tilewright as tw
from examples.models import mlp
from tilewright.cli.main import main
from tilewright.cli.status import ExitStatus
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime import file

MODEL = mlp((8, 4))
HINT = 'give the largest error of a layer, such as 2e-5, or "exact" for plain sums only'


@pytest.mark.parametrize("value", ["high", "", "1e-5 of it", "nan", float("nan"), True, [1e-5], 10**400, 1j])
def test_what_is_no_accuracy(value: Any) -> None:
    with pytest.raises(tw.UserError, match="is not an accuracy") as found:
        Accuracy.of(value)
    assert found.value.hint == HINT


@pytest.mark.parametrize("value", [0, 0.0, -1e-5, 1, "1", "inf", 2.5])
def test_a_bound_that_is_no_small_number(value: Any) -> None:
    with pytest.raises(tw.UserError, match="is not between 0 and 1") as found:
        Accuracy.of(value)
    assert found.value.hint == HINT


def test_every_entry_checks() -> None:
    for entry in (tw.load, tw.compile, tw.tune):
        with pytest.raises(tw.UserError, match="'best' is not an accuracy"):
            entry(MODEL, accuracy="best")


def test_a_program_that_is_less_accurate_than_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "model.tw"
    made = tw.compile(MODEL, target="x86-64").artifact
    options = {"accuracy": "2e-05", "algorithms": "k0_conv: Winograd F(4, 3), error 1.5e-06"}
    file.save(replace(made, manifest=replace(made.manifest, options=options)), path)
    for wanted in ("exact", 1e-6):
        accuracy = Accuracy.of(wanted)
        with pytest.raises(tw.UserError, match=f"compiled with accuracy 2e-05, and {accuracy}") as found:
            tw.load(path, accuracy=wanted)
        assert found.value.where == str(path)
        assert found.value.hint == f"compile the model again with accuracy {accuracy}"


@pytest.mark.parametrize("command", ["run", "compile", "inspect", "bench", "compare", "tune"])
def test_the_command_line_says_the_same(command: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL.SerializeToString())
    result = CliRunner().invoke(main, [command, str(path), "--accuracy", "best"])
    assert result.exit_code == ExitStatus.USER_ERROR
    assert "'best' is not an accuracy" in result.stderr and HINT in result.stderr
