"""Which values can an integer expression have, whatever the buffers hold?

    cast(i32, X[i]) - cast(i32, Z[0])      of u8: from -255 to 255, so it fits i16

Loads have any value of their type. Where arithmetic may leave the type it wraps, and nothing is known.
"""

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Binary, BinaryOp, Cast, Const, Expr, Select, Unary, UnaryOp
from tilewright.ir.simplify import Interval


def type_range(dtype: DType) -> Interval:
    """All values of an integer type, or of bool."""
    if dtype is DType.BOOL:
        return Interval(0, 1)
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return Interval(low, low + (1 << dtype.bits) - 1)


def fits_dtype(e: Expr, dtype: DType) -> bool:
    """Can `e` be stored as `dtype` and read back without a change, whatever it is computed from?"""
    if e.dtype.is_float or dtype.is_float:
        return False
    have, room = value_range(e), type_range(dtype)
    return room.lo <= have.lo and have.hi <= room.hi


def value_range(e: Expr) -> Interval:
    """Bounds of an integer or bool expression."""
    whole = type_range(e.dtype)
    match e:
        case Const():
            return Interval(int(e.value), int(e.value))
        case Cast() if not e.a.dtype.is_float:
            found = value_range(e.a)
        case Select():
            a, b = value_range(e.a), value_range(e.b)
            found = Interval(min(a.lo, b.lo), max(a.hi, b.hi))
        case Unary() if e.op is UnaryOp.NEG:
            a = value_range(e.a)
            found = Interval(-a.hi, -a.lo)
        case Binary() if e.op in (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL) and not e.a.dtype.is_float:
            found = _combined(e.op, value_range(e.a), value_range(e.b))
        case Binary() if e.op in (BinaryOp.MIN, BinaryOp.MAX) and not e.a.dtype.is_float:
            (low, high), (least, most) = value_range(e.a), value_range(e.b)
            one = min if e.op is BinaryOp.MIN else max
            found = Interval(one(low, least), one(high, most))
        case _:
            return whole
    return found if whole.lo <= found.lo and found.hi <= whole.hi else whole


def _combined(op: BinaryOp, a: Interval, b: Interval) -> Interval:
    match op:
        case BinaryOp.ADD:
            return Interval(a.lo + b.lo, a.hi + b.hi)
        case BinaryOp.SUB:
            return Interval(a.lo - b.hi, a.hi - b.lo)
        case _:
            ends = [x * y for x in a for y in b]
            return Interval(min(ends), max(ends))
