"""Solving index expressions for the iterators in them.

    indices (vi, vj)             with values (x, y):   vi = x, vj = y
    indices (vi // 16, vi % 16)  with values (x, y):   vi = x*16 + y
    indices (vi*8 + vj,)         with values (x,):     vi = x // 8, vj = x % 8    for 0 <= vj < 8

The method is that of `affine.determined`, with the values carried along. The values are taken to be ones that the
indices do have, so the map need not fill any shape (`invert` asks for that): offsets and splits that do not divide
are fine. For other values the answer means nothing.
"""

from collections.abc import Iterable, Sequence

from tilewright.ir.expr import Binary, BinaryOp, Const, Expr, Var, as_index, floordiv, mod
from tilewright.ir.simplify import Linear, Simplifier
from tilewright.tir.stmt import Iter


def try_solve(
    indices: Sequence[Expr], values: Sequence[Expr], iters: Iterable[Iter], simplify: Simplifier
) -> dict[Var, Expr] | None:
    """The iterators as expressions of `values`, where `indices` (over the iterators) have those values; None if they
    do not decide all of them. `simplify` knows the iterators' ranges.
    """
    wanted = tuple(iters)
    out = solve(indices, values, wanted, simplify)
    return out if len(out) == len(wanted) else None


def solve(
    indices: Sequence[Expr], values: Sequence[Expr], iters: Iterable[Iter], simplify: Simplifier
) -> dict[Var, Expr]:
    """Those of the iterators that the values decide."""
    known: dict[Expr, Expr] = {}
    for index, value in zip(indices, values, strict=True):
        known.update(_digits(simplify.linear(index), value, simplify))
    while any([_join(e, known, simplify) for e in list(known)]):
        pass
    out: dict[Var, Expr] = {}
    for it in iters:
        value = as_index(0) if it.extent == 1 else known.get(it.var)
        if value is not None:
            out[it.var] = value
    return out


def _join(e: Expr, known: dict[Expr, Expr], simplify: Simplifier) -> bool:
    """Where `e` and another known atom are quotient and remainder of one number, learn that number."""
    if not isinstance(e, Binary) or not isinstance(e.b, Const) or e not in known:
        return False
    if e.op is BinaryOp.MOD:  # x is (x // c)·c + x % c
        quotient = _value(simplify.linear(floordiv(e.a, e.b)), known)
        if quotient is None:
            return False
        known.update(_digits(simplify.linear(e.a), quotient * e.b + known.pop(e), simplify))
        return True
    if e.op is BinaryOp.FLOORDIV and isinstance(e.a, Binary) and e.a.op is BinaryOp.MOD:
        # (x % m) // c with c a factor of m: its remainder (x % m) % c is spelled x % c
        remainder = _value(simplify.linear(mod(e.a.a, e.b)), known)
        if remainder is None or simplify.constant(mod(e.a.b, e.b)) != 0:
            return False
        known[e.a] = known.pop(e) * e.b + remainder
        return True
    return False


def _digits(form: Linear, value: Expr, simplify: Simplifier) -> dict[Expr, Expr]:
    """The atoms of a sum as digits of its value: each coefficient is a multiple of more than the smaller ones reach."""
    terms = sorted(form.terms, key=lambda t: t[1])
    rest = value - form.const
    out: dict[Expr, Expr] = {}
    for n, (atom, k) in enumerate(terms):
        lo, hi = simplify.bounds(atom)
        above = terms[n + 1][1] if n + 1 < len(terms) else None
        if k <= 0 or lo != 0 or (above is not None and (above % k or hi * k >= above)):
            return {}
        digit = rest // k
        out[atom] = digit if above is None else digit % (above // k)
    return out


def _value(form: Linear, known: dict[Expr, Expr]) -> Expr | None:
    out: Expr = as_index(form.const)
    for atom, k in form.terms:
        value = known.get(atom)
        if value is None:
            return None
        out = out + value * k
    return out
