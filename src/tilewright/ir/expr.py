"""Scalar expressions and the buffers they read.

Meaning
- An expression is pure but for `Load`, which reads memory as it is when the statement around it runs.
- `floordiv` and `mod` round towards minus infinity. Integer `div` does not exist; float `div` is IEEE division.
- `min` and `max` propagate NaN. `Select` evaluates only the chosen side, so a guarded load is never out of bounds.
- `Fma(a, b, c)` is a·b + c with one rounding; `a * b + c` has two. Nothing fuses or reassociates behind your back.
- Transcendental functions mean the correctly rounded value within the error that `docs/results/vector-math.md` says.
- `round` rounds half to even. Shifts are by less than the width; `shr` is arithmetic for signed types.

All nodes are interned (`ir.node`): compare with `is`. Python's `==` is not overloaded. The operators `+ - * // % <
<=` build nodes through the constructors at the end of this file, which fold constants and the identities of 0 and 1.
"""

import math
import struct
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.node import Interned
from tilewright.ir.opcode import COMPARISONS, BinaryOp, UnaryOp, fold_int
from tilewright.ir.scope import Scope as Scope
from tilewright.ir.walk import walk as walk
from tilewright.support.sizes import DimUnits, SizeError, SizeExpr, SymInt

Scalar: TypeAlias = int | float | bool
Indices: TypeAlias = "tuple[Expr, ...]"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Buffer(metaclass=Interned):
    """A dense row-major array. Its layout is its shape: a layout change makes another Buffer of the same name.

    `sizes`, if any, say how much of each dimension is in use when the program runs (None: all). What lies beyond is
    unspecified: nothing may depend on it, and anybody may write to it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    scope: Scope = Scope.GLOBAL
    sizes: "tuple[Expr | None, ...]" = ()

    def __getitem__(self, indices: "Expr | int | tuple[Expr | int, ...]") -> "Load":
        idx = indices if isinstance(indices, tuple) else (indices,)
        return Load(self, tuple(as_index(i) for i in idx))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.bytes

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        out, step = [0] * len(self.shape), 1
        for d in reversed(range(len(self.shape))):
            out[d] = step
            step *= self.shape[d]
        return tuple(out)

    def is_open(self, d: int) -> bool:
        """May less than all of dimension d be in use?"""
        return bool(self.sizes) and self.sizes[d] is not None

    def with_shape(self, shape: tuple[int, ...], sizes: "tuple[Expr | None, ...]" = ()) -> "Buffer":
        return Buffer(
            self.name, shape, self.dtype, self.scope, sizes if any(n is not None for n in sizes) else ()
        )

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


class Expr(metaclass=Interned):
    """Base of all expressions: `dtype`, `children()`, `rebuild(children)`."""

    __slots__ = ("known_loads", "known_traits", "known_vars")  # what `loads`, `traits` and `free_vars` found
    known_vars: "frozenset[Var]"
    known_loads: "tuple[Load, ...]"
    known_traits: int
    dtype: DType

    def children(self) -> tuple["Expr", ...]:
        return ()

    def rebuild(self, children: tuple["Expr", ...]) -> "Expr":
        """The same node over other children (folding what the constructors fold)."""
        return self

    def __add__(self, other: "Expr | Scalar") -> "Expr":
        return add(self, lift(other, self.dtype))

    def __radd__(self, other: Scalar) -> "Expr":
        return add(lift(other, self.dtype), self)

    def __sub__(self, other: "Expr | Scalar") -> "Expr":
        return sub(self, lift(other, self.dtype))

    def __rsub__(self, other: Scalar) -> "Expr":
        return sub(lift(other, self.dtype), self)

    def __mul__(self, other: "Expr | Scalar") -> "Expr":
        return mul(self, lift(other, self.dtype))

    def __rmul__(self, other: Scalar) -> "Expr":
        return mul(lift(other, self.dtype), self)

    def __truediv__(self, other: "Expr | Scalar") -> "Expr":
        return binary(BinaryOp.DIV, self, lift(other, self.dtype))

    def __rtruediv__(self, other: Scalar) -> "Expr":
        return binary(BinaryOp.DIV, lift(other, self.dtype), self)

    def __floordiv__(self, other: "Expr | Scalar") -> "Expr":
        return floordiv(self, lift(other, self.dtype))

    def __mod__(self, other: "Expr | Scalar") -> "Expr":
        return mod(self, lift(other, self.dtype))

    def __neg__(self) -> "Expr":
        return unary(UnaryOp.NEG, self)

    def __lt__(self, other: "Expr | Scalar") -> "Expr":
        return binary(BinaryOp.LT, self, lift(other, self.dtype))

    def __le__(self, other: "Expr | Scalar") -> "Expr":
        return binary(BinaryOp.LE, self, lift(other, self.dtype))

    def __gt__(self, other: "Expr | Scalar") -> "Expr":
        return binary(BinaryOp.LT, lift(other, self.dtype), self)

    def __ge__(self, other: "Expr | Scalar") -> "Expr":
        return binary(BinaryOp.LE, lift(other, self.dtype), self)

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value; compare nodes with `is`")


class _ConstKey(Interned):
    # `1`, `True` and `1.0` are equal in Python, and so are `0.0` and `-0.0`: the key holds type and exact bits.
    def intern_key(cls, args: tuple[Any, ...]) -> tuple[Any, ...]:
        dtype, value = args
        return (cls, dtype, struct.pack("<d", value) if dtype.is_float else int(value))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Const(Expr, metaclass=_ConstKey):
    """A literal. Make it with `const`, which brings the value into the type's range."""

    dtype: DType
    value: Scalar


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Var(Expr):
    """A loop variable or block iterator. Unique by name: a Module binds each name once."""

    name: str
    dtype: DType = INDEX

    @property
    def known_vars(self) -> "frozenset[Var]":  # pyright: ignore[reportIncompatibleVariableOverride]
        # A variable that remembered it would keep itself alive.
        return frozenset((self,))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class DimSize(Expr):
    """The size of an open dimension, in its multiples: the same in all of a run, from `least` to `most`."""

    name: str
    least: int
    most: int
    dtype: DType = INDEX


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Load(Expr):
    buffer: Buffer
    indices: Indices
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.buffer.dtype)

    def children(self) -> tuple[Expr, ...]:
        return self.indices

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Load(self.buffer, children)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Unary(Expr):
    op: UnaryOp
    a: Expr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.a.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.a,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return unary(self.op, children[0])


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Binary(Expr):
    op: BinaryOp
    a: Expr
    b: Expr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        if self.a.dtype is not self.b.dtype:
            raise TypeError(f"{self.op.value} of {self.a.dtype} and {self.b.dtype}: cast one side")
        object.__setattr__(self, "dtype", DType.BOOL if self.op in COMPARISONS else self.a.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return binary(self.op, *children)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Fma(Expr):
    """a·b + c, rounded once. Floats only."""

    a: Expr
    b: Expr
    c: Expr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.a.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b, self.c)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Fma(*children)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Select(Expr):
    cond: Expr
    a: Expr  # if cond
    b: Expr  # otherwise
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        if self.a.dtype is not self.b.dtype:
            raise TypeError(f"select between {self.a.dtype} and {self.b.dtype}: cast one side")
        object.__setattr__(self, "dtype", self.a.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.cond, self.a, self.b)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return select(*children)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Cast(Expr):
    """Conversion of value. Float to integer truncates towards zero; out of range is unspecified but never traps."""

    dtype: DType
    a: Expr

    def children(self) -> tuple[Expr, ...]:
        return (self.a,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return cast(self.dtype, children[0])


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Bitcast(Expr):
    """The same bits as another type of the same width."""

    dtype: DType
    a: Expr

    def children(self) -> tuple[Expr, ...]:
        return (self.a,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Bitcast(self.dtype, children[0])


# ---------------------------------------------------------------------------------------------- constructors


_ADD, _SUB, _MUL = BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL  # a member of an enum takes as long as a call
_INDEX_LIMIT = 1 << (INDEX.bits - 1)


def const(value: Scalar, dtype: DType = INDEX) -> Const:
    """A literal of `dtype`; integers wrap, floats round to the type."""
    if dtype is INDEX and type(value) is int and -_INDEX_LIMIT <= value < _INDEX_LIMIT:
        return Const(INDEX, value)
    if isinstance(value, SymInt):
        raise SizeError(f"{value} is no literal")
    if dtype is DType.BOOL:
        return Const(dtype, bool(value))
    if dtype.is_float:
        if dtype is not DType.F64:
            with np.errstate(all="ignore"):  # an overflow to infinity is the value
                return Const(dtype, float(dtype.numpy.type(value)))
        return Const(dtype, float(value))
    v, bits = int(value), dtype.bits
    v &= (1 << bits) - 1
    if dtype.is_signed and v >> (bits - 1):
        v -= 1 << bits
    return Const(dtype, v)


TRUE = Const(DType.BOOL, True)
FALSE = Const(DType.BOOL, False)


def lift(value: Expr | Scalar, dtype: DType) -> Expr:
    """A Python number as a literal of `dtype`; an expression as it is."""
    if isinstance(value, SymInt):
        return cast(dtype, size_expr(value.size))
    return value if isinstance(value, Expr) else const(value, dtype)


def as_index(value: Expr | int) -> Expr:
    return Const(INDEX, value) if type(value) is int else lift(value, INDEX)


def size_expr(size: SizeExpr) -> Expr:
    """A size over open dimensions as an expression."""
    total: Expr = const(0)
    for monomial, coefficient in size.terms:
        term: Expr = const(1)
        for a in monomial:
            is_dim = isinstance(a, DimUnits)
            term = mul(DimSize(a.dim.name, *a.dim.units) if is_dim else size_expr(a.size) // a.by, term)
        total = add(
            total, mul(term, const(coefficient))
        )  # last: products of equal sizes are one atom of a sum
    return total


def is_const(e: Expr, value: Scalar) -> bool:
    """Is `e` the integer or bool literal `value`? (Floats are never asked: their zero has a sign.)"""
    return isinstance(e, Const) and e.value == value and not e.dtype.is_float


def binary(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    """`Binary`, with integer and bool literals folded. Floats are left alone: folding belongs to the interpreter."""
    match op:
        case BinaryOp.ADD:
            return add(a, b)
        case BinaryOp.SUB:
            return sub(a, b)
        case BinaryOp.MUL:
            return mul(a, b)
        case BinaryOp.FLOORDIV:
            return floordiv(a, b)
        case BinaryOp.MOD:
            return mod(a, b)
        case BinaryOp.AND | BinaryOp.OR if a.dtype is DType.BOOL:
            for x, y in ((a, b), (b, a)):
                if isinstance(x, Const):
                    return y if bool(x.value) == (op is BinaryOp.AND) else x
            return a if a is b else Binary(op, a, b)
        case _:
            return _fold(op, a, b)


def _fold(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const) and a.dtype is b.dtype and not a.dtype.is_float:
        value = fold_int(op, int(a.value), int(b.value))
        if value is not None:
            return const(value, DType.BOOL if op in COMPARISONS else a.dtype)
    return Binary(op, a, b)


def add(a: Expr, b: Expr) -> Expr:
    if type(a) is not Const and type(b) is not Const:
        return Binary(_ADD, a, b)
    if is_const(a, 0):
        return b
    return a if is_const(b, 0) else _fold(_ADD, a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return a if is_const(b, 0) else _fold(_SUB, a, b)


def mul(a: Expr, b: Expr) -> Expr:
    if type(a) is not Const and type(b) is not Const:
        return Binary(_MUL, a, b)
    for x, y in ((a, b), (b, a)):
        if is_const(x, 1):
            return y
        if is_const(x, 0):
            return x
    return _fold(_MUL, a, b)


def floordiv(a: Expr, b: Expr) -> Expr:
    return a if is_const(b, 1) else _fold(BinaryOp.FLOORDIV, a, b)


def mod(a: Expr, b: Expr) -> Expr:
    return const(0, a.dtype) if is_const(b, 1) else _fold(BinaryOp.MOD, a, b)


def minimum(a: Expr, b: Expr | Scalar) -> Expr:
    return _fold(BinaryOp.MIN, a, lift(b, a.dtype))


def maximum(a: Expr, b: Expr | Scalar) -> Expr:
    return _fold(BinaryOp.MAX, a, lift(b, a.dtype))


def equal(a: Expr, b: Expr | Scalar) -> Expr:
    return _fold(BinaryOp.EQ, a, lift(b, a.dtype))


def unary(op: UnaryOp, a: Expr) -> Expr:
    if isinstance(a, Const) and not a.dtype.is_float:
        if op is UnaryOp.NEG:
            return const(-a.value, a.dtype)
        if op is UnaryOp.NOT:
            return const(not a.value, DType.BOOL)
    return Unary(op, a)


def select(cond: Expr, a: Expr, b: Expr) -> Expr:
    if isinstance(cond, Const):
        return a if cond.value else b
    return a if a is b else Select(cond, a, b)


def cast(dtype: DType, a: Expr) -> Expr:
    if a.dtype is dtype:
        return a
    if isinstance(a, Const) and not a.dtype.is_float:
        return const(a.value, dtype)
    return Cast(dtype, a)


# ------------------------------------------------------------------------------------------------- traversal


def free_vars(e: Expr) -> "frozenset[Var]":
    """The variables in `e`. A node remembers its own."""
    try:
        return e.known_vars
    except AttributeError:
        _remember(e)
        return e.known_vars


def loads(e: Expr) -> "tuple[Load, ...]":
    """Every distinct load in `e`, parents first. A node remembers those below it."""
    try:
        below = e.known_loads
    except AttributeError:
        _remember(e)
        below = e.known_loads
    return (e, *below) if isinstance(e, Load) else below


def _remember(e: Expr) -> None:
    """Find what all nodes in `e` remember, children first. Not by recursion: expressions may be high."""
    stack = [e]
    while stack:
        node = stack[-1]
        children = node.children()
        missing = [c for c in children if not hasattr(c, "known_loads")]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        found, below = frozenset[Var](), ()
        for c in children:  # most have variables, or loads, of one child: they share what it remembers
            inside, read = free_vars(c), loads(c)
            found = found | inside if found and inside is not found else inside or found
            below = tuple(dict.fromkeys((*below, *read))) if below and read else below or read
        if not isinstance(node, Var):
            object.__setattr__(node, "known_vars", found)
        # Last: other threads take it for a sign that the rest is there.
        object.__setattr__(node, "known_loads", below)
