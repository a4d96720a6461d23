"""What callers pass in: inputs by name, and optionally the arrays to write outputs to. Checked before anything runs.

A fault names every wrong, missing and unknown feed at once. Arrays and array-likes must have the exact dtype; Python
numbers and lists take the input's dtype if it is of the same kind or wider (no fraction is ever dropped).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from tilewright.runtime.memory import empty_aligned
from tilewright.runtime.program import Array, dtype_of
from tilewright.support.artifact import TensorSpec
from tilewright.support.errors import UserError

Feeds = Mapping[str, ArrayLike]
Buffers = Mapping[str, Array]


def _describe(dtype: object, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


class Signature:
    """The inputs and outputs of a program, prepared for quick checks."""

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self.input_names = [s.name for s in inputs]
        self.output_names = [s.name for s in outputs]
        self._inputs = [(s.name, dtype_of(s), s.shape) for s in inputs]
        self._outputs = [(s.name, dtype_of(s), s.shape) for s in outputs]

    def inputs(self, feeds: Feeds) -> list[Array]:
        """Contiguous, aligned arrays in the program's order: the caller's own where they are so already."""
        arrays: list[Array] = []
        if len(feeds) == len(self._inputs):
            for name, dtype, shape in self._inputs:
                array = feeds.get(name)
                if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                    break
                flags = array.flags
                if not (flags.c_contiguous and flags.aligned):
                    break
                arrays.append(array)
            else:
                return arrays
        return self._convert(feeds)

    def _convert(self, feeds: Feeds) -> list[Array]:
        known = set(self.input_names)
        faults = [f"{name}: there is no such input" for name in sorted(map(str, feeds.keys() - known))]
        arrays: list[Array] = []
        for name, dtype, shape in self._inputs:
            if name not in feeds:
                faults.append(f"{name}: missing, should be {_describe(dtype, shape)}")
                continue
            array = as_array(feeds[name], dtype)
            if isinstance(array, str):
                faults.append(f"{name}: {array}")
            elif array.dtype != dtype or array.shape != shape:
                faults.append(
                    f"{name}: is {_describe(array.dtype, array.shape)}, should be {_describe(dtype, shape)}"
                )
            else:
                arrays.append(np.require(array, requirements=("C", "A")))
        if faults:
            raise UserError(
                "the feeds do not fit the program:" + "".join(f"\n  {f}" for f in faults),
                hint="it takes "
                + (", ".join(f"{n}: {_describe(d, s)}" for n, d, s in self._inputs) or "no inputs"),
            )
        return arrays

    def outputs(self, buffers: Buffers | None, inputs: Sequence[Array]) -> list[Array]:
        """The arrays to write to: the caller's where given, otherwise new ones."""
        if buffers is None:
            return [empty_aligned(shape, dtype) for _, dtype, shape in self._outputs]
        known = set(self.output_names)
        faults = [f"{name}: there is no such output" for name in sorted(map(str, buffers.keys() - known))]
        arrays: list[Array] = []
        taken = [(f"input {n}", a) for n, a in zip(self.input_names, inputs, strict=True)]
        for name, dtype, shape in self._outputs:
            array = buffers.get(name)
            if array is None:
                arrays.append(empty_aligned(shape, dtype))
                continue
            # the annotation promises an array; a caller may break it
            is_array = isinstance(array, np.ndarray)  # pyright: ignore[reportUnnecessaryIsInstance]
            fault = _unfit(array, dtype, shape) if is_array else f"is a {type(array).__name__}, not an array"
            if fault is None:
                other = next((n for n, a in taken if np.may_share_memory(a, array)), None)
                fault = other and f"shares memory with {other}"
            if fault is not None:
                faults.append(f"{name}: {fault}")
            if is_array:
                arrays.append(array)
                taken.append((f"output {name}", array))
        if faults:
            raise UserError(
                "the output arrays do not fit the program:" + "".join(f"\n  {f}" for f in faults),
                hint="it gives " + ", ".join(f"{n}: {_describe(d, s)}" for n, d, s in self._outputs),
            )
        return arrays


def as_array(value: ArrayLike, dtype: np.dtype[np.generic]) -> Array | str:
    """The value as an array, or what is wrong with it."""
    try:
        if not isinstance(value, (bool, int, float, complex, list, tuple)):
            is_foreign = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
            return np.from_dlpack(value) if is_foreign else np.asarray(value)  # pyright: ignore
        natural = np.asarray(value)
        if natural.size and not _is_safe(natural.dtype, dtype):
            return f"is {_describe(natural.dtype, natural.shape)}, which does not fit {dtype} without loss"
        return np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError, RuntimeError, BufferError) as error:
        return f"cannot be read as an array: {error}"


def _is_safe(given: np.dtype[np.generic], wanted: np.dtype[np.generic]) -> bool:
    rank = "biufc".find(given.kind)
    if rank < 0:
        return False
    if wanted.kind not in "biufc":  # ml_dtypes: floats, and small integers
        return given.kind in "biuf" if "float" in wanted.name else given.kind in "bi"
    return np.can_cast(given, wanted, "same_kind") or (given.kind == "i" and wanted.kind == "u")


def _unfit(array: Array, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> str | None:
    if array.dtype != dtype or array.shape != shape:
        return f"is {_describe(array.dtype, array.shape)}, should be {_describe(dtype, shape)}"
    if not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
        return "is not contiguous, aligned and writable"
    return None
