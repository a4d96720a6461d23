"""LLVM's spelling of our types and literals, and the values the emitter juggles.

f16 and bf16 are 16 bits without arithmetic here: `tir.passes.expand_halves` has made it arithmetic on f32.
"""

import math
import struct
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scalar

_SCALAR = {
    DType.BOOL: "i1",
    DType.I8: "i8",
    DType.U8: "i8",
    DType.I16: "i16",
    DType.U16: "i16",
    DType.I32: "i32",
    DType.U32: "i32",
    DType.I64: "i64",
    DType.U64: "i64",
    DType.F16: "i16",
    DType.BF16: "i16",
    DType.F32: "float",
    DType.F64: "double",
}

_NAN = "0x7FF8000000000000"


def llvm_type(dtype: DType, lanes: int = 1) -> str:
    """Of a value in a register."""
    t = _SCALAR[dtype]
    return t if lanes == 1 else f"<{lanes} x {t}>"


def memory_type(dtype: DType, lanes: int = 1) -> str:
    """Of a value in memory: a bool takes a byte there."""
    t = "i8" if dtype is DType.BOOL else _SCALAR[dtype]
    return t if lanes == 1 else f"<{lanes} x {t}>"


def literal(value: Scalar, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    if dtype in (DType.F32, DType.F64):
        v = float(value)
        if math.isnan(v):
            return _NAN
        return f"0x{struct.unpack('<Q', struct.pack('<d', v))[0]:016X}"
    return str(int.from_bytes(dtype.numpy.type(value).tobytes(), "little"))


@dataclass(frozen=True, slots=True)
class Val:
    """An SSA value or literal; `lanes` is 1 for a scalar."""

    name: str
    dtype: DType
    lanes: int = 1

    @property
    def type(self) -> str:
        return llvm_type(self.dtype, self.lanes)

    @property
    def is_literal(self) -> bool:
        return not self.name.startswith("%")

    @property
    def known(self) -> int | None:
        """The value of an integer literal."""
        return int(self.name) if self.dtype.is_int and self.name.lstrip("-").isdigit() else None

    @property
    def is_number(self) -> bool:
        """Is it a literal float, one or a vector of it, and not NaN?"""
        is_float = self.dtype in (DType.F32, DType.F64) and self.is_literal
        return is_float and "0x" in self.name and _NAN not in self.name

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


def splat_literal(val: Val, lanes: int) -> Val | None:
    """A literal repeated; None if `val` is not a literal."""
    if not val.is_literal:
        return None
    name = "poison" if val.name == "poison" else f"splat ({llvm_type(val.dtype)} {val.name})"
    return Val(name, val.dtype, lanes)


def intrinsic_type(dtype: DType, lanes: int = 1) -> str:
    """The type as intrinsics spell it in their names."""
    t = {"float": "f32", "double": "f64"}.get(_SCALAR[dtype], _SCALAR[dtype])
    return t if lanes == 1 else f"v{lanes}{t}"
