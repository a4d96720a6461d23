"""Inverting index maps.

    T[b, h, i, d] = C[b, i, h*32 + d]        u = (b, i, h*32 + d)   is inverted by   h = u2 // 32, d = u2 % 32
    T[b, i, n]    = C[b, n // 64, i, n % 64]                                         n = u1 * 64 + u3

A map is a sum of *digits* in each dimension: a digit is a variable, or `(var // lower) % extent`. It is
invertible where the digits of each variable tile it (lower bounds chain through the extents), and the
digits in each dimension form a mixed radix that fills it. Permutations, and every mixture of reshape and
transpose, are of this kind. Where the digits of a variable make more numbers than it has values, as those of the pixels
of an image that tiles do not divide, the inverse holds for the outputs that give one of its values.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tilewright.ir.expr import Binary, BinaryOp, Const, Expr, Var, as_index
from tilewright.ir.simplify import Simplifier


class _Digit(NamedTuple):
    var: Var
    lower: int
    extent: int


class InverseMap(NamedTuple):
    """The variables as functions of the outputs, and the conditions under which outputs have any."""

    values: dict[Var, Expr]
    conditions: tuple[Expr, ...]


def try_invert(
    indices: Sequence[Expr],
    shape: Sequence[int],
    extents: Mapping[Var, int],
    outputs: Sequence[Expr],
    simplify: Simplifier,
) -> InverseMap | None:
    """The inverse, over `outputs` (one per dimension), if different variables give different elements of `shape`, and
    each element is one or beyond the end of a variable.
    """
    found: dict[Var, list[tuple[_Digit, Expr]]] = {v: [] for v in extents}
    for index, size, out in zip(indices, shape, outputs, strict=True):
        form = simplify.linear(index)
        step = 1
        if form.const:
            return None
        for atom, k in sorted(form.terms, key=lambda t: t[1]):
            digit = _digit(atom, extents)
            if digit is None or k != step or digit.var not in found:
                return None
            value = out if step == 1 else out // step
            step *= digit.extent
            found[digit.var].append((digit, value % digit.extent if step < size else value))
        if step != size:
            return None
    result: dict[Var, Expr] = {}
    conditions: list[Expr] = []
    for var, digits in found.items():
        total: Expr = as_index(0)
        lower = 1
        for digit, value in sorted(digits, key=lambda d: d[0].lower):
            if digit.lower != lower:
                return None
            total = total + value * lower
            lower *= digit.extent
        if lower < extents[var]:
            return None
        if lower > extents[var]:
            conditions.append(total < extents[var])
        result[var] = total
    return InverseMap(result, tuple(conditions))


def _digit(atom: Expr, extents: Mapping[Var, int]) -> _Digit | None:
    """(var // lower) % extent, from any of its shorter spellings."""
    extent, lower = 0, 1
    if isinstance(atom, Binary) and atom.op is BinaryOp.MOD and isinstance(atom.b, Const):
        extent, atom = int(atom.b.value), atom.a
    if isinstance(atom, Binary) and atom.op is BinaryOp.FLOORDIV and isinstance(atom.b, Const):
        lower, atom = int(atom.b.value), atom.a
    if not isinstance(atom, Var) or atom not in extents:
        return None
    return _Digit(atom, lower, extent or -(-extents[atom] // lower))
