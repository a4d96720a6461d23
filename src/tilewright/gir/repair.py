"""Repair terms: how the result of a fold so far follows when something changes that it was computed with.

A fold whose values depend on the result of an earlier one, g(x, R), needs all of R first: the row is swept twice. It
can be taken up in the same sweep with the R so far, if what has been folded with the old R can be made into what it
would be with the new one. Whether it can is algebra of g and of how the fold combines, not knowledge of operators:

    g(x, R) = a(x) · b(R)          a sum is multiplied by b(new) / b(old): softmax's sum, attention's weighted values
    g(x, R) = a(x) + b(R)          a maximum or minimum gets b(new) - b(old) added
    g(x, R) = a(x) where x = R,    and R is the maximum (minimum) of the x: an element that equalled the old R does not
              else the start       equal a larger one, so the result starts anew where R changed: arg-max
    g(x, R) = (a(x) + b(R))²       a sum gets 2·d·Σ(a + b) + n·d² added, d = b(new) - b(old), where Σ(a + b) is folded
                                   too: the variance of a row in one pass

`find_repair` gives the rule that fits, if any. `old` and `new` put the results so far, before and after, into an
expression over R.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Buffer,
    Const,
    Expr,
    Fma,
    Select,
    Unary,
    UnaryOp,
    Var,
    binary,
    const,
    equal,
    free_vars,
    loads,
    select,
    unary,
)

Put: TypeAlias = Callable[[Expr], Expr]  # an expression over R with results so far in their place


class Parts(NamedTuple):
    """An expression in two: what does not depend on R, and what does not depend on the element."""

    element: Expr
    row: Expr


@dataclass(frozen=True, slots=True)
class Scale:
    """Results are multiplied."""

    row: Expr

    def change(self, old: Put, new: Put) -> Expr:
        return _ratio(old(self.row), new(self.row))

    def repaired(self, so_far: Expr, old: Put, new: Put) -> Expr:
        return so_far * self.change(old, new)


@dataclass(frozen=True, slots=True)
class Shift:
    """Results are moved."""

    row: Expr

    def change(self, old: Put, new: Put) -> Expr:
        return new(self.row) - old(self.row)

    def repaired(self, so_far: Expr, old: Put, new: Put) -> Expr:
        return so_far + self.change(old, new)


@dataclass(frozen=True, slots=True)
class Restart:
    """Results are those of an R that is the same, or none."""

    row: Expr
    start: Expr

    def repaired(self, so_far: Expr, old: Put, new: Put) -> Expr:
        return select(equal(old(self.row), new(self.row)), so_far, self.start)


@dataclass(frozen=True, slots=True)
class Recentre:
    """Results are sums of squares around something that moves; `around` is summed up too."""

    row: Expr
    around: Expr  # a(x) + b(R)

    def change(self, old: Put, new: Put) -> Expr:
        return new(self.row) - old(self.row)

    @staticmethod
    def repaired(so_far: Expr, around: Expr, moved: Expr, count: Expr) -> tuple[Expr, Expr]:
        """The sum of squares, and that of what was squared, of `count` elements."""
        squares = so_far + moved * (const(2, so_far.dtype) * around + count * moved)
        return squares, around + count * moved


Repair: TypeAlias = Scale | Shift | Restart | Recentre


class Algebra:
    """Of expressions over the axes of a row and the results R, which change."""

    def __init__(self, inner: Collection[Var], results: Collection[Buffer]) -> None:
        self._inner, self._results = frozenset(inner), frozenset(results)

    def has_result(self, e: Expr) -> bool:
        return any(ld.buffer in self._results for ld in loads(e))

    def has_element(self, e: Expr) -> bool:
        return bool(free_vars(e) & self._inner)

    def find_repair(self, value: Expr, combine: BinaryOp, start: Expr) -> Repair | None:
        """How a fold of `value` follows R."""
        if combine is BinaryOp.ADD:
            parts = self.factors(value)
            if parts is not None:
                return Scale(parts.row)
            match value:
                case Binary(op=BinaryOp.MUL, a=a, b=b) if a is b:
                    inside = self.terms(a)
                    return None if inside is None else Recentre(inside.row, a)
                case _:
                    return None
        if combine in (BinaryOp.MAX, BinaryOp.MIN):
            match value:
                case Select(cond=Binary(op=BinaryOp.EQ, a=a, b=b), a=chosen, b=other) if other is start:
                    row = b if self.has_element(a) else a
                    if not self.has_element(row) and not self.has_result(chosen):
                        return Restart(row, start)
                case _:
                    pass
            parts = self.terms(value)
            return None if parts is None else Shift(parts.row)
        return None

    def factors(self, e: Expr) -> Parts | None:
        """e = element · row."""
        one = const(1, e.dtype)
        if not self.has_result(e):
            return Parts(e, one)
        if not self.has_element(e):
            return Parts(one, e)
        match e:
            case Binary(op=BinaryOp.MUL | BinaryOp.DIV as op):
                a, b = self.factors(e.a), self.factors(e.b)
                if a is None or b is None:
                    return None
                return Parts(_scaled(op, a.element, b.element), _scaled(op, a.row, b.row))
            case Unary(op=UnaryOp.EXP | UnaryOp.EXP_NONPOSITIVE):
                inside = self.terms(e.a)
                if inside is None:
                    return None
                return Parts(unary(UnaryOp.EXP, inside.element), unary(UnaryOp.EXP, inside.row))
            case Select() if not self.has_result(e.cond):
                a, b = self.factors(e.a), self.factors(e.b)
                if a is None or b is None:
                    return None
                # Nothing is nothing by any factor.
                row = b.row if is_zero(e.a) else a.row
                if row is not b.row and not is_zero(e.b):
                    return None
                return Parts(select(e.cond, a.element, b.element), row)
            case _:
                return None

    def terms(self, e: Expr) -> Parts | None:
        """e = element + row."""
        zero = const(0, e.dtype)
        if not self.has_result(e):
            return Parts(e, zero)
        if not self.has_element(e):
            return Parts(zero, e)
        match e:
            case Binary(op=BinaryOp.ADD | BinaryOp.SUB as op):
                a, b = self.terms(e.a), self.terms(e.b)
                if a is None or b is None:
                    return None
                return Parts(binary(op, a.element, b.element), binary(op, a.row, b.row))
            case Fma() if not self.has_result(e.a) and not self.has_result(e.b):
                c = self.terms(e.c)
                return None if c is None else Parts(Fma(e.a, e.b, c.element), c.row)
            case Binary(op=BinaryOp.MUL | BinaryOp.DIV as op) if not (
                self.has_result(e.b) or self.has_element(e.b)
            ):
                a = self.terms(e.a)
                return None if a is None else Parts(binary(op, a.element, e.b), binary(op, a.row, e.b))
            case Select() if not self.has_result(e.cond):
                a, b = self.terms(e.a), self.terms(e.b)
                if a is None or b is None or a.row is not b.row:
                    return None
                return Parts(select(e.cond, a.element, b.element), a.row)
            case _:
                return None


def is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


def _scaled(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    """a · b or a / b, of which either may be 1."""
    if b is const(1, b.dtype):
        return a
    return b if op is BinaryOp.MUL and a is const(1, a.dtype) else binary(op, a, b)


def _difference(old: Expr, new: Expr) -> Expr:
    match old, new:
        case Binary(op=BinaryOp.SUB), Binary(op=BinaryOp.SUB) if is_zero(old.a) and is_zero(new.a):
            return old.b - new.b
        case _:
            return new - old


def _ratio(old: Expr, new: Expr) -> Expr:
    """new / old, of exponentials as that of a difference: neither of them need be a number of the type."""
    match old, new:
        case Unary(op=UnaryOp.EXP), Unary(op=UnaryOp.EXP):
            return unary(UnaryOp.EXP, _difference(old.a, new.a))
        case Binary(op=BinaryOp.MUL), Binary(op=BinaryOp.MUL):
            return _ratio(old.a, new.a) * _ratio(old.b, new.b)
        case Binary(op=BinaryOp.DIV), Binary(op=BinaryOp.DIV):
            return _ratio(old.a, new.a) / _ratio(old.b, new.b)
        case _:
            return const(1, new.dtype) if old is new else new / old
