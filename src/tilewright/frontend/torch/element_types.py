"""Element types of PyTorch by their printed names, as numpy and ONNX call them."""

from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from tilewright.frontend.torch.unsupported import UnsupportedOperator

_TABLE: dict[str, tuple[int, np.dtype[Any]]] = {
    "torch.float32": (TensorProto.FLOAT, np.dtype(np.float32)),
    "torch.float64": (TensorProto.DOUBLE, np.dtype(np.float64)),
    "torch.float16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "torch.bfloat16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
    "torch.int8": (TensorProto.INT8, np.dtype(np.int8)),
    "torch.int16": (TensorProto.INT16, np.dtype(np.int16)),
    "torch.int32": (TensorProto.INT32, np.dtype(np.int32)),
    "torch.int64": (TensorProto.INT64, np.dtype(np.int64)),
    "torch.uint8": (TensorProto.UINT8, np.dtype(np.uint8)),
    "torch.uint16": (TensorProto.UINT16, np.dtype(np.uint16)),
    "torch.uint32": (TensorProto.UINT32, np.dtype(np.uint32)),
    "torch.uint64": (TensorProto.UINT64, np.dtype(np.uint64)),
    "torch.bool": (TensorProto.BOOL, np.dtype(np.bool_)),
}
_FLOATS = ("torch.float16", "torch.bfloat16", "torch.float32", "torch.float64")
_ORDER = (  # of promotion within and between categories
    *("torch.bool", "torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64"),
    *_FLOATS,
)


def onnx_element_type(dtype: object) -> int:
    """UnsupportedOperator for elements that we do not compute with (complex, quantised)."""
    return _entry(dtype)[0]


def numpy_type(dtype: object) -> np.dtype[Any]:
    return _entry(dtype)[1]


def is_float(dtype: object) -> bool:
    return str(dtype) in _FLOATS


def is_bool(dtype: object) -> bool:
    return str(dtype) == "torch.bool"


def _entry(dtype: object) -> tuple[int, np.dtype[Any]]:
    found = _TABLE.get(str(dtype))
    if found is None:
        raise UnsupportedOperator(f"elements of type {dtype}")
    return found


def promoted(dtypes: "list[tuple[str, int]]", numbers: "list[bool | int | float]") -> str:
    """The type that operands are brought to: `dtypes` and ranks of tensors, and Python numbers, by PyTorch's rules. A
    tensor of rank 0 counts only if its category (bool, integer, float) is above that of the others, a number likewise.
    """
    full = [d for d, rank in dtypes if rank]
    scalars = [d for d, rank in dtypes if not rank]
    best = _highest(full)
    zero = _highest(scalars)
    if zero is not None and (best is None or _category(zero) > _category(best)):
        best = zero
    for number in numbers:
        level = 0 if isinstance(number, bool) else 1 if isinstance(number, int) else 2
        if best is None or level > _category(best):
            best = ("torch.bool", "torch.int64", "torch.float32")[level]
    if best is None:
        raise UnsupportedOperator("operands without a type")
    return best


def _category(dtype: str) -> int:
    return 0 if is_bool(dtype) else 2 if is_float(dtype) else 1


def _highest(dtypes: "list[str]") -> str | None:
    if not dtypes:
        return None
    if {"torch.float16", "torch.bfloat16"} <= set(dtypes):
        dtypes = [*dtypes, "torch.float32"]
    if "torch.uint8" in dtypes and "torch.int8" in dtypes:
        dtypes = [*dtypes, "torch.int16"]
    unknown = [d for d in dtypes if d not in _ORDER]
    if unknown:
        if len(set(dtypes)) == 1:
            return dtypes[0]
        raise UnsupportedOperator(f"elements of type {unknown[0]} beside others")
    return max(dtypes, key=_ORDER.index)
