"""Integer expressions in quasi-affine normal form, with bounds.

An integer expression is brought to `const + Σ coeff·atom`, where an atom is a variable, a floordiv or mod by a
positive literal of a smaller normal form, or anything opaque (a load, a select, a min). Equal expressions of the
quasi-affine kind become the same node, so `is` compares them. Ranges of variables sharpen the result: `(8*i + j)
// 8` is `i` when 0 <= j < 8.

A `Simplifier` holds the ranges and its memo tables; keep one per set of ranges and reuse it, that is what makes the
search quick. Float expressions pass through with their index parts simplified; no float arithmetic is touched.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import (
    FALSE,
    TRUE,
    Binary,
    BinaryOp,
    Const,
    DimSize,
    Expr,
    Unary,
    UnaryOp,
    Var,
    add,
    binary,
    const,
    loads,
    mul,
    sub,
)
from tilewright.ir.traits import SIZES, traits

Number: TypeAlias = int | float  # an int, or ±inf

_MOD = BinaryOp.MOD  # a member of an enum takes as long as a call


class Interval(NamedTuple):
    """Inclusive bounds; ±inf where unknown."""

    lo: Number
    hi: Number


UNKNOWN = Interval(-math.inf, math.inf)


class Linear(NamedTuple):
    """const + Σ coeff·atom; atoms distinct, coefficients nonzero, ordered by `Simplifier.order`."""

    const: int
    terms: tuple[tuple[Expr, int], ...]


class Simplifier:
    """Simplifies under known ranges of variables (inclusive)."""

    def __init__(self, ranges: Mapping[Var, Interval] | None = None) -> None:
        self._ranges = dict(ranges or {})
        self._linear: dict[Expr, Linear] = {}
        self._bounds: dict[Expr, Interval] = {}
        self._done: dict[Expr, Expr] = {}
        self._order: dict[Expr, str] = {}

    def learn(self, ranges: Mapping[Var, Interval]) -> None:
        """Add the ranges of variables that no expression so far has contained."""
        self._ranges.update(ranges)

    def __call__(self, e: Expr) -> Expr:
        """The simplest form known of `e`."""
        out = self._done.get(e)
        if out is None:
            out = self._simplify(e)
            self._done[e] = out
            self._done[out] = out
        return out

    def bounds(self, e: Expr) -> Interval:
        """Inclusive bounds of an integer expression."""
        return self._bounds_of(self.linear(e))

    def linear(self, e: Expr) -> Linear:
        """The normal form of an integer expression."""
        out = self._linear.get(e)
        if out is None:
            out = self._linear_of(e)
            self._linear[e] = out
        return out

    def weighted(self, terms: Iterable[Expr], weights: Iterable[int]) -> Linear:
        """The normal form of a sum of integer expressions, each times a number."""
        total, coeffs, parts, has_rest = 0, dict[Expr, int](), 0, False
        scaled: list[tuple[Linear, int]] = []
        for e, k in zip(terms, weights, strict=True):
            form = self.linear(e)
            scaled.append((form, k))
            total += form.const * k
            if k and form.terms:
                parts += 1
                for a, c in form.terms:
                    coeffs[a] = coeffs.get(a, 0) + c * k
                    has_rest = has_rest or (type(a) is Binary and a.op is _MOD)
        if parts < 2 or not has_rest:  # all at once: there is no pair that stands for something else
            return self._make(total, coeffs)
        out = Linear(0, ())
        for form, k in scaled:
            out = self._sum(out, self._scale(form, k))
        return out

    def constant(self, e: Expr) -> int | None:
        """The value of `e` if it is known."""
        form = self.linear(e)
        return form.const if not form.terms else None

    # ------------------------------------------------------------------------------------------ whole expressions

    def _simplify(self, e: Expr) -> Expr:
        if isinstance(e, Const):
            return e
        if e.dtype is INDEX:
            return self.expr(self.linear(e))
        if isinstance(e, Var):
            return e
        if isinstance(e, Binary) and e.a.dtype is INDEX:
            return self._compare(e)
        return self._over_simple(e)

    def _compare(self, e: Binary) -> Expr:
        form = self.linear(sub(e.a, e.b))
        lo, hi = self._bounds_of(form)
        match e.op:
            case BinaryOp.LE | BinaryOp.LT if math.inf in (-lo, hi) and _has_data(form):
                # Indices do not overflow, but what is loaded may be any number: a - b < 0 is not a < b then.
                return binary(e.op, self(e.a), self(e.b))
            case BinaryOp.LE:  # d <= 0  is  d < 1
                return self._less(form, 1, lo, hi)
            case BinaryOp.LT:
                return self._less(form, 0, lo, hi)
            case BinaryOp.EQ | BinaryOp.NE:
                same = e.op is BinaryOp.EQ
                if lo > 0 or hi < 0:
                    return FALSE if same else TRUE
                if lo == hi == 0:
                    return TRUE if same else FALSE
                g = math.gcd(*(c for _, c in form.terms))
                if form.const % g:
                    return FALSE if same else TRUE
                if form.terms[0][1] < 0:
                    g = -g
                left = Linear(0, tuple((a, c // g) for a, c in form.terms))
                return binary(e.op, self.expr(left), const(-form.const // g))
            case _:
                return binary(e.op, self(e.a), self(e.b))

    def _less(self, form: Linear, limit: int, lo: Number, hi: Number) -> Expr:
        """Σ + const < limit."""
        if hi < limit:
            return TRUE
        if lo >= limit:
            return FALSE
        g = math.gcd(*(c for _, c in form.terms))
        bound = -((form.const - limit) // g)  # g·x < limit - const  is  x < ceil((limit - const) / g)
        terms = tuple((a, c // g) for a, c in form.terms)
        if all(c < 0 for _, c in terms):  # -x < b  is  -b < x
            positive = Linear(0, tuple((a, -c) for a, c in terms))
            return binary(BinaryOp.LT, const(-bound), self.expr(positive))
        return binary(BinaryOp.LT, self.expr(Linear(0, terms)), const(bound))

    def expr(self, form: Linear) -> Expr:
        """A normal form as an expression: terms by falling coefficient, the constant last."""
        out: Expr | None = None
        for atom, coeff in sorted(form.terms, key=lambda t: -t[1]):
            if out is None:
                out = atom if coeff == 1 else mul(atom, const(coeff))
            elif coeff < 0:
                out = sub(out, atom if coeff == -1 else mul(atom, const(-coeff)))
            else:
                out = add(out, atom if coeff == 1 else mul(atom, const(coeff)))
        if out is None:
            return const(form.const)
        return sub(out, const(-form.const)) if form.const < 0 else add(out, const(form.const))

    # ------------------------------------------------------------------------------------------------ normal form

    def _linear_of(self, e: Expr) -> Linear:
        match e:
            case Const():
                return Linear(int(e.value), ())
            case Var():
                known = self._ranges.get(e)
                if known is not None and known.lo == known.hi:
                    return Linear(int(known.lo), ())
                return Linear(0, ((e, 1),))
            case Binary():
                return self._linear_of_binary(e)
            case Unary(op=UnaryOp.NEG):
                return self._scale(self.linear(e.a), -1)
            case _:
                return self._atom(self._over_simple(e))

    def _linear_of_binary(self, e: Binary) -> Linear:
        match e.op:
            case BinaryOp.ADD:
                return self._sum(self.linear(e.a), self.linear(e.b))
            case BinaryOp.SUB:
                return self._sum(self.linear(e.a), self._scale(self.linear(e.b), -1))
            case BinaryOp.MUL:
                a, b = self.linear(e.a), self.linear(e.b)
                if not b.terms:
                    return self._scale(a, b.const)
                if not a.terms:
                    return self._scale(b, a.const)
                return self._atom(mul(self.expr(a), self.expr(b)))
            case BinaryOp.FLOORDIV | BinaryOp.MOD:
                divisor = self.linear(e.b)
                if divisor.terms or divisor.const <= 0:
                    return self._atom(binary(e.op, self(e.a), self(e.b)))
                divide = self._floordiv if e.op is BinaryOp.FLOORDIV else self._mod
                return divide(self.linear(e.a), divisor.const)
            case BinaryOp.MIN | BinaryOp.MAX:
                return self._min_max(e)
            case _:
                return self._atom(self._over_simple(e))

    def _over_simple(self, e: Expr) -> Expr:
        """The same node over simplified children."""
        children = e.children()
        new = tuple([self(c) for c in children])
        return e if new == children else e.rebuild(new)  # equality of nodes is identity

    def _atom(self, e: Expr) -> Linear:
        if isinstance(e, Const):
            return Linear(int(e.value), ())
        return Linear(0, ((e, 1),))

    def _min_max(self, e: Binary) -> Linear:
        a, b = self.linear(e.a), self.linear(e.b)
        lo, hi = self._bounds_of(self._sum(a, self._scale(b, -1)))
        smaller, larger = (a, b) if hi <= 0 else (b, a) if lo >= 0 else (None, None)
        pick = smaller if e.op is BinaryOp.MIN else larger
        if pick is not None:
            return pick
        return self._atom(binary(e.op, self(e.a), self(e.b)))

    def _scale(self, form: Linear, k: int) -> Linear:
        if k == 0:
            return Linear(0, ())
        if k == 1:
            return form
        return Linear(form.const * k, tuple([(a, c * k) for a, c in form.terms]))

    def _sum(self, x: Linear, y: Linear) -> Linear:
        if not y.terms:
            return Linear(x.const + y.const, x.terms)
        if not x.terms:
            return Linear(x.const + y.const, y.terms)
        coeffs = dict(x.terms)
        for a, c in y.terms:
            coeffs[a] = coeffs.get(a, 0) + c
        extra = self._recombine(coeffs)
        form = self._make(x.const + y.const, coeffs)
        return form if extra is None else self._sum(form, extra)

    def _make(self, constant: int, coeffs: dict[Expr, int]) -> Linear:
        terms = [(a, c) for a, c in coeffs.items() if c]
        if len(terms) > 1:
            terms.sort(key=lambda t: self.order(t[0]))
        return Linear(constant, tuple(terms))

    def _recombine(self, coeffs: dict[Expr, int]) -> Linear | None:
        """c·(x // c) + x % c  is  x, and c·(x // c % d) + x % c  is  x % (c·d): takes such a pair out of `coeffs` and
        returns what it stands for.
        """
        if len(coeffs) < 2:
            return None
        for m, k in coeffs.items():
            if type(m) is Binary and m.op is _MOD and k and isinstance(m.b, Const):
                c = int(m.b.value)
                # In normal form too: (y // 8) // 58 is spelled y // 464.
                whole = self._floordiv(self.linear(m.a), c)
                if whole.const == 0 and len(whole.terms) == 1 and whole.terms[0][1] == 1:
                    atom = whole.terms[0][0]
                    if coeffs.get(atom) == k * c:
                        del coeffs[m], coeffs[atom]
                        return self._scale(self.linear(m.a), k)
                    for q, kq in coeffs.items():
                        if not isinstance(q, Binary) or q.op is not BinaryOp.MOD or q.a is not atom:
                            continue
                        if kq == k * c and isinstance(q.b, Const):
                            del coeffs[m], coeffs[q]
                            return self._scale(self._mod(self.linear(m.a), c * int(q.b.value)), k)
        return None

    def _split(self, form: Linear, c: int) -> tuple[Linear, Linear]:
        """(multiple of c, divided by c) and the rest, whose constant is in 0 … c-1."""
        whole = tuple([(a, k // c) for a, k in form.terms if k % c == 0])
        rest = tuple([(a, k) for a, k in form.terms if k % c])
        return Linear(form.const // c, whole), Linear(form.const % c, rest)

    def _floordiv(self, form: Linear, c: int) -> Linear:
        if c == 1:
            return form
        whole, rest = self._split(form, c)
        quotient = self._quotient(rest, c)
        if quotient is not None:
            return Linear(whole.const + quotient, whole.terms)
        coarse = self._coarse(rest, c)
        if coarse is not None:  # (g·x + r) // c  is  x // (c / g)  where 0 <= r < g
            g, x, _ = coarse
            return self._sum(whole, self._floordiv(x, c // g))
        for atom, k in rest.terms:
            if (
                k == 1
                and isinstance(atom, Binary)
                and atom.op is BinaryOp.FLOORDIV
                and isinstance(atom.b, Const)
            ):
                d = int(atom.b.value)  # (x // d + r) // c  is  (x + r·d) // (c·d)
                others = Linear(rest.const, tuple(t for t in rest.terms if t[0] is not atom))
                inner = self._sum(self.linear(atom.a), self._scale(others, d))
                return self._sum(whole, self._floordiv(inner, c * d))
        return self._sum(whole, Linear(0, ((Binary(BinaryOp.FLOORDIV, self.expr(rest), const(c)), 1),)))

    def _mod(self, form: Linear, c: int) -> Linear:
        if c == 1:
            return Linear(0, ())
        _, rest = self._split(form, c)
        quotient = self._quotient(rest, c)
        if quotient is not None:
            return Linear(rest.const - quotient * c, rest.terms)
        coarse = self._coarse(rest, c)
        if coarse is not None:  # (g·x + r) % c  is  g·(x % (c / g)) + r  where 0 <= r < g
            g, x, fine = coarse
            return self._sum(self._scale(self._mod(x, c // g), g), fine)
        stripped = {a: k for a, k in rest.terms}
        changed = Linear(rest.const, ())
        for a, k in rest.terms:
            if (
                isinstance(a, Binary)
                and a.op is BinaryOp.MOD
                and isinstance(a.b, Const)
                and int(a.b.value) % c == 0
            ):
                del stripped[a]  # (x % (c·d)) % c  is  x % c
                changed = self._sum(changed, self._scale(self.linear(a.a), k))
        if len(stripped) < len(rest.terms):
            return self._mod(self._sum(self._make(0, stripped), changed), c)
        return Linear(0, ((Binary(BinaryOp.MOD, self.expr(rest), const(c)), 1),))

    def _coarse(self, form: Linear, c: int) -> tuple[int, Linear, Linear] | None:
        """form as g·x + r with 1 < g dividing c and 0 <= r < g, for the largest such g."""
        for g in sorted({math.gcd(c, k) for _, k in form.terms} - {1}, reverse=True):
            fine = Linear(form.const % g, tuple([(a, k) for a, k in form.terms if k % g]))
            lo, hi = self._bounds_of(fine)
            if lo >= 0 and hi < g:
                return (
                    g,
                    Linear(form.const // g, tuple([(a, k // g) for a, k in form.terms if k % g == 0])),
                    fine,
                )
        return None

    def _quotient(self, rest: Linear, c: int) -> int | None:
        """rest // c where the bounds decide it."""
        lo, hi = self._bounds_of(rest)
        if lo == -math.inf or hi == math.inf:
            return None
        return int(lo // c) if lo // c == hi // c else None

    # ----------------------------------------------------------------------------------------------------- bounds

    def _bounds_of(self, form: Linear) -> Interval:
        lo: Number = form.const
        hi: Number = form.const
        has_open = False
        for atom, k in form.terms:
            low, high = self._atom_bounds(atom)
            lo += low * k if k > 0 else high * k
            hi += high * k if k > 0 else low * k
            has_open = has_open or (type(atom) is Binary and _is_open_quotient(atom))
        if has_open and len(form.terms) > 1:
            return Interval(max(lo, -self._above(self._scale(form, -1))), min(hi, self._above(form)))
        return Interval(lo, hi)

    def _above(self, form: Linear) -> Number:
        """A bound from above, in which a quotient of open sizes is near to what it is a quotient of: n - n // 4 * 4 is
        at most 3, though n may be anything.
        """
        for atom, k in form.terms:
            if _is_open_quotient(atom):
                assert isinstance(atom, Binary) and isinstance(atom.b, Const)
                by = int(atom.b.value)
                rest = Linear(form.const, tuple([t for t in form.terms if t[0] is not atom]))
                of = self.linear(atom.a)
                near = of if k > 0 else self._sum(of, Linear(1 - by, ()))
                found = self._bounds_of(self._sum(self._scale(rest, by), self._scale(near, k))).hi
                return found if found == math.inf else found // by
        return math.inf

    def _atom_bounds(self, atom: Expr) -> Interval:
        if isinstance(atom, Var):
            return self._ranges.get(atom, UNKNOWN)
        known = self._bounds.get(atom)
        if known is None:
            known = self._compute_atom_bounds(atom)
            self._bounds[atom] = known
        return known

    def _compute_atom_bounds(self, atom: Expr) -> Interval:
        if isinstance(atom, DimSize):
            return Interval(atom.least, atom.most)
        if not isinstance(atom, Binary):
            return Interval(0, 1) if atom.dtype is DType.BOOL else UNKNOWN
        if atom.op in (BinaryOp.FLOORDIV, BinaryOp.MOD) and isinstance(atom.b, Const) and atom.b.value > 0:
            a, c = self.bounds(atom.a), int(atom.b.value)
            if atom.op is BinaryOp.MOD:
                return Interval(0, min(c - 1, a.hi) if a.lo >= 0 else c - 1)
            return Interval(a.lo if a.lo == -math.inf else a.lo // c, a.hi if a.hi == math.inf else a.hi // c)
        if atom.op in (BinaryOp.MIN, BinaryOp.MAX):
            pick = min if atom.op is BinaryOp.MIN else max
            a, b = self.bounds(atom.a), self.bounds(atom.b)
            return Interval(pick(a.lo, b.lo), pick(a.hi, b.hi))
        if atom.op is BinaryOp.MUL:
            a, b = self.bounds(atom.a), self.bounds(atom.b)
            corners = [0 if 0 in (x, y) else x * y for x in a for y in b]
            return Interval(min(corners), max(corners))
        return UNKNOWN

    def order(self, atom: Expr) -> str:
        """A total order of atoms that does not depend on the run: their structure, spelled out."""
        text = self._order.get(atom)
        if text is None:
            text = _spell(atom)
            self._order[atom] = text
        return text


def _is_open_quotient(atom: Expr) -> bool:
    """Is it a quotient, by a number, of sizes that are known when the program runs?"""
    if type(atom) is not Binary or atom.op is not BinaryOp.FLOORDIV or not isinstance(atom.b, Const):
        return False
    return atom.b.value > 0 and bool(traits(atom.a) & SIZES)


def _has_data(form: Linear) -> bool:
    return any(loads(atom) for atom, _ in form.terms)


def _spell(e: Expr) -> str:
    match e:
        case Var() | DimSize():
            return e.name
        case Const():
            return repr(e.value)
        case Binary():
            return f"({e.op.value} {_spell(e.a)} {_spell(e.b)})"
        case Unary():
            return f"({e.op.value} {_spell(e.a)})"
        case _:
            name = getattr(getattr(e, "buffer", None), "name", "")
            return f"({type(e).__name__} {name} {' '.join(_spell(c) for c in e.children())})"
