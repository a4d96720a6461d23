"""Inputs for a model: read from .npy files or ONNX's .pb files, or made up.

A compiled program is run without onnx: what reads its tensors is imported, by name, where there is one to read.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.dtypes import numpy_dtype
from tilewright.runtime.made_feeds import check_named, fill_feeds, read_npy, sizes_of_arrays
from tilewright.support.artifact import SIZE_INPUT, Manifest, TensorSpec
from tilewright.support.errors import UserError
from tilewright.support.input_spec import InputSpec


def make_feeds(
    specs: Iterable[TensorSpec | InputSpec],
    files: Mapping[str, str],
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, NDArray[Any]]:
    """Every input has a value: its file's, or random numbers (`runtime.made_feeds`)."""
    specs = tuple(specs)
    check_named(files, specs)
    return fill_feeds(specs, {name: read_array(path) for name, path in files.items()}, seed, sizes)


def make_program_feeds(
    manifest: Manifest, files: Mapping[str, str], seed: int, sizes: Mapping[str, int]
) -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
    """All that a program takes, as it lies in memory: with the sizes of open dimensions, and room for the largest. And
    these sizes.
    """
    feeds = make_feeds(manifest.given, files, seed, sizes)
    values = sizes_of_arrays(manifest.given, feeds)
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


def read_array(path: str) -> NDArray[Any]:
    """A .npy file, or a .pb file with one tensor."""
    if path.endswith(".pb"):
        return import_module("tilewright.frontend.onnx.tensor_file").read_tensor_file(path)
    return read_npy(path)


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
