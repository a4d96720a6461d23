"""Which variables do the values of some quasi-affine expressions determine?

    i*8 + j              determines i and j if 0 <= j < 8
    f // 6,  f % 6       together determine f
    (i*6 + j) // 4, (i*6 + j) % 4   determine i*6 + j, and so i and j if 0 <= j < 6

A set of expressions that determines all its variables is injective. That is what block bindings must be (no
iteration is run twice), and what the indices of a store must be for iterations to be independent.

The method: an expression whose value is known, `const + Σ coeff·atom`, gives the values of its atoms where the
coefficients form a mixed radix (each is larger than all that is below it can add up to); a known `x % c` with a
known `x // c` gives `x`, whatever `x` is (`x % 16 // 4` and `x % 4` give `x % 16`). Repeated until nothing new is
found. It never claims too much; it may miss what only a predicate makes true.
"""

import math
from collections.abc import Collection, Iterable

from tilewright.ir.expr import Binary, BinaryOp, Const, Expr, Var, floordiv, free_vars, loads, mod
from tilewright.ir.simplify import Linear, Number, Simplifier


def determined(
    values: Iterable[Expr], simplify: Simplifier, wanted: Collection[Expr] | None = None
) -> set[Expr]:
    """The variables, quotients and remainders that follow from the values of these integer expressions. If it is known
    what of them is `wanted`, the others need not be there.
    """
    forms = [simplify.linear(v) for v in values]
    known: set[Expr] = set()
    opened: set[Expr] = set()  # quotients and remainders whose dividend is among `forms` already
    while True:
        found = set[Expr]().union(*[_digits(form, known, simplify) for form in forms])
        known |= found
        if wanted is not None and known.issuperset(wanted):
            return known
        for e in [e for e in known if e not in opened]:
            other = _counterpart(e, simplify)
            if other is not None and all(a in known or _follows(a, known) for a, _ in other.terms):
                assert isinstance(e, Binary)
                opened.add(e)
                forms.append(simplify.linear(e.a))
                found.add(e)
        if not found:
            return known


def _follows(e: Expr, known: set[Expr]) -> bool:
    """Does the value of `e` follow from those of its variables?"""
    return free_vars(e) <= known and not any(loads(e))


def determines(values: Iterable[Expr], var: Var, simplify: Simplifier) -> bool:
    """Do equal values of all the expressions mean an equal value of `var`?"""
    return is_injective(values, (var,), simplify)


def is_injective(values: Iterable[Expr], variables: Iterable[Var], simplify: Simplifier) -> bool:
    """Do the expressions have different values wherever one of the variables does?"""
    wanted = [v for v in variables if simplify.constant(v) is None]
    return determined(values, simplify, wanted).issuperset(wanted)


def _counterpart(e: Expr, simplify: Simplifier) -> Linear | None:
    """What gives the dividend of `e` together with it: the quotient for a remainder, and the other way round."""
    if isinstance(e, Binary) and isinstance(e.b, Const):
        if e.op is BinaryOp.MOD:
            return simplify.linear(floordiv(e.a, e.b))
        if e.op is BinaryOp.FLOORDIV:
            return simplify.linear(mod(e.a, e.b))
    return None


def _digits(form: Linear, known: set[Expr], simplify: Simplifier) -> set[Expr]:
    """The atoms whose values follow from that of the sum, as digits do from a number.

    In order of their coefficients the terms fall into groups: a cut is where all coefficients above are multiples of
    more than the terms below can span. The sum of each group is then known, and so is an atom alone in its group.
    """
    terms = [(a, abs(c)) for a, c in form.terms if a not in known]
    if len(terms) < 2:
        return {a for a, _ in terms}
    terms.sort(key=lambda t: t[1])
    steps = [0] * (len(terms) + 1)  # the gcd of the coefficients from here up
    for n in reversed(range(len(terms))):
        steps[n] = math.gcd(terms[n][1], steps[n + 1])
    found: set[Expr] = set()
    span: Number = 0
    start = 0
    for n, (atom, coeff) in enumerate(terms, 1):
        lo, hi = simplify.bounds(atom)
        span += coeff * (hi - lo)
        if n == len(terms) or steps[n] > span:
            if n - start == 1:
                found.add(atom)
            start = n
    return found
