"""What callers pass in: inputs by name, and optionally the arrays to write outputs to. Checked before anything runs.

A fault names every wrong, missing and unknown feed at once. Arrays and array-likes must have the exact dtype; Python
numbers and lists take the input's dtype if it is of the same kind or wider (no fraction is ever dropped).
"""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from tilewright.runtime.memory import empty_aligned, maker_of
from tilewright.runtime.program import dtype_of
from tilewright.support.arrays import OpaqueArray
from tilewright.support.artifact import TensorSpec
from tilewright.support.errors import UserError

Feeds = Mapping[str, ArrayLike]
Buffers = Mapping[str, OpaqueArray]

_SHOWN = 4  # inputs or outputs, where all would be too many


def _describe(dtype: object, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def signature_text(tensors: Sequence[tuple[str, str]]) -> str:
    """Names and types, the first few of many."""
    shown = [f"{name}: {kind}" for name, kind in tensors[:_SHOWN]]
    more = [f"… {len(tensors) - _SHOWN} more"] * (len(tensors) > _SHOWN)
    return ", ".join([*shown, *more]) or "nothing"


def check_by_name(feeds: object, outputs: object, inputs: Sequence[str]) -> None:
    """Both are mappings. Callers that know another engine pass one array, or its arguments in their order."""
    if not _is_mapping(feeds):
        names = [f"{n!r}: …" for n in inputs[:_SHOWN]] + ["…"] * (len(inputs) > _SHOWN)
        order = "; inputs come first, unlike in ONNX Runtime" if _is_mapping(outputs) else ""
        raise UserError(
            f"inputs are given by name, in a mapping, and this is {_kind(feeds)}",
            hint=f"write run({{{', '.join(names)}}}){order}",
        )
    if outputs is not None and not _is_mapping(outputs):
        raise UserError(
            f"arrays for outputs are given by name, in a mapping, and this is {_kind(outputs)}",
            hint="leave it out: all outputs are returned, by name",
        )


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "get"))


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        array = cast(OpaqueArray, value)
        return f"one array, {_describe(array.dtype, array.shape)}"
    return "None" if value is None else f"of type {type(value).__name__}"


class Signature:
    """The inputs and outputs of a program, prepared for quick checks."""

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self.input_names = [s.name for s in inputs]
        self.output_names = [s.name for s in outputs]
        self._inputs = [(s.name, dtype_of(s), s.shape) for s in inputs]
        self._outputs = [(s.name, dtype_of(s), s.shape) for s in outputs]
        self._makers = [(maker_of(shape, dtype), shape, dtype) for _, dtype, shape in self._outputs]

    def __str__(self) -> str:
        """`x: float32[1, 8] -> y: float32[1, 4]`"""
        return " -> ".join(
            map(
                signature_text,
                ([(n, _describe(d, s)) for n, d, s in side] for side in (self._inputs, self._outputs)),
            )
        )

    def arrays(self, feeds: Feeds, buffers: Buffers | None) -> tuple[list[OpaqueArray], list[OpaqueArray]]:
        """To read from and to write to, in the program's order."""
        if feeds.__class__ is not dict or buffers is not None:
            check_by_name(feeds, buffers, self.input_names)
        inputs = self.inputs(feeds)
        return inputs, self.outputs(buffers, inputs)

    def inputs(self, feeds: Feeds) -> list[OpaqueArray]:
        """Contiguous, aligned arrays: the caller's own where they are so already."""
        arrays: list[OpaqueArray] = []
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

    def _convert(self, feeds: Feeds) -> list[OpaqueArray]:
        known = set(self.input_names)
        faults = [f"{name}: there is no such input" for name in sorted(map(str, feeds.keys() - known))]
        arrays: list[OpaqueArray] = []
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

    def new_outputs(self) -> list[OpaqueArray]:
        return [make(shape, dtype) for make, shape, dtype in self._makers]

    def outputs(self, buffers: Buffers | None, inputs: Sequence[OpaqueArray]) -> list[OpaqueArray]:
        """The arrays to write to: the caller's where given, otherwise new ones."""
        if buffers is None:
            return self.new_outputs()
        known = set(self.output_names)
        faults = [f"{name}: there is no such output" for name in sorted(map(str, buffers.keys() - known))]
        arrays: list[OpaqueArray] = []
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


def as_array(value: ArrayLike, dtype: np.dtype[np.generic]) -> OpaqueArray | str:
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


def _unfit(array: OpaqueArray, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> str | None:
    if array.dtype != dtype or array.shape != shape:
        return f"is {_describe(array.dtype, array.shape)}, should be {_describe(dtype, shape)}"
    if not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
        return "is not contiguous, aligned and writable"
    return None
