"""Weights of language models: where they come from, and what becomes of them in few bits."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.llm.checkpoint import CheckpointFiles, RandomWeights, checkpoint_paths, tensor_shapes
from tilewright.llm.config import DecoderConfig, Rotation
from tilewright.ops.contrib.quant_gather import GatherBlockQuantized
from tilewright.ops.contrib.quant_matmul import MatMulNBits
from tilewright.quantize.blocks import quantize_rows, restored_rows
from tilewright.support.errors import UserError

CONFIG = DecoderConfig(64, 1, 4, 2, 16, 96, 50, Rotation(1e4), 1e-6, "qkv", True, False, 64)


@pytest.mark.parametrize("bits", [4, 8])
def test_operators_read_codes_as_they_are_written(bits: int) -> None:
    rng = np.random.default_rng(0)
    x, rows = rng.standard_normal((3, 64), np.float32), rng.standard_normal((5, 64), np.float32)
    blocks = quantize_rows(rows, bits, 32)
    restored = restored_rows(blocks, bits)
    product = MatMulNBits(5, 64, bits, 32, (False, False, False))
    (y,) = product.reference((x, blocks.codes.reshape(5, 2, -1), blocks.scales.ravel()))
    np.testing.assert_allclose(y, x @ restored.T, rtol=1e-5, atol=1e-5)
    at = np.array([[4, 0]])
    (found,) = GatherBlockQuantized(bits, 32).reference((blocks.codes, at, blocks.scales))
    np.testing.assert_array_equal(found, restored[at])


@pytest.mark.parametrize(("bits", "most"), [(4, 1 / 8.5), (8, 1 / 128)])
def test_a_weight_is_about_a_step_off_at_most(bits: int, most: float) -> None:
    rows = np.random.default_rng(1).standard_normal((64, 256), np.float32)
    error = np.abs(restored_rows(quantize_rows(rows, bits, 32), bits) - rows).reshape(64, 8, 32)
    largest = np.abs(rows).reshape(64, 8, 32).max(-1)
    assert (error.max(-1) / largest).max() < most
    # Half a step where nothing is beyond the last code, and numbers are anywhere in a step.
    assert np.sqrt((error**2).mean()) < 1.05 * largest.mean() * 2**-bits * 2 / 12**0.5


def test_blocks_of_zeros_and_of_what_is_nearly_zero() -> None:
    rows = np.zeros((2, 64), np.float32)
    rows[1, 40] = np.float32(1e-42)
    found = restored_rows(quantize_rows(rows, 4, 32), 4)
    assert np.all(np.isfinite(found)) and np.abs(found).max() <= 1e-41


def test_the_largest_weight_has_the_code_without_a_counterpart() -> None:
    rows = np.concatenate([[4.0], np.full(31, -0.5)]).astype(np.float32)[None]
    blocks = quantize_rows(rows, 4, 32)
    np.testing.assert_allclose(restored_rows(blocks, 4), rows)


def test_random_weights_do_not_depend_on_how_they_are_read() -> None:
    weights = RandomWeights(CONFIG, 3)
    for name, shape in tensor_shapes(CONFIG).items():
        whole = weights.read(name, 0, shape[0])
        assert whole.shape == shape and whole.dtype == np.float32
        parts = [weights.read(name, i, min(i + 7, shape[0])) for i in range(0, shape[0], 7)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert np.any(
        weights.read("lm_head.weight", 0, 50) != RandomWeights(CONFIG, 4).read("lm_head.weight", 0, 50)
    )


def saved(folder: Path, **changes: Any) -> Path:
    """The weights of `CONFIG` in two files, as they are published."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    weights = RandomWeights(CONFIG)
    tensors = {
        n: weights.read(n, 0, s[0]).astype(ml_dtypes.bfloat16) for n, s in tensor_shapes(CONFIG).items()
    }
    tensors = {n: t for n, t in {**tensors, **changes}.items() if t is not None}
    names = sorted(tensors)
    for i, part in enumerate((names[::2], names[1::2])):
        save_file({n: tensors[n] for n in part}, str(folder / f"model-{i}.safetensors"))
    return folder


def test_files_are_read_as_floats(tmp_path: Path) -> None:
    with CheckpointFiles(saved(tmp_path), CONFIG) as files:
        name = "model.layers.0.mlp.up_proj.weight"
        expected = RandomWeights(CONFIG).read(name, 5, 9).astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(files.read(name, 5, 9), expected)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lm_head.weight": None}, "no lm_head.weight"),
        (
            {"lm_head.weight": np.zeros((3, 3), np.float32)},
            r"is \[3, 3\], and config.json makes it \[50, 64\]",
        ),
        ({"lm_head.weight": np.zeros((50, 64), np.int8)}, "I8"),
    ],
)
def test_files_of_another_model(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        CheckpointFiles(saved(tmp_path, **change), CONFIG)


def test_no_files(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UserError, match=r"pytorch_model\.bin is of another format"):
        checkpoint_paths(tmp_path)


def test_a_broken_file(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    with pytest.raises(UserError, match="no file of safetensors"):
        CheckpointFiles(tmp_path, CONFIG)
