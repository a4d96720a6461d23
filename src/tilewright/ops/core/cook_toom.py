"""Bilinear algorithms for short correlations, derived from points (Cook and Toom, Winograd).

    y[i] = Σ_k d[i + k] · g[k]   for i < m, k < r:        y = A · ((G · g) ⊙ (B · d)),   n = m + r − 1 products

With n − 1 finite points p_j and one at infinity, B has the coefficients of Π_{l≠j} (x − p_l), G evaluates g at the
points over Π_{l≠j} (p_j − p_l), and A evaluates powers. Points of small magnitude around 1 that come in pairs ±p keep
the matrices' entries close together, which is what the error depends on.

`combine` writes such a matrix out as straight-line code: no multiplication by 0 or 1, and sums that rows or columns
have in common up to signs, as those of a pair of points have, are computed once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import TypeAlias

from tilewright.ir.expr import Expr, Fma, const, equal, select

Matrix: TypeAlias = tuple[tuple[Fraction, ...], ...]

# By their number; of the sets with small denominators, these have the smallest errors.
_POINTS: Mapping[int, tuple[Fraction, ...]] = {
    3: (Fraction(0), Fraction(1), Fraction(-1)),
    5: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(5, 4), Fraction(-5, 4)),
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """`outputs` results of a correlation with `taps` weights in `products` products, as matrices."""

    output: Matrix  # outputs × products
    filter: Matrix  # products × taps
    data: Matrix  # products × (outputs + taps - 1)

    @property
    def outputs(self) -> int:
        return len(self.output)

    @property
    def taps(self) -> int:
        return len(self.filter[0])

    @property
    def products(self) -> int:
        return len(self.data)


@lru_cache(maxsize=32)
def scheme(outputs: int, taps: int) -> Scheme | None:
    """The algorithm for F(`outputs`, `taps`), if there are points for it. With one tap it is plain multiplication."""
    if taps == 1 and outputs == 1:
        one = ((Fraction(1),),)
        return Scheme(one, one, one)
    points = _POINTS.get(outputs + taps - 2)
    if points is None or taps < 2 or outputs < 2:
        return None
    zero, one = Fraction(0), Fraction(1)
    last = len(points)
    others = [[q for q in points if q != p] for p in points]
    data = [(*_product(rest), zero) for rest in others] + [_product(points)]
    weight = [
        tuple(p**k / _value_at(p, rest) for k in range(taps)) for p, rest in zip(points, others, strict=True)
    ]
    weight.append(tuple(one if k == taps - 1 else zero for k in range(taps)))
    output = tuple((*(p**i for p in points), one if i == outputs - 1 else zero) for i in range(outputs))
    assert len(data) == last + 1
    return Scheme(output, tuple(weight), tuple(data))


def _product(points: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of Π (x − p), the constant first."""
    out = [Fraction(1)]
    for p in points:
        out = [
            (out[k - 1] if k else Fraction(0)) - p * (out[k] if k < len(out) else 0)
            for k in range(len(out) + 1)
        ]
    return tuple(out)


def _value_at(p: Fraction, points: Sequence[Fraction]) -> Fraction:
    out = Fraction(1)
    for q in points:
        out *= p - q
    return out


# ------------------------------------------------------------------------------------------------ straight-line code


SparseRow: TypeAlias = tuple[tuple[int, float], ...]  # terms by number, with their coefficients


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two rows of a product: common ± factor · difference."""

    rows: tuple[int, int]
    common: SparseRow
    difference: SparseRow
    factor: float


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a matrix is multiplied: `columns` are added and subtracted, and their sums and differences are terms too."""

    columns: tuple[tuple[int, int], ...]
    pairs: tuple[_Pair, ...]
    rows: tuple[SparseRow, ...]  # all, also those that are in a pair


def combine(matrix: Matrix, values: Sequence[Expr]) -> list[Expr]:
    """matrix · values."""
    return _combine(_plan(matrix), values)


def _combine(plan: _Plan, values: Sequence[Expr]) -> list[Expr]:
    terms = list(values)
    for i, j in plan.columns:
        terms += [values[i] + values[j], values[i] - values[j]]
    out: dict[int, Expr] = {}
    for p in plan.pairs:
        common, difference = _sum(p.common, terms), _sum(p.difference, terms)
        for row, factor in zip(p.rows, (p.factor, -p.factor), strict=True):
            out[row] = _add(common, factor, difference)
    return [out[n] if n in out else _sum(row, terms) for n, row in enumerate(plan.rows)]


@lru_cache(maxsize=64)
def _plan(matrix: Matrix) -> _Plan:
    rows = [{c: k for c, k in enumerate(row) if k} for row in matrix]
    columns = _column_pairs(matrix)
    for n, (i, j) in enumerate(columns):
        plus = len(matrix[0]) + 2 * n
        for row in rows:
            if i in row:
                k = row.pop(i)
                row[plus if row.pop(j) == k else plus + 1] = k
    pairs: list[_Pair] = []
    done: set[int] = set()
    for i, j in _row_pairs(rows):
        if i in done or j in done:
            continue
        done |= {i, j}
        even = {c: k for c, k in rows[i].items() if rows[j][c] == k}
        odd = {c: k for c, k in rows[i].items() if rows[j][c] == -k}
        factor = odd[max(odd)]  # the coefficient of the highest power: the others stay exact
        difference = {c: k / factor for c, k in odd.items()}
        pairs.append(_Pair((i, j), _in_order(even), _in_order(difference), float(factor)))
    return _Plan(tuple(columns), tuple(pairs), tuple(_in_order(row) for row in rows))


def _in_order(row: Mapping[int, Fraction]) -> SparseRow:
    """What needs no multiplication comes first."""
    order = sorted(row, key=lambda c: (row[c] != 1, abs(row[c]) != 1, c))
    return tuple((c, float(row[c])) for c in order)


def _column_pairs(matrix: Matrix) -> list[tuple[int, int]]:
    """Columns that are equal in some rows and opposite in the others."""
    found: list[tuple[int, int]] = []
    for i, j in combinations(range(len(matrix[0])), 2):
        pairs = [(row[i], row[j]) for row in matrix if row[i] or row[j]]
        same = [a == b for a, b in pairs]
        free = all(i not in p and j not in p for p in found)
        if free and all(abs(a) == abs(b) for a, b in pairs) and any(same) and not all(same) and len(same) > 2:
            found.append((i, j))
    return found


def _row_pairs(rows: Sequence[Mapping[int, Fraction]]) -> list[tuple[int, int]]:
    """Rows that are equal in some columns and opposite in the others."""
    found: list[tuple[int, int]] = []
    for i, j in combinations(range(len(rows)), 2):
        a, b = rows[i], rows[j]
        if a.keys() == b.keys() and len(a) > 2 and all(abs(a[c]) == abs(b[c]) for c in a):
            same = [a[c] == b[c] for c in a]
            if any(same) and not all(same):
                found.append((i, j))
    return found


def _sum(row: SparseRow, terms: Sequence[Expr]) -> Expr:
    """Σ k · term."""
    (first, k), *rest = row
    out = terms[first] if k == 1 else terms[first] * const(k, terms[first].dtype)
    for c, k in rest:
        out = _add(out, k, terms[c])
    return out


def _add(total: Expr, k: float, e: Expr) -> Expr:
    if abs(k) == 1:
        return total + e if k > 0 else total - e
    return Fma(const(k, e.dtype), e, total)


# ---------------------------------------------------------------------------------------------------- several axes


def apply_transforms(matrices: Sequence[Matrix], values: Callable[..., Expr]) -> dict[tuple[int, ...], Expr]:
    """The matrices along one axis each, of a small array with an expression for every element."""
    rank = len(matrices)
    out: dict[tuple[int, ...], Expr] = {}
    for at in _indices([len(m[0]) for m in matrices]):
        out[at] = values(*at)
    for axis, matrix in enumerate(matrices):
        done: dict[tuple[int, ...], Expr] = {}
        plan = _plan(matrix)
        fixed = {(*at[:axis], *at[axis + 1 :]) for at in out}
        for rest in sorted(fixed):
            line = [out[(*rest[:axis], n, *rest[axis:])] for n in range(len(matrix[0]))]
            for n, e in enumerate(_combine(plan, line)):
                done[(*rest[:axis], n, *rest[axis:])] = e
        out = done
    assert all(len(at) == rank for at in out)
    return out


def _indices(extents: Sequence[int]) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = [()]
    for n in extents:
        out = [(*at, i) for at in out for i in range(n)]
    return out


def select_element(indices: Sequence[Expr], values: Mapping[tuple[int, ...], Expr]) -> Expr:
    """The element at `indices` of a small array, by comparisons: none is left where the indices are written out."""
    if not indices:
        return values[()]
    first, *rest = indices
    cases = sorted({at[0] for at in values})
    found = [select_element(rest, {at[1:]: e for at, e in values.items() if at[0] == n}) for n in cases]
    out = found[-1]
    for n, e in zip(reversed(cases[:-1]), reversed(found[:-1]), strict=True):
        out = select(equal(first, n), e, out)
    return out
