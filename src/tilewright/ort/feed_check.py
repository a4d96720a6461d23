"""What is wrong with feeds, in ONNX Runtime's words. Looked at only after a run has failed."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from tilewright.ort.element_types import dtype_of_word, element_number, tensor_word
from tilewright.ort.exceptions import InvalidArgument
from tilewright.ort.node_arg import NodeArg
from tilewright.ort.ort_value import OrtValue
from tilewright.support.arrays import OpaqueArray

_FIX = "Please fix either the inputs/outputs or the model."


def check_fed(feeds: Mapping[str, Any], inputs: Sequence[NodeArg]) -> None:
    """ValueError if some are missing."""
    names = list(feeds.keys())
    missing = [i.name for i in inputs if i.name not in names and not i.type.startswith("optional")]
    if missing:
        raise ValueError(f"Required inputs ({missing}) are missing from input feed ({names}).")


def check_feeds(
    feeds: Mapping[str, Any], inputs: Sequence[NodeArg], overridable: Sequence[NodeArg] = ()
) -> None:
    """InvalidArgument for what does not fit; nothing if the model should take it."""
    check_fed(feeds, inputs)
    known = {a.name: a for a in (*overridable, *inputs)}
    for name, value in feeds.items():
        arg = known.get(name)
        if arg is None:
            raise InvalidArgument(f"Invalid input name: {name}")
        dtype = dtype_of_word(arg.type)
        if dtype is None or value is None:
            continue
        if isinstance(value, bool | int | float | complex | str | bytes):
            raise RuntimeError(f"Unable to handle object of type {type(value)}")
        given = value.content() if isinstance(value, OrtValue) else value
        if isinstance(given, list | dict):
            continue  # elements take the input's type
        array = cast(OpaqueArray, np.asarray(given))
        actual = tensor_word(element_number(array.dtype))
        if actual != arg.type:
            raise InvalidArgument(f"Unexpected input data type. Actual: ({actual}) , expected: ({arg.type})")
        _check_shape(arg, array.shape)


def _check_shape(arg: NodeArg, shape: tuple[int, ...]) -> None:
    if not arg.shape:
        return  # a scalar, or not known
    if len(shape) != len(arg.shape):
        raise InvalidArgument(
            f"Invalid rank for input: {arg.name} Got: {len(shape)} Expected: {len(arg.shape)} {_FIX}"
        )
    wrong = [
        f" index: {i} Got: {n} Expected: {want}\n"
        for i, (n, want) in enumerate(zip(shape, arg.shape, strict=True))
        if isinstance(want, int) and want != n
    ]
    if wrong:
        raise InvalidArgument(
            f"Got invalid dimensions for input: {arg.name} for the following indices\n{''.join(wrong)} {_FIX}"
        )
