"""Values as integers that are ordered as they are: the least comes first.

Of floats both zeros are equal, and NaN, whatever its bits, counts as larger than every number.
"""

from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Bitcast,
    Expr,
    binary,
    cast,
    const,
    equal,
    select,
)
from tilewright.ops.axes import accumulator


def key_dtype(dtype: DType) -> DType:
    """Of the keys: signed, which is what vectors compare."""
    return DType.I64 if accumulator(dtype).bits == 64 else DType.I32


def worst_key(dtype: DType) -> Expr:
    """The key, of this type, that no other comes after."""
    return const((1 << (dtype.bits - 1)) - 1, dtype)


def order_key(value: Expr, largest: bool) -> Expr:
    """The key of a value. The `largest` value has the least one, or else the smallest."""
    key = _ascending(value)
    return binary(BinaryOp.XOR, key, const(-1, key.dtype)) if largest else key


def _ascending(value: Expr) -> Expr:
    dtype = accumulator(value.dtype)
    to, value = key_dtype(dtype), cast(dtype, value)
    if dtype.is_float:
        # Adding zero makes a positive zero of the negative one. Of negative numbers all bits but the sign are inverted.
        bits = Bitcast(to, Binary(BinaryOp.ADD, value, const(0.0, dtype)))
        most = worst_key(to)
        flipped = binary(BinaryOp.AND, binary(BinaryOp.SHR, bits, const(to.bits - 1, to)), most)
        return select(equal(value, value), binary(BinaryOp.XOR, bits, flipped), most)
    if dtype.bits == to.bits and not dtype.is_signed:
        return binary(BinaryOp.XOR, Bitcast(to, value), const(-(1 << (to.bits - 1)), to))
    return cast(to, value)
