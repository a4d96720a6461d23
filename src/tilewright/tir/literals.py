"""Literals as text. A bare integer is an index; every other literal says its type."""

import math
import struct

import numpy as np

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Const


def literal_text(c: Const) -> str:
    """The literal, with as many digits as it takes to get its bits back."""
    if c.dtype is DType.BOOL or c.dtype is INDEX:
        return repr(c.value)
    return f"{c.dtype}({_float(c) if c.dtype.is_float else c.value})"


_NAN = struct.pack("<d", math.nan)


def _float(c: Const) -> str:
    value = float(c.value)
    if math.isnan(value):
        bits = struct.pack("<d", value)
        return "nan" if bits == _NAN else f"nan({struct.unpack('<Q', bits)[0]:#x})"
    if math.isinf(value) or c.dtype is DType.F64:
        return repr(value)
    return str(np.float32(value))  # the shorter floats are float32 values too, and its digits identify them
