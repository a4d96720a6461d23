"""The meaning of scalar expressions, in numpy.

`evaluate` computes an expression on scalars or elementwise on (broadcastable) arrays. It is what the interpreter,
constant folding and the tests of code generation compare with, so it favours exactness over speed:

- Integers wrap in their own type; floats round once per operation in their own type. f16 and bf16 arithmetic is
  done in f32, which has more than twice their precision, so the second rounding never shows.
- `Fma` rounds once: the product is exact in a wider type, the sum is rounded to odd there, and only then to the
  type of the result.
- Transcendental functions are computed in float64 and rounded to the type. In f64 they are what numpy and libm give.
- Nothing warns or raises, whatever the values are: division by zero, overflow and NaN have their IEEE (or wrapped)
  result.

Select and arrays: a scalar condition evaluates the chosen side only. An array of conditions needs both sides, so
the loads of each side run with index 0 wherever that side is not chosen: what they read there is dropped, and they
never leave their buffer.

The `apply_*` functions are the operations on values alone, for those who walk expressions in their own way. They
expect `np.errstate(all="ignore")` around them.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Bitcast,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Select,
    Unary,
    UnaryOp,
    Var,
)

Evaluated: TypeAlias = NDArray[Any] | np.generic
LoadFn: TypeAlias = Callable[[Load, tuple[Evaluated, ...]], Evaluated]
_Fn: TypeAlias = Callable[..., Any]


def evaluate(e: Expr, env: Mapping[Var, Evaluated], load: LoadFn) -> Evaluated:
    """The value of `e`, of numpy type `e.dtype.numpy`. Each distinct node is computed once.

    `load(node, indices)` reads memory; the indices are scalars or arrays that broadcast together.
    """
    with np.errstate(all="ignore"):
        return _Evaluation(env, load).value(e, None)


def constant_value(e: Expr) -> Evaluated:
    """The value of an expression without variables and loads."""

    def no_load(node: Load, indices: tuple[Evaluated, ...]) -> Evaluated:
        raise KeyError(f"{node.buffer} is read in a constant expression")

    return evaluate(e, {}, no_load)


class _Mask:
    """Which elements of an array are wanted, below a Select. Values computed under it are kept with it."""

    __slots__ = ("memo", "parent", "wanted")

    def __init__(self, parent: "_Mask | None", wanted: NDArray[Any]) -> None:
        self.parent = parent
        self.wanted: NDArray[Any] = (
            wanted if parent is None else np.asarray(np.logical_and(parent.wanted, wanted))
        )
        self.memo: dict[Expr, Evaluated] = {}


class _Evaluation:
    def __init__(self, env: Mapping[Var, Evaluated], load: LoadFn) -> None:
        self._env, self._load = env, load
        self._memo: dict[Expr, Evaluated] = {}
        self._reads: dict[Expr, bool] = {}

    def value(self, e: Expr, mask: _Mask | None) -> Evaluated:
        scope = (
            mask if mask is not None and self._has_load(e) else None
        )  # pure parts do not depend on the mask
        above = scope
        while above is not None:  # a value computed for more elements than are wanted serves as well
            if e in above.memo:
                return above.memo[e]
            above = above.parent
        if e in self._memo:
            return self._memo[e]
        out = self._compute(e, scope)
        (self._memo if scope is None else scope.memo)[e] = out
        return out

    def _has_load(self, e: Expr) -> bool:
        known = self._reads.get(e)
        if known is None:
            known = isinstance(e, Load) or any([self._has_load(c) for c in e.children()])
            self._reads[e] = known
        return known

    def _compute(self, e: Expr, mask: _Mask | None) -> Evaluated:
        match e:
            case Const():
                return e.dtype.numpy.type(e.value)
            case Var():
                return np.asarray(self._env[e], e.dtype.numpy)[()]
            case Load():
                return self._read(e, mask)
            case Unary():
                return apply_unary(e.op, e.dtype, self.value(e.a, mask))
            case Binary():
                return apply_binary(e.op, e.a.dtype, self.value(e.a, mask), self.value(e.b, mask))
            case Fma():
                return apply_fma(e.dtype, self.value(e.a, mask), self.value(e.b, mask), self.value(e.c, mask))
            case Select():
                return self._choose(e, mask)
            case Cast():
                return apply_cast(e.dtype, e.a.dtype, self.value(e.a, mask))
            case Bitcast():
                return apply_bitcast(e.dtype, self.value(e.a, mask))
            case _:
                raise TypeError(f"{type(e).__name__} has no value")

    def _read(self, e: Load, mask: _Mask | None) -> Evaluated:
        indices = tuple([self.value(i, mask) for i in e.indices])
        if mask is None:
            return self._load(e, indices)
        if not mask.wanted.any():  # the buffer may even be empty
            return np.zeros(
                np.broadcast_shapes(mask.wanted.shape, *(i.shape for i in indices)), e.dtype.numpy
            )
        return self._load(e, tuple([np.where(mask.wanted, i, 0) for i in indices]))

    def _choose(self, e: Select, mask: _Mask | None) -> Evaluated:
        cond = np.asarray(self.value(e.cond, mask))
        if cond.ndim == 0:
            return self.value(e.a if cond else e.b, mask)
        # The values of unwanted elements are arbitrary, so even a uniform condition is not a reason to skip a side
        # unless it is uniform everywhere.
        if cond.all() or not cond.any():
            chosen = self.value(e.a if cond.all() else e.b, mask)
            return np.broadcast_to(chosen, np.broadcast_shapes(chosen.shape, cond.shape))
        a = self.value(e.a, _Mask(mask, cond))
        b = self.value(e.b, _Mask(mask, np.asarray(np.logical_not(cond))))
        return np.where(cond, a, b)


# ------------------------------------------------------------------------------------------------- operations


def apply_unary(op: UnaryOp, dtype: DType, a: Evaluated) -> Evaluated:
    """`op` on values of `dtype`."""
    exact = _EXACT_UNARY.get(op)
    if exact is not None:
        if not dtype.is_float and op in _ROUNDINGS:
            return a
        return _narrow(dtype, exact(_widen(dtype, a)))
    return round_to(dtype, np.asarray(_INEXACT_UNARY[op](np.asarray(a).astype(np.float64))))


def apply_binary(op: BinaryOp, dtype: DType, a: Evaluated, b: Evaluated) -> Evaluated:
    """`op` on values of `dtype`; comparisons give bools."""
    if op is BinaryOp.POW:
        if not dtype.is_float:
            return _int_pow(_array(a), _array(b))
        return round_to(dtype, np.asarray(np.power(_f64(a), _f64(b))))
    compare = _COMPARE.get(op)
    if compare is not None:
        return compare(_widen(dtype, a), _widen(dtype, b))
    return _narrow(dtype, _BINARY[op](_widen(dtype, a), _widen(dtype, b)))


def apply_fma(dtype: DType, a: Evaluated, b: Evaluated, c: Evaluated) -> Evaluated:
    """a·b + c, rounded once."""
    x, y, z = _f64(a), _f64(b), _f64(c)
    if dtype is DType.F64:
        return _fma_f64(x, y, z)
    # The product of two 24-bit significands is exact in float64. Rounding the sum to odd keeps, in the last bit,
    # whether anything was lost, so the second rounding sees what the first one dropped.
    return round_to(dtype, _add_to_odd(np.asarray(x * y), z))


def apply_cast(to: DType, source: DType, a: Evaluated) -> Evaluated:
    """Conversion from `source` to `to`: floats to integers truncate, to bool means `!= 0`."""
    x = _array(a)
    if to is source:
        return a
    if to is DType.BOOL:
        return np.asarray(_widen(source, x) != 0)[()]
    if source is DType.F64 and to.is_float:
        return round_to(to, x)
    if to in _HALVES:
        if source.is_int and source.bits == 64:
            x = _keep_52_bits(x)
        return round_to(to, x.astype(np.float64))
    return _widen(source, x).astype(to.numpy)[()]


def apply_bitcast(to: DType, a: Evaluated) -> Evaluated:
    return np.ascontiguousarray(a).view(to.numpy).reshape(np.shape(a))[()]


def round_to(dtype: DType, x: NDArray[Any]) -> Evaluated:
    """A float64 value in float type `dtype`, rounded once (half to even)."""
    if dtype is DType.BF16:  # the conversion goes through float32
        return _to_odd_f32(x).astype(dtype.numpy)[()]
    return x.astype(dtype.numpy)[()]


# ------------------------------------------------------------------------------------------------------ tables


_HALVES = frozenset({DType.F16, DType.BF16})
_ROUNDINGS = frozenset({UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC})


def _rsqrt(x: NDArray[Any]) -> Any:
    return 1.0 / np.sqrt(x)


def _sigmoid(x: NDArray[Any]) -> Any:
    small = np.exp(-np.abs(x))  # never overflows, and keeps the tiny results of large negative x
    return np.where(x < 0, small, 1.0) / (1.0 + small)


def _erf(x: NDArray[Any]) -> Any:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def _gelu(x: NDArray[Any]) -> Any:
    """x · Φ(x), where the tails of Φ do not cancel."""
    size = np.abs(x)
    tail = np.asarray(np.frompyfunc(math.erfc, 1, 1)(size * math.sqrt(0.5)), np.float64)
    return np.maximum(x, 0.0) - np.where(tail == 0, 0.0, 0.5 * size * tail)


_EXACT_UNARY: dict[UnaryOp, _Fn] = {
    UnaryOp.NEG: np.negative,
    UnaryOp.NOT: np.logical_not,
    UnaryOp.ABS: np.abs,
    UnaryOp.FLOOR: np.floor,
    UnaryOp.CEIL: np.ceil,
    UnaryOp.ROUND: np.rint,
    UnaryOp.TRUNC: np.trunc,
    UnaryOp.SQRT: np.sqrt,
}
_INEXACT_UNARY: dict[UnaryOp, _Fn] = {
    UnaryOp.RSQRT: _rsqrt,
    UnaryOp.EXP: np.exp,
    UnaryOp.EXP_NONPOSITIVE: np.exp,
    UnaryOp.LOG: np.log,
    UnaryOp.TANH: np.tanh,
    UnaryOp.SIGMOID: _sigmoid,
    UnaryOp.ERF: _erf,
    UnaryOp.GELU: _gelu,
    UnaryOp.SIN: np.sin,
    UnaryOp.COS: np.cos,
}
_BINARY: dict[BinaryOp, _Fn] = {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.DIV: np.divide,
    BinaryOp.FLOORDIV: np.floor_divide,
    BinaryOp.MOD: np.mod,
    BinaryOp.MIN: np.minimum,
    BinaryOp.MAX: np.maximum,
    BinaryOp.AND: np.bitwise_and,
    BinaryOp.OR: np.bitwise_or,
    BinaryOp.XOR: np.bitwise_xor,
    BinaryOp.SHL: np.left_shift,
    BinaryOp.SHR: np.right_shift,
}
_COMPARE: dict[BinaryOp, _Fn] = {
    BinaryOp.EQ: np.equal,
    BinaryOp.NE: np.not_equal,
    BinaryOp.LT: np.less,
    BinaryOp.LE: np.less_equal,
}


def _array(a: Evaluated) -> NDArray[Any]:
    return np.asarray(a)


def _f64(a: Evaluated) -> NDArray[Any]:
    return np.asarray(a).astype(np.float64)


def _widen(dtype: DType, a: Evaluated) -> Any:
    return np.asarray(a).astype(np.float32) if dtype in _HALVES else a


def _narrow(dtype: DType, a: Any) -> Evaluated:
    return np.asarray(a).astype(dtype.numpy)[()] if dtype in _HALVES else a


def _int_pow(a: NDArray[Any], b: NDArray[Any]) -> Evaluated:
    """Wraps; a negative power is the reciprocal, truncated."""
    power = np.power(a, np.maximum(b, 0))
    odd = (b & b.dtype.type(1)) != 0
    reciprocal = np.where(a == 1, 1, np.where((a < 0) & (a + a.dtype.type(1) == 0), np.where(odd, -1, 1), 0))
    return np.where(b < 0, reciprocal.astype(a.dtype), power)[()]


# -------------------------------------------------------------------------------------------- rounding to odd


def _keep_52_bits(x: NDArray[Any]) -> NDArray[Any]:
    """64-bit integers with at most 52 significant bits, rounded to odd, so that float64 holds them exactly."""
    lost = (x & x.dtype.type(0xFFF)) != 0
    odd: NDArray[Any] = (x >> x.dtype.type(12) | lost) << x.dtype.type(12)
    return np.where(np.abs(x) >> x.dtype.type(53) == 0, x, odd)


def _to_odd_f32(x: NDArray[Any]) -> NDArray[Any]:
    """float64 as float32: truncated, with the last bit set if anything was lost."""
    near = np.asarray(x.astype(np.float32))
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    truncated = bits - (np.abs(back) > np.abs(x))
    odd = np.asarray(truncated | (back != x), np.uint32).view(np.float32)
    return np.where(np.isnan(x), near, odd)


def _two_sum(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """a + b rounded, and what the rounding lost, exactly."""
    s = np.asarray(a + b)
    t = s - a
    return s, np.asarray((a - (s - t)) + (b - t))


def _add_to_odd(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """a + b in float64, rounded to odd."""
    s, lost = _two_sum(a, b)
    even = (s.view(np.int64) & 1) == 0
    # The exact sum lies between s and its neighbour on the side of what was lost; one of the two is odd.
    step = even & np.isfinite(lost) & (lost != 0)
    return np.asarray(np.where(step, np.nextafter(s, np.copysign(np.inf, lost)), s))


def _fma_f64(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> Evaluated:
    a, b, c = np.broadcast_arrays(a, b, c)
    product, low = _two_product(a, b)
    t, t_lost = _two_sum(c, low)
    v, v_lost = _two_sum(product, t)
    out = np.asarray(v + _add_to_odd(t_lost, v_lost))
    # That is exact while nothing overflows or loses bits to underflow on the way; the rest goes the slow way.
    exact = _is_moderate(a) & _is_moderate(b) & (_is_moderate(c) | (c == 0))
    if not exact.all():
        out = out.copy()
        for i in zip(*np.nonzero(~np.atleast_1d(exact)), strict=True):
            at = i if out.ndim else ()
            out[at] = _fma_exactly(float(a[at]), float(b[at]), float(c[at]))
    return out[()]


def _is_moderate(x: NDArray[Any]) -> NDArray[Any]:
    return np.asarray((np.abs(x) > 2.0**-400) & (np.abs(x) < 2.0**400))


def _two_product(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """a·b rounded, and what the rounding lost, exactly (Dekker: halves of 26 bits multiply exactly)."""
    p = np.asarray(a * b)
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    return p, np.asarray(((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low)


def _halves(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    scaled = x * 134217729.0  # 2**27 + 1
    high = np.asarray(scaled - (scaled - x))
    return high, np.asarray(x - high)


def _fma_exactly(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    if not math.isfinite(c):
        return c  # a·b is finite, even if it overflows as a float64
    if a == 0 or b == 0:
        return a * b + c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return 0.0
    try:
        return float(total) or (0.0 if total > 0 else -0.0)
    except OverflowError:
        return math.inf if total > 0 else -math.inf
