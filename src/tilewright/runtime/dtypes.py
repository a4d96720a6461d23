"""The element types of tensors by name. A name may come from a file, so only names on this list become dtypes."""

import ml_dtypes
import numpy as np

from tilewright.support.errors import UserError

_NUMPY = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_ML_DTYPES = (
    *("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float4_e2m1fn", "int2", "uint2", "int4", "uint4"),
)
_TABLE: dict[str, np.dtype[np.generic]] = {
    **{name: np.dtype(name) for name in _NUMPY},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_DTYPES},
}


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    found = _TABLE.get(name)
    if found is None:
        raise UserError(f"{name!r} is not a dtype of tensors", hint=f"known: {', '.join(_TABLE)}")
    return found
