"""ONNX's types of values that are there."""

from typing import Any, cast

import numpy as np
from onnx import TensorProto, TypeProto, helper

_FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, None)


def type_of(value: Any) -> TypeProto:
    """ONNX's type of a computed value. Of an empty sequence and of nothing the elements' type is not known: they
    count as float32.
    """
    match value:
        case None:
            return helper.make_optional_type_proto(_FLOATS)
        case list():
            first: Any = value[0] if value else None  # pyright: ignore[reportUnknownVariableType]
            inner = _FLOATS if first is None else type_of(first)
            if inner.HasField("tensor_type"):
                inner.tensor_type.ClearField("shape")  # others of the sequence may have another
            return helper.make_sequence_type_proto(inner)
        case dict():
            key, element = next(iter(cast("dict[Any, Any]", value).items()), (0, 0.0))
            return helper.make_map_type_proto(_element(np.array(key)), type_of(np.array(element)))
        case _:
            array = np.asarray(value)
            return helper.make_tensor_type_proto(_element(array), array.shape)


def _element(array: np.ndarray[Any, Any]) -> int:
    return TensorProto.STRING if array.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(array.dtype)
