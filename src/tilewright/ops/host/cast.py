"""Conversion of elements that native code does not know: strings, floats of 8, 6 and 4 bits, integers of 4 and 2.

They are numpy arrays of the types that ml_dtypes has; strings are arrays of objects. Conversions round once, half to
even. What is too large for a float of 8 bits becomes the largest finite one, or, without `saturate`, what the type has
for it: infinity or NaN.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import ml_dtypes
import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import ONNX_DTYPES, ONNX_NUMBERS, OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_STRING = np.dtype(object)
_ONNX_STRING, _COMPLEX = 8, (14, 15)  # as ONNX numbers its element types
_OTHER_TYPES: Mapping[int, np.dtype[Any]] = {  # that native code does not know
    _ONNX_STRING: _STRING,
    17: np.dtype(ml_dtypes.float8_e4m3fn),
    18: np.dtype(ml_dtypes.float8_e4m3fnuz),
    19: np.dtype(ml_dtypes.float8_e5m2),
    20: np.dtype(ml_dtypes.float8_e5m2fnuz),
    21: np.dtype(ml_dtypes.uint4),
    22: np.dtype(ml_dtypes.int4),
    23: np.dtype(ml_dtypes.float4_e2m1fn),
    24: np.dtype(ml_dtypes.float8_e8m0fnu),
    25: np.dtype(ml_dtypes.uint2),
    26: np.dtype(ml_dtypes.int2),
    27: np.dtype(ml_dtypes.float6_e2m3fn),
    28: np.dtype(ml_dtypes.float6_e3m2fn),
}
_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
_LARGEST = {  # finite numbers of the floats of 8 bits that saturate
    np.dtype(ml_dtypes.float8_e4m3fn): 448.0,
    np.dtype(ml_dtypes.float8_e4m3fnuz): 240.0,
    np.dtype(ml_dtypes.float8_e5m2): 57344.0,
    np.dtype(ml_dtypes.float8_e5m2fnuz): 57344.0,
}
FEW_BITS = {
    np.dtype(ml_dtypes.int4): 4,
    np.dtype(ml_dtypes.uint4): 4,
    np.dtype(ml_dtypes.int2): 2,
    np.dtype(ml_dtypes.uint2): 2,
}


def element_type(number: int) -> np.dtype[Any]:
    """The numpy type of an ONNX element type."""
    if number in _COMPLEX:
        raise UserError("complex numbers cannot be converted")
    if number in ONNX_DTYPES:
        return ONNX_DTYPES[number].numpy
    if number not in _OTHER_TYPES:
        raise UserError(f"there is no element type {number}")
    return _OTHER_TYPES[number]


def convert_array(x: Array, dtype: np.dtype[Any], saturate: bool = True, round_mode: str = "up") -> Array:
    """`x` with elements of another type."""
    if x.dtype == dtype:
        return x
    if x.dtype == _STRING:
        return _from_strings(x, dtype, saturate, round_mode)
    with np.errstate(all="ignore"):
        if dtype == _STRING:
            return _to_strings(x)
        if dtype == np.bool_:
            return x.astype(np.float64) != 0 if x.dtype.kind not in "iu" else x != 0
        if dtype == _E8M0:
            return _to_e8m0(x.astype(np.float64), saturate, round_mode)
        if dtype in _LARGEST:
            return _to_float8(x, dtype, saturate)
        if dtype in FEW_BITS:
            return _to_few_bits(x, dtype)
        if x.dtype.kind not in "biufc" and dtype.kind in "iu":  # types of ml_dtypes: f32 holds them all
            return x.astype(np.float32).astype(np.int64).astype(dtype)
        return x.astype(dtype)


def _to_float8(x: Array, dtype: np.dtype[Any], saturate: bool) -> Array:
    if not saturate:
        return x.astype(dtype)
    largest = _LARGEST[dtype]
    wide = x.astype(np.float64 if x.dtype == np.float64 or x.dtype.kind in "iu" else np.float32)
    return np.clip(wide, -largest, largest).astype(dtype)


def _to_e8m0(x: Array, saturate: bool, round_mode: str) -> Array:
    """Powers of two from 2^-127 to 2^127: only the exponent is kept. Negative numbers have none."""
    mantissa, exponent = np.frexp(x)  # x = mantissa · 2^exponent, with a mantissa from 0.5 to below 1
    match round_mode:
        case "up":
            up = mantissa > 0.5
        case "down":
            up = np.zeros(x.shape, np.bool_)
        case "nearest":
            up = mantissa >= 0.75
        case _:
            raise UserError(f"there is no round_mode '{round_mode}'", hint="up, down or nearest")
    power = np.where(x == 0, -1000, np.where(np.isinf(x), 1000, exponent - 1 + up))
    wrong = np.isnan(x) | (x < 0)
    if not saturate:
        wrong = wrong | (power < -127) | (power > 127)
    bits = np.where(wrong, 255, np.clip(power, -127, 127) + 127)
    return bits.astype(np.uint8).view(_E8M0)


def _to_few_bits(x: Array, dtype: np.dtype[Any]) -> Array:
    """Integers of a few bits keep the low ones, as all integers do."""
    whole = x if x.dtype.kind in "iu" else x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    bits, signed = FEW_BITS[dtype], dtype in (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.int2))
    low = whole.astype(np.int64) & ((1 << bits) - 1)
    return ((low ^ (1 << (bits - 1))) - (1 << (bits - 1)) if signed else low).astype(np.int8).astype(dtype)


def _to_strings(x: Array) -> Array:
    if x.dtype.kind in "biu" or x.dtype in FEW_BITS:
        texts = [str(int(v)) for v in x.reshape(-1)]
    else:
        digits = 17 if x.dtype == np.float64 else 8
        texts = [_number_text(float(v), digits) for v in x.reshape(-1)]
    return np.array(texts, _STRING).reshape(x.shape)


def _number_text(v: float, digits: int) -> str:
    if np.isnan(v):
        return "NaN"
    if np.isinf(v):
        return "INF" if v > 0 else "-INF"
    return f"{v:.{digits}g}"


def _from_strings(x: Array, dtype: np.dtype[Any], saturate: bool, round_mode: str) -> Array:
    texts = [v.decode() if isinstance(v, bytes) else str(v) for v in x.reshape(-1)]
    if dtype.kind in "iu" or dtype in FEW_BITS:
        wide = np.array([_whole(t) for t in texts], np.uint64 if dtype == np.uint64 else np.int64)
    else:
        wide = np.array([float(t) for t in texts], np.float64)
    return convert_array(wide, dtype, saturate, round_mode).reshape(x.shape)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


@dataclass(frozen=True, slots=True)
class CastOnHost(HostOp):
    onnx = ("Cast", "CastLike")
    why = "it converts from or to elements that only the host computes with"
    to: int = 0  # the type's number; 0: that of input 1
    saturate: bool = True
    round_mode: str = "up"

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        to = 0 if node.op_type == "CastLike" else node.integer("to", 0)
        return cls(to, bool(node.integer("saturate", 1)), node.text("round_mode", "up"))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        dtype = element_type(self.to) if self.to else tensor(inputs[1], "input 1").dtype
        return (convert_array(tensor(inputs[0], "input 0"), dtype, self.saturate, self.round_mode),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = np.array([0.0, -0.0, 0.3, -1.5, 447.0, 470.0, 1e6, -1e6, np.inf, -np.inf, np.nan], np.float32)
        for to in (17, 18, 19, 20):
            for saturate in (0, 1):
                yield HostSample("Cast", (x,), {"to": to, "saturate": saturate})
        powers = np.array([1.0, 1.4, 1.5, 3.0, 0.1, 2.0**-120], np.float32)
        for mode in ("up", "down", "nearest"):
            yield HostSample("Cast", (powers,), {"to": 24, "round_mode": mode})
        small = np.array([-9, -8, -2, -1, 0, 1, 3, 7, 8, 15], np.float32)
        for to in (21, 22, 23, 25, 26):
            yield HostSample("Cast", (small,), {"to": to})
        for t in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e5m2):
            for to in (1, 10):
                yield HostSample("Cast", (np.array([0, 1, 3, 7], np.float32).astype(t),), {"to": to})
        yield HostSample("CastLike", (small, np.zeros(1, ml_dtypes.int4)))
        texts = np.array(["1.5", "-2", "1e3", "NaN", "-INF", "+inf"], object)
        for to in (1, 11):
            yield HostSample("Cast", (texts,), {"to": to})
        yield HostSample("Cast", (np.array([["7"], ["-12"]], object),), {"to": ONNX_NUMBERS[DType.I64]})
        for numbers in (np.array([1.5, -0.25, 1e10, np.nan, -np.inf], np.float32), np.array([3, -4])):
            yield HostSample("Cast", (numbers,), {"to": _ONNX_STRING})
