"""Inputs for a model: read from .npy files or ONNX's .pb files, or made up."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto

from tilewright.frontend.onnx.file import LIMITS, TensorReader
from tilewright.frontend.onnx.interface import InputSpec
from tilewright.frontend.onnx.weights import StoredWeights
from tilewright.runtime.dtypes import numpy_dtype
from tilewright.support.artifact import TensorSpec
from tilewright.support.errors import UserError


def make_feeds(
    specs: Iterable[TensorSpec | InputSpec], files: Mapping[str, str], seed: int = 0
) -> dict[str, NDArray[Any]]:
    """Every input has a value: its file's, or random numbers that depend on `seed` only."""
    specs = tuple(specs)
    unknown = sorted(files.keys() - {s.name for s in specs})
    if unknown:
        raise UserError(
            f"the model has no input {unknown[0]!r}",
            hint=f"its inputs are: {', '.join(s.name for s in specs)}",
        )
    rng = np.random.default_rng(seed)
    return {s.name: read_array(files[s.name]) if s.name in files else random_array(s, rng) for s in specs}


def random_array(spec: TensorSpec | InputSpec, rng: np.random.Generator) -> NDArray[Any]:
    """Normal floats, fair bools, and integers of 0 or 1: a valid index into anything worth indexing."""
    if isinstance(spec, InputSpec):
        raise UserError(
            f"input {spec.name!r} is {spec}: numbers for it cannot be made up",
            hint="give its shape with --shape, or a file with --input",
        )
    dtype = numpy_dtype(spec.dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, spec.shape).astype(dtype)
    return rng.standard_normal(spec.shape).astype(dtype)


def read_array(path: str) -> NDArray[Any]:
    """A .npy file is data: anything that would need pickle is refused. A .pb file has one tensor, as in the test data
    of ONNX models.
    """
    if path.endswith(".pb"):
        return _read_tensor(path)
    try:
        value: object = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as e:
        raise UserError(f"cannot read an array from {path}: {e}", hint="write it with numpy.save") from e
    if not isinstance(value, np.ndarray):
        raise UserError(f"{path} is an archive of arrays, not one array", hint="write it with numpy.save")
    return cast(NDArray[Any], value)


def read_sample(path: str | Path) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file, by name."""
    try:
        found: Any = np.load(path, allow_pickle=False)
        if not isinstance(found, Mapping):
            raise ValueError("it has one array, without a name")
        with cast(Any, found):
            return {str(name): array for name, array in cast("Mapping[Any, Any]", found).items()}
    except (OSError, ValueError, BadZipFile) as e:
        raise UserError(
            f"cannot read arrays from {path}: {e}", hint="write it with numpy.savez, by the names of inputs"
        ) from e


def _read_tensor(path: str) -> NDArray[Any]:
    try:
        tensor = TensorProto.FromString(Path(path).read_bytes())
    except (OSError, DecodeError) as e:
        raise UserError(f"cannot read a tensor from {path}: {e}") from e
    try:
        return TensorReader(None, LIMITS, StoredWeights()).read(tensor)
    except UserError as e:
        raise UserError(e.message, where=path, hint=e.hint) from e


def write_array(path: str, value: NDArray[Any]) -> None:
    try:
        with open(path, "wb") as file:  # numpy.save would add .npy to the name behind the user's back
            np.save(file, value, allow_pickle=False)
    except OSError as e:
        raise UserError(f"cannot write {path}: {e.strerror}") from e
