"""expand_rounding: floor, ceil, round and trunc become arithmetic, for targets without instructions for them.

    round(x)   ──>   select(|x| < 2^23, copysign((|x| + 2^23) - 2^23, x), x)

Adding 2^23 (2^52 for f64) leaves no bits for a fraction, so the addition itself rounds, half to even. Larger values
have no fraction to begin with. The result takes the sign of x, which is right for zeros too: floor(-0.0) and
ceil(-0.5) are -0.0. NaN fails the comparison and passes through.
"""

from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Bitcast,
    Expr,
    Unary,
    UnaryOp,
    const,
    select,
    unary,
)
from tilewright.ir.traits import FUNCTIONS
from tilewright.tir.func import Func
from tilewright.tir.rewrite import rewrite_where

# The least power of two from which on all values are integers, and the integer type of the bits.
_WHOLE = {DType.F32: 2.0**23, DType.F64: 2.0**52}
_BITS = {DType.F32: DType.U32, DType.F64: DType.U64}
_ROUNDINGS = frozenset({UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC})


def expand_rounding(func: Func) -> Func:
    def rule(n: Expr) -> Expr | None:
        if isinstance(n, Unary) and n.op in _ROUNDINGS and n.dtype in _WHOLE:
            return _rounded(n.op, n.a)
        return None

    return func.with_body(rewrite_where(func.body, FUNCTIONS, rule))


def _rounded(op: UnaryOp, x: Expr) -> Expr:
    whole = const(_WHOLE[x.dtype], x.dtype)
    size = unary(UnaryOp.ABS, x)
    near = (size + whole) - whole
    match op:
        case UnaryOp.TRUNC:
            near = select(size < near, near - 1, near)
        case UnaryOp.FLOOR:
            near = _with_sign(near, x)
            near = select(x < near, near - 1, near)
        case UnaryOp.CEIL:
            near = _with_sign(near, x)
            near = select(near < x, near + 1, near)
        case _:
            pass
    return select(size < whole, _with_sign(near, x), x)


def _with_sign(size: Expr, sign: Expr) -> Expr:
    """copysign: the bits of `size` with the sign of `sign`."""
    bits = _BITS[size.dtype]
    top = 1 << (bits.bits - 1)
    rest = Binary(BinaryOp.AND, Bitcast(bits, size), const(top - 1, bits))
    return Bitcast(
        size.dtype, Binary(BinaryOp.OR, rest, Binary(BinaryOp.AND, Bitcast(bits, sign), const(top, bits)))
    )
