"""Inputs for a model: read from .npy files or ONNX's .pb files, or made up."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto

from tilewright.frontend.onnx.file import LIMITS, TensorReader
from tilewright.frontend.onnx.interface import InputSpec
from tilewright.frontend.onnx.open_import import dim_name
from tilewright.frontend.onnx.weights import StoredWeights
from tilewright.runtime.dtypes import numpy_dtype
from tilewright.support.artifact import SIZE_INPUT, Manifest, TensorSpec
from tilewright.support.errors import UserError
from tilewright.support.sizes import SizeExpr


def make_feeds(
    specs: Iterable[TensorSpec | InputSpec],
    files: Mapping[str, str],
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, NDArray[Any]]:
    """Every input has a value: its file's, or random numbers that depend on `seed` only. Open dimensions have these
    `sizes`, those of the files, or else the largest that the program is made for.
    """
    specs = tuple(specs)
    unknown = sorted(files.keys() - {s.name for s in specs})
    if unknown:
        raise UserError(
            f"the model has no input {unknown[0]!r}",
            hint=f"its inputs are: {', '.join(s.name for s in specs)}",
        )
    rng = np.random.default_rng(seed)
    read = {name: read_array(path) for name, path in files.items()}
    values = {**_sizes_in(specs, read), **(sizes or {})}
    return {s.name: read[s.name] if s.name in read else random_array(_at(s, values), rng) for s in specs}


def make_program_feeds(
    manifest: Manifest, files: Mapping[str, str], seed: int, sizes: Mapping[str, int]
) -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
    """All that a program takes, as it lies in memory: with the sizes of open dimensions, and room for the largest. And
    these sizes.
    """
    feeds = make_feeds(manifest.given, files, seed, sizes)
    values = _sizes_in(manifest.given, feeds)
    for spec in manifest.given:
        if spec.sizes and feeds[spec.name].ndim == len(spec.shape):
            whole = np.zeros(spec.shape, numpy_dtype(spec.dtype))
            given = feeds[spec.name]
            if any(n > m for n, m in zip(given.shape, spec.shape, strict=True)):
                raise UserError(
                    f"input {spec.name!r} is {list(given.shape)}, and the program is made for up to {list(spec.shape)}"
                )
            whole[tuple(map(slice, given.shape))] = given
            feeds[spec.name] = whole
    for dim in manifest.dims:
        feeds[SIZE_INPUT + dim.name] = np.array([values[dim.name] // dim.multiple], np.int64)
    taken = [s.name for s in manifest.inputs]
    return {n: feeds[n] for n in taken}, values


def _sizes_in(specs: Iterable[TensorSpec | InputSpec], arrays: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """The open dimensions that these arrays have."""
    found: dict[str, int] = {}
    for spec in specs:
        if spec.name in arrays:
            for axis, n in enumerate(arrays[spec.name].shape[: len(spec.shape or ())]):
                name = _open_name(spec, axis)
                if name is not None:
                    found[name] = n
    return found


def _open_name(spec: TensorSpec | InputSpec, axis: int) -> str | None:
    """The dimension whose size this axis has, if it is an open one."""
    if isinstance(spec, InputSpec):
        return dim_name(spec, axis) if isinstance((spec.shape or ())[axis], str) else None
    size = spec.sizes[axis] if spec.sizes else None
    dims = [] if size is None else [d for d in size.dims if size == SizeExpr.of_dim(d)]
    return dims[0].name if dims else None


def _at(spec: TensorSpec | InputSpec, sizes: Mapping[str, int]) -> TensorSpec | InputSpec:
    """The input where open dimensions have these sizes; those that are not told are as large as may be."""
    if isinstance(spec, TensorSpec):
        dims = [d for size in spec.sizes if size is not None for d in size.dims]
        return replace(spec, shape=spec.shape_at({**{d.name: d.most for d in dims}, **sizes}), sizes=())
    names = [_open_name(spec, axis) for axis in range(len(spec.shape or ()))]
    if spec.dtype is None or spec.shape is None or any(n is not None and n not in sizes for n in names):
        return spec
    shape = tuple(n if isinstance(n, int) else sizes[dim_name(spec, d)] for d, n in enumerate(spec.shape))
    return TensorSpec(spec.name, spec.dtype.name, shape)


def random_array(spec: TensorSpec | InputSpec, rng: np.random.Generator) -> NDArray[Any]:
    """Normal floats, fair bools, and integers of 0 or 1: a valid index into anything worth indexing."""
    if isinstance(spec, InputSpec):
        raise UserError(
            f"input {spec.name!r} is {spec}: numbers for it cannot be made up",
            hint="give its shape with --shape, sizes of its dimensions with --dim, or a file with --input",
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
