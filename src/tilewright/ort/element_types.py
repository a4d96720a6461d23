"""Types of elements: ONNX's numbers, ONNX Runtime's words, and numpy's types."""

from typing import Any

import ml_dtypes
import numpy as np

# ONNX's number, the word in "tensor(…)", numpy's type.
_TYPES: tuple[tuple[int, str, Any], ...] = (
    (1, "float", np.float32),
    (2, "uint8", np.uint8),
    (3, "int8", np.int8),
    (4, "uint16", np.uint16),
    (5, "int16", np.int16),
    (6, "int32", np.int32),
    (7, "int64", np.int64),
    (8, "string", object),
    (9, "bool", np.bool_),
    (10, "float16", np.float16),
    (11, "double", np.float64),
    (12, "uint32", np.uint32),
    (13, "uint64", np.uint64),
    (14, "complex64", np.complex64),
    (15, "complex128", np.complex128),
    (16, "bfloat16", ml_dtypes.bfloat16),
    (17, "float8e4m3fn", ml_dtypes.float8_e4m3fn),
    (18, "float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
    (19, "float8e5m2", ml_dtypes.float8_e5m2),
    (20, "float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
    (21, "uint4", ml_dtypes.uint4),
    (22, "int4", ml_dtypes.int4),
    (23, "float4e2m1", ml_dtypes.float4_e2m1fn),
)
_WORDS = {number: word for number, word, _ in _TYPES}
_DTYPES: dict[int, np.dtype[Any]] = {number: np.dtype(kind) for number, _, kind in _TYPES}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_BY_WORD = {f"tensor({word})": _DTYPES[number] for number, word, _ in _TYPES}

STRING = 8


def tensor_word(number: int) -> str:
    """`tensor(float)` for 1."""
    return f"tensor({_WORDS.get(number, 'undefined')})"


def dtype_of_word(word: str) -> np.dtype[Any] | None:
    """numpy's type for `tensor(float)`; None if it is no tensor."""
    return _BY_WORD.get(word)


def dtype_of_number(number: int) -> np.dtype[Any]:
    """numpy's type for ONNX's number. ValueError if there is none."""
    found = _DTYPES.get(number)
    if found is None:
        raise ValueError(f"{number} is no type of elements in ONNX")
    return found


def element_number(dtype: np.dtype[Any]) -> int:
    """ONNX's number for a type of numpy: text of any length is `string`. 0 if there is none."""
    return STRING if dtype.kind in "USTO" else _NUMBERS.get(dtype, 0)


def as_dtype(element_type: Any) -> np.dtype[Any]:
    """What callers pass where an element type is wanted: ONNX's number, or anything that numpy takes for a type."""
    if isinstance(element_type, int):
        return dtype_of_number(element_type)
    return np.dtype(element_type)
