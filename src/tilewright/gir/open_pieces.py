"""Boxes of elements over images that are flattened, and joined, at sizes that are known when the program runs.

    y[f] = x[f // w, f % w]                       ──>   y[i * w + j] = x[i, j]       for j below w
    y[f] = select(f < n, a[f], b[f - n])          ──>   y[f] = a[f]                  for f below n
                                                        y[n + f] = b[f]              for f below size - n

A division by a size costs as much as dozens of additions, and what it chooses is gathered lane by lane. Over rows, or
over the parts that are joined, all moves by one. Both are exact: a vector that goes beyond a row, or beyond a part,
would store to the next, so it is masked there.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import inf
from typing import NamedTuple

from tilewright.gir.pieces import ElementBox
from tilewright.ir.condition import conjuncts, logical_and
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import (
    FALSE,
    TRUE,
    Binary,
    BinaryOp,
    Const,
    DimSize,
    Expr,
    Load,
    Select,
    Var,
    as_index,
    free_vars,
    walk,
)
from tilewright.ir.rewrite import transform
from tilewright.ir.simplify import Interval, Linear, Simplifier
from tilewright.ir.traits import SIZES, traits
from tilewright.tir.stmt import Store

_MOST_PARTS = 8  # that are joined; bound: each is code of its own


def by_open_rows(piece: ElementBox, simplify: Simplifier) -> ElementBox | None:
    """The piece with an axis that it divides by an open size as two: rows of that size, and what is in them."""
    found = _divided(piece)
    if found is None:
        return None
    axis, size, rows = found
    columns = simplify.bounds(size).hi
    if columns == inf or rows * columns > piece.axes[axis] or not _is_stored_once(piece, axis):
        return None
    if not all(_has_all(rows, size, s, axis, simplify) for s in piece.stores):
        return None  # others are joined to these rows, say
    high, low = Var(f"{axis.name}_row"), Var(f"{axis.name}_column")
    simplify.learn({high: Interval(0, rows - 1), low: Interval(0, int(columns) - 1)})

    def moved(e: Expr) -> Expr | None:
        if e is axis:
            return high * size + low
        if isinstance(e, Binary) and e.op in (BinaryOp.FLOORDIV, BinaryOp.MOD) and e.b is size:
            whole = high * size + low
            return (high if e.op is BinaryOp.FLOORDIV else low) if e.a is whole else None
        return None

    axes: dict[Var, int] = {}
    for a, e in piece.axes.items():
        axes |= {high: rows, low: int(columns)} if a is axis else {a: e}
    return _rewritten(piece, axes, moved, low < size, simplify)


def _divided(piece: ElementBox) -> tuple[Var, Expr, int] | None:
    """An axis, the open size that reads divide it by, and how many rows what they read has."""
    for ld in (ld for s in piece.stores for ld in walk(s.value) if isinstance(ld, Load)):
        for rows, index in zip(ld.buffer.shape, ld.indices, strict=True):
            # As it is, or held inside of the buffer: if a row is computed of it, the extent is not the number of rows.
            match _unheld(index, rows):
                case Binary(op=BinaryOp.FLOORDIV, a=Var() as v, b=size) if v in piece.axes and _is_size(size):
                    return v, size, rows
                case _:
                    pass
    return None


def _has_all(rows: int, size: Expr, s: Store, axis: Var, simplify: Simplifier) -> bool:
    """Do this many rows of a size reach as far as what is stored along the axis is in use? Dimensions that the size
    does not depend on are taken to be the largest: what is in use grows with them.
    """
    d = s.indices.index(axis)
    end = s.buffer.sizes[d] if s.buffer.is_open(d) else None
    if end is None or any(k < 0 for _, k in simplify.linear(end).terms):
        return False
    own = {e.name for e in walk(size) if isinstance(e, DimSize)}

    def largest(e: Expr) -> Expr | None:
        return as_index(e.most) if isinstance(e, DimSize) and e.name not in own else None

    return simplify.bounds(simplify(size * rows - transform(end, largest))).lo >= 0


def _unheld(index: Expr, extent: int) -> Expr:
    """An index without the minimum that keeps it inside of a buffer."""
    match index:
        case Binary(op=BinaryOp.MIN, a=inner, b=Const(value=last)) if last == extent - 1:
            return inner
        case _:
            return index


def _is_size(e: Expr) -> bool:
    return bool(traits(e) & SIZES) and not free_vars(e)


def _is_stored_once(piece: ElementBox, axis: Var) -> bool:
    """Is the axis an index of what is stored, and nothing but that?"""
    return all(
        [i for i in s.indices if axis in free_vars(i)] == [axis] and axis not in free_vars(piece.condition)
        for s in piece.stores
    )


class OpenPart(NamedTuple):
    """Of what is joined along an axis: where it begins, and how much there is of it, at most `most`."""

    start: Expr
    length: Expr
    most: int


def open_parts(piece: ElementBox, simplify: Simplifier) -> list[ElementBox] | None:
    """The piece, cut where conditions of what it stores change at open sizes along an axis whose end is open too."""
    for axis in piece.axes:
        if len(piece.stores) != 1 or not _is_stored_once(piece, axis):
            continue
        (s,) = piece.stores
        end = s.buffer.sizes[s.indices.index(axis)] if s.buffer.sizes else None
        found = {
            c: point
            for e in walk(s.value)
            if isinstance(e, Select)
            for c in conjuncts(e.cond)
            if (point := _turn(c, axis, simplify)) is not None
        }
        if end is None or not found:
            continue
        parts = _in_order({p for p, _ in found.values()}, end, piece.axes[axis], simplify)
        if parts is not None:
            return [_part(piece, axis, p, n, found, parts, simplify) for n, p in enumerate(parts)]
    return None


def _turn(cond: Expr, axis: Var, simplify: Simplifier) -> tuple[Expr, bool] | None:
    """The open size from which on a condition on the axis is another one, and what it is before."""
    if not isinstance(cond, Binary) or cond.op is not BinaryOp.LT or not traits(cond) & SIZES:
        return None
    if cond.a.dtype is not INDEX:  # floats that depend on a size
        return None
    form = simplify.linear(cond.a - cond.b)
    k = dict(form.terms).get(axis, 0)
    rest = simplify.expr(Linear(form.const, tuple([t for t in form.terms if t[0] is not axis])))
    if abs(k) != 1 or not _is_size(rest):
        return None
    # v + rest < 0 holds below -rest, and rest - v < 0 from rest + 1 on.
    return (simplify(as_index(0) - rest), True) if k > 0 else (simplify(rest + 1), False)


def _in_order(points: set[Expr], end: Expr, extent: int, simplify: Simplifier) -> list[OpenPart] | None:
    if len(points) >= _MOST_PARTS:
        return None
    ordered = sorted(points, key=lambda p: (simplify.bounds(p).hi, str(p)))
    bounds = [as_index(0), *ordered, end]
    parts: list[OpenPart] = []
    for start, stop in pairwise(bounds):
        length = simplify(stop - start)
        low, high = simplify.bounds(length)
        if low < 0 or high == inf or not 0 < int(high) <= extent:
            return None
        parts.append(OpenPart(start, length, int(high)))
    return parts


def _part(
    piece: ElementBox,
    axis: Var,
    part: OpenPart,
    number: int,
    turns: Mapping[Expr, tuple[Expr, bool]],
    parts: list[OpenPart],
    simplify: Simplifier,
) -> ElementBox:
    own = Var(f"{axis.name}_{number}")
    simplify.learn({own: Interval(0, part.most - 1)})
    starts = [p.start for p in parts]
    known = {
        c: TRUE if (number < starts.index(point)) == before else FALSE for c, (point, before) in turns.items()
    }

    def chosen(e: Expr) -> Expr | None:
        if isinstance(e, Select) and isinstance(e.cond, Const):
            return e.a if e.cond is TRUE else e.b
        return known.get(e)

    told = tuple(Store(s.buffer, s.indices, transform(s.value, chosen)) for s in piece.stores)
    axes = {own if a is axis else a: part.most if a is axis else e for a, e in piece.axes.items()}
    place = part.start + own
    whole = ElementBox(told, piece.axes, piece.condition)
    return _rewritten(whole, axes, lambda e: place if e is axis else None, own < part.length, simplify)


def _rewritten(
    piece: ElementBox,
    axes: Mapping[Var, int],
    moved: Callable[[Expr], Expr | None],
    condition: Expr,
    simplify: Simplifier,
) -> ElementBox:
    def at(e: Expr) -> Expr:
        return simplify(transform(e, moved))

    stores = tuple(Store(s.buffer, tuple(map(at, s.indices)), at(s.value)) for s in piece.stores)
    return ElementBox(stores, axes, logical_and(at(piece.condition), simplify(condition)))
