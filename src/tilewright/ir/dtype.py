"""Scalar types.

Integer arithmetic wraps; index arithmetic is `i64` and must not overflow. Floats are IEEE 754 with denormals.
There is no implicit promotion: operands of one operation have one type, and `Cast` is explicit.
"""

from enum import Enum, unique

import ml_dtypes
import numpy as np


@unique
class DType(Enum):
    """A scalar type. The member's value is its spelling in TIR text."""

    BOOL = "bool"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"

    # Enum's own hash goes through the name's; identity is enough and these are dictionary keys on hot paths.
    __hash__ = object.__hash__

    @property
    def bits(self) -> int:
        return _BITS[self]

    @property
    def bytes(self) -> int:
        """Size in memory; a bool takes a whole byte there."""
        return max(self.bits // 8, 1)

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def is_half(self) -> bool:
        return self is DType.F16 or self is DType.BF16

    @property
    def is_int(self) -> bool:
        """Signed or unsigned integer; not bool."""
        return self not in _FLOATS and self is not DType.BOOL

    @property
    def is_signed(self) -> bool:
        return self in _SIGNED

    @property
    def numpy(self) -> np.dtype:
        return _NUMPY[self]

    @staticmethod
    def of(dtype: np.dtype) -> "DType":
        """The type of a numpy array's elements; KeyError if there is none."""
        return _OF_NUMPY[np.dtype(dtype)]

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__


INDEX = DType.I64

_FLOATS = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})
_SIGNED = frozenset({DType.I8, DType.I16, DType.I32, DType.I64})
_BITS = {d: 1 if d is DType.BOOL else int(d.value.lstrip("biuf")) for d in DType}
_NUMPY: dict[DType, np.dtype] = {
    DType.BOOL: np.dtype(np.bool_),
    DType.I8: np.dtype(np.int8),
    DType.I16: np.dtype(np.int16),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
    DType.U8: np.dtype(np.uint8),
    DType.U16: np.dtype(np.uint16),
    DType.U32: np.dtype(np.uint32),
    DType.U64: np.dtype(np.uint64),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
}
_OF_NUMPY = {n: d for d, n in _NUMPY.items()}
