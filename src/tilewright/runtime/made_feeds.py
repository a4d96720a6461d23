"""Inputs to try a program with: arrays that are given, random numbers for the others; and arrays in files."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.dtypes import numpy_dtype
from tilewright.support.artifact import TensorSpec
from tilewright.support.errors import UserError
from tilewright.support.input_spec import InputSpec, dim_name
from tilewright.support.sizes import SizeExpr


def check_named(names: Iterable[str], specs: Iterable[TensorSpec | InputSpec]) -> None:
    """All of these are inputs."""
    known = [s.name for s in specs]
    for name in names:
        if name not in known:
            raise UserError(f"the model has no input {name!r}", hint=f"its inputs are: {', '.join(known)}")


def fill_feeds(
    specs: Iterable[TensorSpec | InputSpec],
    given: Mapping[str, NDArray[Any]],
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, NDArray[Any]]:
    """Every input has a value: what is given, or random numbers that depend on `seed` only. Open dimensions have these
    `sizes`, those of the arrays, or else the largest that the program is made for.
    """
    specs = tuple(specs)
    check_named(given, specs)
    rng = np.random.default_rng(seed)
    values = {**sizes_of_arrays(specs, given), **(sizes or {})}
    return {s.name: given[s.name] if s.name in given else random_array(_at(s, values), rng) for s in specs}


def sizes_of_arrays(
    specs: Iterable[TensorSpec | InputSpec], arrays: Mapping[str, NDArray[Any]]
) -> dict[str, int]:
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


def read_npy(path: str) -> NDArray[Any]:
    """The file is data: anything that would need pickle is refused."""
    try:
        value: object = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as e:
        raise UserError(f"cannot read an array from {path}: {e}", hint="write it with numpy.save") from e
    if not isinstance(value, np.ndarray):
        raise UserError(f"{path} is an archive of arrays, not one array", hint="write it with numpy.save")
    return cast(NDArray[Any], value)


def write_npy(path: str, value: NDArray[Any]) -> None:
    try:
        with open(path, "wb") as file:  # numpy.save would add .npy to the name behind the user's back
            np.save(file, value, allow_pickle=False)
    except OSError as e:
        raise UserError(f"cannot write {path}: {e.strerror}") from e


def output_statistics(value: NDArray[Any]) -> dict[str, Any]:
    """Type, shape, least, largest and mean. None stands for what an empty array, or one with NaN, has not: JSON knows
    neither NaN nor infinity.
    """
    found: dict[str, Any] = {"dtype": str(value.dtype), "shape": list(value.shape)}
    numbers = value.astype(np.float64)
    finite = bool(numbers.size) and bool(np.isfinite(numbers).all())
    for key, of in (("min", np.min), ("max", np.max), ("mean", np.mean)):
        found[key] = float(of(numbers)) if finite else None
    found["finite"] = finite or not numbers.size
    return found
