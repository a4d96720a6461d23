"""Sizes that are known only when a program runs: arithmetic over named dimensions.

A `Dim` is a dimension that a model leaves open, with the range that a program is made for. A `SizeExpr` is an integer
polynomial over dimensions, with quotients by numbers as further atoms; equal sizes have equal expressions. `SymInt` is
an int that knows its expression: shape arithmetic written for ints works on it as it is, and what it computes is
known for every size of the range.

- The *value* of a SymInt is the one at the upper end of all ranges: the capacity, which memory is laid out for.
- Comparisons are answered for all sizes of the range if these agree. Otherwise a `Guard` is noted (`recording`): the
  answer is right for sizes that keep it, and others need a program of their own. Where nothing may be assumed any more,
  an answer that no guard gives is refused (`strict`). Elsewhere it is that at the capacity: what is decided by cost may
  ask anything. Two sizes that are not the same expression count as different (a dimension that happens to be 768 is no
  reason to treat it as the hidden size).
- What cannot be expressed (a quotient of two open sizes that does not come out even, a float) raises `SizeError`.
"""

import math
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias


class SizeError(Exception):
    """Arithmetic that sizes do not have. The importer says where, and goes back to fixed shapes."""


@dataclass(frozen=True, slots=True, order=True)
class Dim:
    """An open dimension: `least` … `most`, in steps of `multiple`."""

    name: str
    least: int
    most: int
    multiple: int = 1

    @property
    def units(self) -> tuple[int, int]:
        """The range in multiples."""
        return -(-self.least // self.multiple), self.most // self.multiple

    def allows(self, size: int) -> bool:
        return self.least <= size <= self.most and size % self.multiple == 0

    def __str__(self) -> str:
        step = f" in steps of {self.multiple}" if self.multiple > 1 else ""
        return f"{self.name} from {self.least} to {self.most}{step}"


@dataclass(frozen=True, slots=True)
class DimUnits:
    """The number of multiples of a dimension."""

    dim: Dim

    def __str__(self) -> str:
        return self.dim.name if self.dim.multiple == 1 else f"({self.dim.name} // {self.dim.multiple})"


@dataclass(frozen=True, slots=True)
class Quotient:
    """Rounded down."""

    size: "SizeExpr"
    by: int

    def __str__(self) -> str:
        return f"(({self.size}) // {self.by})"


Atom: TypeAlias = DimUnits | Quotient
Monomial: TypeAlias = tuple[Atom, ...]  # sorted by text


@dataclass(frozen=True, slots=True)
class SizeExpr:
    """Σ coefficient · product of atoms: monomials distinct, sorted, coefficients not zero."""

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def of(value: int) -> "SizeExpr":
        return SizeExpr((((), value),) if value else ())

    @staticmethod
    def of_dim(dim: Dim) -> "SizeExpr":
        return SizeExpr((((DimUnits(dim),), dim.multiple),))

    @property
    def constant(self) -> int | None:
        """Its value, if it is the same for all sizes."""
        if not self.terms:
            return 0
        (monomial, value), *rest = self.terms
        return value if not rest and not monomial else None

    @property
    def dims(self) -> frozenset[Dim]:
        found: set[Dim] = set()
        for monomial, _ in self.terms:
            for a in monomial:
                found |= {a.dim} if isinstance(a, DimUnits) else a.size.dims
        return frozenset(found)

    def __add__(self, other: "SizeExpr") -> "SizeExpr":
        return _collected([*self.terms, *other.terms])

    def __neg__(self) -> "SizeExpr":
        return self.scaled(-1)

    def __sub__(self, other: "SizeExpr") -> "SizeExpr":
        return self + other.scaled(-1)

    def scaled(self, by: int) -> "SizeExpr":
        return SizeExpr(tuple((m, c * by) for m, c in self.terms) if by else ())

    def __mul__(self, other: "SizeExpr") -> "SizeExpr":
        return _collected(
            [(_monomial((*m, *n)), c * d) for m, c in self.terms for n, d in other.terms],
        )

    def __floordiv__(self, other: "SizeExpr") -> "SizeExpr":
        by = other.constant
        if by is None:
            return self._over(other)
        if by <= 0:
            raise SizeError(f"({self}) // {by}")
        even = SizeExpr(tuple((m, c // by) for m, c in self.terms if c % by == 0))
        rest = SizeExpr(tuple((m, c) for m, c in self.terms if c % by))
        # The multiples of `by` come out of the quotient; so does what the rest is sure to be above.
        low, high = rest.bounds
        if low // by == high // by:
            return even + SizeExpr.of(low // by)
        value = rest.terms[0][1] if rest.terms and rest.terms[0][0] == () else 0
        kept, whole = rest - SizeExpr.of(value - value % by), SizeExpr.of(value // by)
        return even + whole + SizeExpr((((Quotient(kept, by),), 1),))

    def _over(self, other: "SizeExpr") -> "SizeExpr":
        """An exact quotient, by division of polynomials: of the leading terms, as long as something is left."""
        divisor, by = other.terms[-1]
        out, left = SizeExpr(()), self
        while left.terms:
            monomial, c = left.terms[-1]
            atoms = list(monomial)
            for atom in divisor:
                if atom not in atoms:
                    raise SizeError(f"({self}) // ({other})")
                atoms.remove(atom)
            if c % by:
                raise SizeError(f"({self}) // ({other})")
            part = SizeExpr(((tuple(atoms), c // by),))
            out, left = out + part, left - part * other
        return out

    def __mod__(self, other: "SizeExpr") -> "SizeExpr":
        return self - (self // other) * other

    @property
    def bounds(self) -> tuple[int, int]:
        """Of its values, over all ranges: never too narrow."""
        found = self.interval
        if any(len(m) == 1 and isinstance(m[0], Quotient) for m, _ in self.terms):
            # n // 2 - n is below 0: quotients are near to what they are made of.
            low, high = (_without_quotients(self, side) for side in (-1, 1))
            found = max(found[0], low), min(found[1], high)
        return found

    @property
    def interval(self) -> tuple[int, int]:
        """Bounds of the terms, added up."""
        low = high = 0
        for monomial, c in self.terms:
            a = b = c
            for atom in monomial:
                least, most = _atom_bounds(atom)
                ends = (a * least, a * most, b * least, b * most)
                a, b = min(ends), max(ends)
            low, high = low + min(a, b), high + max(a, b)
        return low, high

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Its value where the dimensions have these sizes."""
        return sum(c * math.prod(_atom_value(a, sizes) for a in m) for m, c in self.terms)

    def __str__(self) -> str:
        def text(monomial: Monomial, c: int) -> str:
            atoms = [str(a) for a in monomial]
            return " * ".join([*atoms, *([str(c)] if c != 1 or not atoms else [])])

        return " + ".join(text(m, c) for m, c in self.terms) or "0"


def _monomial(atoms: Iterable[Atom]) -> Monomial:
    return tuple(sorted(atoms, key=str))


def _collected(terms: Iterable[tuple[Monomial, int]]) -> SizeExpr:
    found: dict[Monomial, int] = {}
    for monomial, c in terms:
        found[monomial] = found.get(monomial, 0) + c
    kept = [(m, c) for m, c in found.items() if c]
    return SizeExpr(tuple(sorted(kept, key=lambda t: (len(t[0]), [str(a) for a in t[0]]))))


def _without_quotients(size: SizeExpr, side: int) -> int:
    """A bound of the size, above if `side` is 1 and below if it is -1: by·q is at most what q is the quotient of, and
    at least that less (by - 1).
    """
    scale = 1
    while True:
        found = next(((m, c) for m, c in size.terms if len(m) == 1 and isinstance(m[0], Quotient)), None)
        if found is None:
            break
        (atom,), c = found
        assert isinstance(atom, Quotient)
        near = atom.size if c * side > 0 else atom.size - SizeExpr.of(atom.by - 1)
        rest = SizeExpr(tuple(t for t in size.terms if t[0] != (atom,)))
        size, scale = rest.scaled(atom.by) + near.scaled(c), scale * atom.by
    low, high = size.interval
    return high // scale if side > 0 else -(-low // scale)


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, DimUnits):
        return atom.dim.units
    low, high = atom.size.bounds
    return low // atom.by, high // atom.by


def _atom_value(atom: Atom, sizes: Mapping[str, int]) -> int:
    if isinstance(atom, DimUnits):
        return sizes[atom.dim.name] // atom.dim.multiple
    return atom.size.evaluate(sizes) // atom.by


# --------------------------------------------------------------------------------------------------------- guards


@dataclass(frozen=True, slots=True)
class Guard:
    """A comparison with zero that was answered for some sizes only: `size` `op` 0, with op one of "<", "==", "!="."""

    size: SizeExpr
    op: str

    def holds(self, sizes: Mapping[str, int]) -> bool:
        value = self.size.evaluate(sizes)
        return value < 0 if self.op == "<" else (value == 0) == (self.op == "==")

    def __str__(self) -> str:
        return f"{self.size} {self.op} 0"


@dataclass(slots=True)
class Guards:
    """What was found out about sizes while a model was read."""

    found: dict[Guard, None] = field(default_factory=dict[Guard, None])


_recorder: ContextVar[Guards | None] = ContextVar("guards", default=None)


@contextmanager
def recording() -> Generator[Guards]:
    """Notes the guards of all comparisons inside."""
    guards = Guards()
    token = _recorder.set(guards)
    try:
        yield guards
    finally:
        _recorder.reset(token)


_assumed: ContextVar[frozenset[Guard]] = ContextVar("assumed", default=frozenset())
_is_strict: ContextVar[bool] = ContextVar("is_strict", default=False)


@contextmanager
def assuming(guards: Iterable[Guard]) -> Generator[None]:
    """Sizes keep these guards, inside."""
    token = _assumed.set(frozenset(guards))
    try:
        yield
    finally:
        _assumed.reset(token)


@contextmanager
def strict() -> Generator[None]:
    """An order that neither ranges nor what is assumed tell raises SizeError, inside: a result depends on it. That
    sizes are not equal needs no proof: what is computed for any extent is right for 1, too.
    """
    token = _is_strict.set(True)
    try:
        yield
    finally:
        _is_strict.reset(token)


def _note(size: SizeExpr, op: str) -> None:
    recorder, guard = _recorder.get(), Guard(size, op)
    if recorder is not None:
        recorder.found[guard] = None
    elif op == "<" and _is_strict.get() and guard not in _assumed.get():
        raise SizeError(f"is {guard}? It is not the same for all sizes")


# --------------------------------------------------------------------------------------------------------- numbers


class SymInt(int):
    """An int over open dimensions. Its value is that at the capacity."""

    size: SizeExpr

    def __new__(cls, size: SizeExpr) -> "SymInt":
        made = super().__new__(cls, size.bounds[1])
        made.size = size
        return made

    def __add__(self, other: int) -> int:
        return _number(self.size + size_of(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        return _number(self.size - size_of(other))

    def __rsub__(self, other: int) -> int:
        return _number(size_of(other) - self.size)

    def __mul__(self, other: int) -> int:
        return _number(self.size * size_of(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        return _number(self.size // size_of(other))

    def __rfloordiv__(self, other: int) -> int:
        return _number(size_of(other) // self.size)

    def __mod__(self, other: int) -> int:
        return _number(self.size % size_of(other))

    def __rmod__(self, other: int) -> int:
        return _number(size_of(other) % self.size)

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def __abs__(self) -> int:
        return -self if self < 0 else self

    def __neg__(self) -> int:
        return _number(-self.size)

    @property
    def numerator(self) -> int:
        """Without this a Fraction would take the number at the capacity (`ratio_of`)."""
        raise SizeError(f"({self.size}) as a fraction")

    def __pos__(self) -> int:
        return self

    def __truediv__(self, other: float) -> float:
        raise SizeError(f"({self.size}) / {other}")

    def __rtruediv__(self, other: float) -> float:
        raise SizeError(f"{other} / ({self.size})")

    def __float__(self) -> float:
        raise SizeError(f"float({self.size})")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int):
            return NotImplemented
        return _is_zero(self.size - size_of(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: int) -> bool:
        return _is_negative(self.size - size_of(other))

    def __le__(self, other: int) -> bool:
        return _is_negative(self.size - size_of(other) - SizeExpr.of(1))

    def __gt__(self, other: int) -> bool:
        return _is_negative(size_of(other) - self.size)

    def __ge__(self, other: int) -> bool:
        return _is_negative(size_of(other) - self.size - SizeExpr.of(1))

    def __bool__(self) -> bool:
        return not _is_zero(self.size)

    def __hash__(self) -> int:
        return hash(self.size)

    def __str__(self) -> str:
        return str(self.size)

    __repr__ = __str__

    def __reduce__(self) -> Any:
        return SymInt, (self.size,)


def size_of(value: int) -> SizeExpr:
    return value.size if isinstance(value, SymInt) else SizeExpr.of(value)


def capacity(value: int) -> int:
    """As a plain int: the number itself, or the largest that an open size may be."""
    return int(value) if isinstance(value, SymInt) else value


def same_size(a: int, b: int) -> bool:
    """Are they equal for all sizes? Unlike with `==` nothing is noted: an open size that happens to be 1 broadcasts as
    any other does.
    """
    if isinstance(a, SymInt) or isinstance(b, SymInt):
        return size_of(a) == size_of(b)
    return a == b


def is_at_most(a: int, b: int) -> bool:
    """Is that so for all sizes? Nothing is noted."""
    return (size_of(a) - size_of(b)).bounds[1] <= 0


def ratio_of(a: int, b: int) -> Fraction:
    """a / b, which has to be the same for all sizes."""
    over, under = size_of(a), size_of(b)
    if [m for m, _ in over.terms] != [m for m, _ in under.terms] or not under.terms:
        raise SizeError(f"({over}) / ({under})")
    found = {Fraction(c, d) for (_, c), (_, d) in zip(over.terms, under.terms, strict=True)}
    if len(found) > 1:
        raise SizeError(f"({over}) / ({under})")
    return found.pop()


def dims_in(shape: Iterable[int]) -> frozenset[Dim]:
    """The open dimensions that a shape depends on."""
    return frozenset(d for n in shape if isinstance(n, SymInt) for d in n.size.dims)


def is_open(values: Iterable[int]) -> bool:
    return any(isinstance(n, SymInt) for n in values)


def sym_int(dim: Dim) -> int:
    """The size of a dimension."""
    return _number(SizeExpr.of_dim(dim))


def _number(size: SizeExpr) -> int:
    value = size.constant
    return SymInt(size) if value is None else value


def _is_zero(difference: SizeExpr) -> bool:
    value = difference.constant
    if value is not None:
        return value == 0
    low, high = difference.bounds
    if low <= 0 <= high:
        if low == high:
            return True
        _note(difference, "!=")
    return False


def _is_negative(difference: SizeExpr) -> bool:
    low, high = difference.bounds
    if low >= 0 or high < 0:
        return high < 0
    # The answer at the capacity, where most is to be computed.
    at_capacity = difference.evaluate({d.name: d.most for d in difference.dims})
    _note(difference if at_capacity < 0 else -difference - SizeExpr.of(1), "<")
    return at_capacity < 0
