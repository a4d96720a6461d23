"""`tilewright quantize`: what it writes, what it says, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from onnx import ModelProto, helper

import tilewright as tw
from tests.quantize_models import convolutions, model_of, products, samples_of
from tilewright.cli.main import main
from tilewright.quantize.error import relative_error


def operators(path: Path) -> set[str]:
    return {n.op_type for n in ModelProto.FromString(path.read_bytes()).graph.node}


def quantize(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["quantize", *map(str, arguments)])


def refused(result: Result) -> str:
    assert result.exit_code == 1, result.output
    return result.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, and six samples of its inputs."""
    model = convolutions()
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "data").mkdir()
    for n, sample in enumerate(samples_of(model, 6)):
        np.savez(tmp_path / "data" / f"{n}.npz", **sample)  # pyright: ignore[reportArgumentType]
    return tmp_path


def test_the_model_that_is_written_keeps_the_bound(folder: Path) -> None:
    output = folder / "made.onnx"
    result = quantize(
        *(folder / "model.onnx", "--calibrate", folder / "data", "--error", "3%", "-o", output, "--json"),
        *("--threads", 1),
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["error"] <= found["bound"] == 0.03
    assert found["is_held_out"] and found["held_out"] == 1
    assert [row["name"] for row in found["layers"]] == ["first", "second", "gemm", "matmul"]
    assert all(row["why"] for row in found["layers"])
    assert list(found["others"]) == ["apart"]
    assert sum(found["counts"].values()) == 4
    held_out = dict(np.load(folder / "data" / "3.npz"))
    with tw.load(folder / "model.onnx", accuracy="exact") as floats, tw.load(output) as made:
        error = relative_error([(made.run(held_out), floats.run(held_out))])
    assert error == pytest.approx(found["error"], abs=1e-4)
    kinds = operators(output)
    forms = {row["form"] for row in found["layers"]}
    assert ("MatMulNBits" in kinds) == bool(forms & {"int8 blocks", "int4 blocks"})
    assert ("QuantizeLinear" in kinds) == ("int8" in forms)


def test_a_bound_that_nothing_keeps_leaves_floats(folder: Path) -> None:
    output = folder / "made.onnx"
    result = quantize(
        *(folder / "model.onnx", "--calibrate", folder / "data", "--error", 1e-9, "--bits", 8, "-o", output),
        "--json",
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["counts"] == {"float32": 4}
    assert operators(output) == operators(folder / "model.onnx")


def test_the_table_says_what_every_layer_got(folder: Path) -> None:
    result = quantize(
        *(folder / "model.onnx", "--calibrate", folder / "data" / "0.npz", "-o", folder / "made.onnx"),
        *("--bits", 8),
    )
    assert result.exit_code == 0, result.output
    for name in ("first", "second", "gemm", "matmul"):
        assert name in result.stdout
    assert "apart stays as it is" in result.stderr
    assert "on 1 sample that ranges were taken from" in result.stdout


def test_dimensions_stay_open(tmp_path: Path) -> None:
    model = products("rows")
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    samples = samples_of(model, 4)
    made = tw.quantize(tmp_path / "model.onnx", samples, 0.05, bits="4")
    made.save(tmp_path / "made.onnx")
    assert made.error <= 0.05
    with tw.load(tmp_path / "made.onnx") as session:
        for rows in (3, 8):
            assert session.run({"x": np.ones((rows, 64), np.float32)})["y"].shape == (rows, 64)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--error", "0"], "is not an error such as 1%"),
        (["--error", "150%"], "is not an error such as 1%"),
        (["--error", "none"], "is not an error such as 1%"),
        (["--bits", "3"], "is not one of"),
    ],
)
def test_options_that_make_no_sense(folder: Path, arguments: list[str], says: str) -> None:
    result = quantize(folder / "model.onnx", "--calibrate", folder / "data", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_samples_are_asked_for(folder: Path) -> None:
    assert "--calibrate" in refused(quantize(folder / "model.onnx"))


def test_a_folder_without_samples(folder: Path) -> None:
    (folder / "empty").mkdir()
    assert "has no .npz files" in refused(quantize(folder / "model.onnx", "--calibrate", folder / "empty"))


def test_samples_of_another_model(folder: Path) -> None:
    np.savez(folder / "other.npz", z=np.zeros(3, np.float32))
    assert "x: missing" in refused(quantize(folder / "model.onnx", "--calibrate", folder / "other.npz"))


def test_a_model_without_layers(folder: Path) -> None:
    node: Any = helper.make_node("Relu", ["x"], ["y"])
    (folder / "relu.onnx").write_bytes(model_of([node], {}, [4]).SerializeToString())
    assert "no layer of the model" in refused(quantize(folder / "relu.onnx", "--calibrate", folder / "data"))


def test_a_folder_that_is_not_there_is_no_place_for_a_model(folder: Path) -> None:
    missing = folder / "missing" / "made.onnx"
    result = quantize(folder / "model.onnx", "--calibrate", folder / "data", "-o", missing)
    assert "there is no folder" in refused(result)
