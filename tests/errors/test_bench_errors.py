"""Mistakes on the command lines of `bench` and `inspect --profile`: which status they end with, and what is said."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from examples.models import mlp
from tilewright.cli.main import main
from tilewright.cli.status import ExitStatus


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(mlp((8, 4)).SerializeToString())
    return str(path)


def stderr(*arguments: object, status: ExitStatus) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    return result.stderr


def test_unknown_engine(model: str) -> None:
    text = stderr("bench", model, "--against", "ort,tensorflow", status=ExitStatus.USAGE)
    assert "'tensorflow' is none of ort, native, nor a class of your own such as my_engines:Engine" in text


def test_two_engines_of_one_name(model: str) -> None:
    text = stderr("bench", model, "--against", "ort,my_engines:Ort", status=ExitStatus.USAGE)
    assert "two engines are called 'ort'" in text


def test_interpreter_of_an_unknown_engine(model: str) -> None:
    text = stderr("bench", model, "--python", "jax=/bin/python", status=ExitStatus.USER_ERROR)
    assert "'jax', which an interpreter is given for, is none of native, ort, tilewright" in text


@pytest.mark.parametrize("threads", ["0", "1,", "two", "1,-2"])
def test_threads_that_are_no_numbers(model: str, threads: str) -> None:
    assert "number of threads" in stderr("bench", model, "--threads", threads, status=ExitStatus.USAGE)


def test_interpreter_that_does_not_exist(model: str) -> None:
    text = stderr(
        "bench", model, "--against", "ort", "--python", "ort=/no/python", status=ExitStatus.USER_ERROR
    )
    assert "no interpreter '/no/python' for ort" in text


@pytest.mark.parametrize("command", [("bench",), ("inspect", "--profile")])
def test_more_threads_than_cores(model: str, command: tuple[str, ...]) -> None:
    text = stderr(command[0], model, *command[1:], "--threads", "1000", status=ExitStatus.USER_ERROR)
    assert "usable core" in text


def test_model_that_is_not_there() -> None:
    assert "absent.onnx" in stderr("bench", "absent.onnx", status=ExitStatus.USER_ERROR)


def test_profile_of_one_stage(model: str) -> None:
    assert "takes no --ir" in stderr("inspect", model, "--profile", "--ir", "tir", status=ExitStatus.USAGE)


def test_threads_without_profile(model: str) -> None:
    assert "for --profile" in stderr("inspect", model, "--threads", "1", status=ExitStatus.USAGE)
