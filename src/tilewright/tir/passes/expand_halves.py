"""widen_halves, expand_half_casts: arithmetic on f16 and bf16 becomes arithmetic on f32.

    Y[i] = X[i] + X[j]      ──>      Y[i] = cast(f16, cast(f32, X[i]) + cast(f32, X[j]))

Memory keeps the short form. Values are f32 that an f16 (bf16) can hold: every operation rounds to it. That f32 rounds
first does not show, for it has more than twice the bits. A fused multiply-add is the exception and goes through f64,
as do casts from wider types; both round to odd on the way.

`expand_half_casts` then spells out the conversions as integer arithmetic, where the target has no instruction.
"""

from collections.abc import Callable

from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    COMPARISONS,
    Binary,
    BinaryOp,
    Bitcast,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Unary,
    UnaryOp,
    binary,
    cast,
    const,
    select,
    unary,
)
from tilewright.ir.traits import HALVES
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_exprs, rewrite_where, transform_stmt
from tilewright.tir.stmt import Stmt, Store
from tilewright.tir.touched import touched

_HALVES = frozenset({DType.F16, DType.BF16})
# Their results are values of the type again: nothing to round.
_EXACT = frozenset({UnaryOp.NEG, UnaryOp.ABS, UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC})
_CHOICES = frozenset({BinaryOp.MIN, BinaryOp.MAX})


def widen_halves(func: Func) -> Func:
    """After it, the only operations on halves are loads, stores, bitcasts, and casts from and to f32."""
    if not touched(func.body).kinds & HALVES:
        return func
    widen = _Widening()

    def narrow(s: Stmt) -> Stmt | None:
        if isinstance(s, Store) and s.buffer.dtype in _HALVES:
            return Store(s.buffer, s.indices, cast(s.buffer.dtype, s.value))
        return None

    return func.with_body(transform_stmt(map_exprs(func.body, widen), narrow))


class _Widening:
    """An expression with f32 in the place of halves. Each distinct node once."""

    def __init__(self) -> None:
        self._memo: dict[Expr, Expr] = {}

    def __call__(self, e: Expr) -> Expr:
        out = self._memo.get(e)
        if out is None:
            out = self._widen(e)
            self._memo[e] = out
        return out

    def _widen(self, e: Expr) -> Expr:
        children = tuple([self(c) for c in e.children()])
        same = all(a is b for a, b in zip(children, e.children(), strict=True))
        dtype = e.dtype
        if dtype not in _HALVES:
            if isinstance(e, Bitcast) and e.a.dtype in _HALVES:
                return Bitcast(dtype, cast(e.a.dtype, children[0]))
            return e if same else e.rebuild(children)
        match e:
            case Const():
                return const(e.value, DType.F32)
            case Load():
                return cast(DType.F32, e if same else Load(e.buffer, children))
            case Bitcast():
                return cast(DType.F32, Bitcast(dtype, children[0]))
            case Unary() if e.op not in _EXACT:
                return _rounded(dtype, unary(e.op, children[0]))
            case Binary() if e.op not in _CHOICES and e.op not in COMPARISONS:
                return _rounded(dtype, binary(e.op, *children))
            case Fma():
                a, b, c = (cast(DType.F64, x) for x in children)
                return _rounded(dtype, _to_odd_f32(_add_to_odd(a * b, c)))  # the product is exact in f64
            case Cast():
                return _rounded(dtype, _as_f32(e.a.dtype, children[0]))
            case _:
                return e.rebuild(children)


def _rounded(half: DType, x: Expr) -> Expr:
    return cast(DType.F32, cast(half, x))


def _as_f32(source: DType, x: Expr) -> Expr:
    """A value of type `source` (in f32 if it was a half) as f32, such that rounding it once more does not show."""
    if source in _HALVES or source is DType.F32 or source.bits <= 16:
        return cast(DType.F32, x)
    if source.is_int and source.bits == 64:
        x = _keep_52_bits(x)
    return _to_odd_f32(cast(DType.F64, x))


def _keep_52_bits(x: Expr) -> Expr:
    """A 64-bit integer as f64 holds it: truncated if it is large, with the last bit set if anything was lost."""
    low = Binary(BinaryOp.AND, x, const(0xFFF, x.dtype))
    lost = cast(x.dtype, Binary(BinaryOp.NE, low, const(0, x.dtype)))
    odd = _shl(Binary(BinaryOp.OR, _shr(x, 12), lost), 12)
    size = unary(UnaryOp.ABS, x) if x.dtype.is_signed else x
    return select(Binary(BinaryOp.EQ, _shr(size, 53), const(0, x.dtype)), x, odd)


def _add_to_odd(a: Expr, b: Expr) -> Expr:
    """a + b in f64, and where it is not exact, that neighbour of the exact sum of which the last bit is set."""
    total = a + b
    part = total - a
    lost = (a - (total - part)) + (b - part)
    bits = Bitcast(DType.U64, total)
    zero, one = const(0.0, DType.F64), const(1, DType.U64)
    outward = Binary(BinaryOp.EQ, lost < zero, total < zero)
    moved = select(outward, bits + one, bits - one)
    inexact = Binary(BinaryOp.OR, lost < zero, zero < lost)  # NaN where the sum is not finite: that stays
    is_even = Binary(BinaryOp.EQ, Binary(BinaryOp.AND, bits, one), const(0, DType.U64))
    return select(Binary(BinaryOp.AND, inexact, is_even), Bitcast(DType.F64, moved), total)


def _to_odd_f32(x: Expr) -> Expr:
    """f64 as f32: truncated, with the last bit set if anything was lost."""
    near = cast(DType.F32, x)
    back = cast(DType.F64, near)
    away = cast(DType.U32, unary(UnaryOp.ABS, x) < unary(UnaryOp.ABS, back))
    lost = cast(DType.U32, Binary(BinaryOp.NE, back, x))
    odd = Bitcast(DType.F32, Binary(BinaryOp.OR, Bitcast(DType.U32, near) - away, lost))
    return select(Binary(BinaryOp.NE, x, x), near, odd)


def _shl(x: Expr, by: int) -> Expr:
    return Binary(BinaryOp.SHL, x, const(by, x.dtype))


def _shr(x: Expr, by: int) -> Expr:
    return Binary(BinaryOp.SHR, x, const(by, x.dtype))


def _and(x: Expr, mask: int) -> Expr:
    return Binary(BinaryOp.AND, x, const(mask, x.dtype))


def _or(x: Expr, y: Expr | int) -> Expr:
    return Binary(BinaryOp.OR, x, const(y, x.dtype) if isinstance(y, int) else y)


# ------------------------------------------------------------------------------------------------- conversions


def expand_half_casts(func: Func, *, has_f16: bool = False) -> Func:
    """`has_f16`: casts between f16 and f32 are instructions, and stay."""

    def rule(n: Expr) -> Expr | None:
        if not isinstance(n, Cast):
            return None
        if n.a.dtype in _HALVES and not (has_f16 and n.a.dtype is DType.F16):
            return _EXPAND[n.a.dtype](n.a)
        if n.dtype in _HALVES and not (has_f16 and n.dtype is DType.F16):
            return _SHORTEN[n.dtype](n.a)
        return None

    return func.with_body(rewrite_where(func.body, HALVES, rule))


def _half_bits(x: Expr) -> Expr:
    if isinstance(x, Bitcast) and x.a.dtype is DType.U16:  # rounded just now
        return cast(DType.U32, x.a)
    return cast(DType.U32, Bitcast(DType.U16, x))


def _from_bf16(x: Expr) -> Expr:
    return Bitcast(DType.F32, _shl(_half_bits(x), 16))


def _to_bf16(x: Expr) -> Expr:
    bits = Bitcast(DType.U32, x)
    nearest = bits + (_and(_shr(bits, 16), 1) + 0x7FFF)  # half to even
    quiet = _or(bits, 0x400000)
    short = _shr(select(Binary(BinaryOp.NE, x, x), quiet, nearest), 16)
    return Bitcast(DType.BF16, cast(DType.U16, short))


def _from_f16(x: Expr) -> Expr:
    bits = _half_bits(x)
    size = _and(bits, 0x7FFF)
    shifted = _shl(size, 13)
    # The exponent is off by 112; a product is exact for denormals too.
    number = Bitcast(DType.U32, Bitcast(DType.F32, shifted) * 2.0**112)
    whole = select(size < 0x7C00, number, _or(shifted, 0x7F800000))  # infinity and NaN
    return Bitcast(DType.F32, _or(whole, _shl(_and(bits, 0x8000), 16)))


def _to_f16(x: Expr) -> Expr:
    bits = Bitcast(DType.U32, x)
    size = _and(bits, 0x7FFFFFFF)
    normal = _shr(size + (_and(_shr(size, 13), 1) + (0xFFF - (112 << 23))), 13)  # half to even
    # Below 2^-14 the step is 2^-24, that of floats from 0.5 on: adding 0.5 rounds.
    tiny = Bitcast(DType.U32, Bitcast(DType.F32, size) + 0.5) - 0x3F000000
    number = select(size < 0x38800000, tiny, normal)
    large = select(const(0x7F800000, DType.U32) < size, const(0x7E00, DType.U32), const(0x7C00, DType.U32))
    short = _or(select(size < 0x477FF000, number, large), _and(_shr(bits, 16), 0x8000))
    return Bitcast(DType.F16, cast(DType.U16, short))


_EXPAND: dict[DType, Callable[[Expr], Expr]] = {DType.F16: _from_f16, DType.BF16: _from_bf16}
_SHORTEN: dict[DType, Callable[[Expr], Expr]] = {DType.F16: _to_f16, DType.BF16: _to_bf16}
