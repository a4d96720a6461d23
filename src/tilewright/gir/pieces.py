"""Boxes of elements, and where to cut them: at the border of a padding, between the parts of a concatenation.

    y[i, j] = select(j < 8, a[i, j], b[i, j - 8])    ──>    y[i, j] = a[i, j]            for the first 8 columns
                                                            y[i, j + 8] = b[i, j]        for the others

In a piece no condition changes, so vectors need no masks, and each side is read only where it is wanted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tilewright.ir.condition import conjuncts
from tilewright.ir.expr import (
    TRUE,
    Binary,
    BinaryOp,
    Buffer,
    Expr,
    Indices,
    Load,
    Select,
    Var,
    free_vars,
    loads,
    walk,
)
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.tir.stmt import Store

_MIN_CUT = 128  # elements of a nest whose conditions on values are worth code of their own; bound
_MAX_CUTS = 8  # of one axis, such as the parts of a concatenation; bound


@dataclass(frozen=True, slots=True)
class ElementBox:
    """What is stored for each point of `axes` (with their extents, from the outermost in) where `condition` holds."""

    stores: tuple[Store, ...]
    axes: Mapping[Var, int]
    condition: Expr = TRUE

    @property
    def size(self) -> int:
        return prod(self.axes.values())

    @property
    def open_axes(self) -> frozenset[Var]:
        """Those along which less than all of what is stored may be in use."""
        return frozenset(
            v
            for s in self.stores
            if s.buffer.sizes
            for d, i in enumerate(s.indices)
            if s.buffer.is_open(d)
            for v in free_vars(i)
        )

    def accesses(self) -> Iterator[tuple[Buffer, Indices]]:
        """What it reads and writes, and where; elements that choose others are read too."""
        for s in self.stores:
            for e in (*s.indices, s.value):
                yield from ((ld.buffer, ld.indices) for ld in loads(e))
            yield s.buffer, s.indices

    def reads(self) -> Iterator[Load]:
        for s in self.stores:
            yield from dict.fromkeys(loads(s.value))

    def within(self, axes: Mapping[Var, int]) -> "ElementBox":
        """Of these axes alone; others have loops around it."""
        return ElementBox(self.stores, axes, self.condition)

    def moved(
        self, values: Mapping[Var, Expr], axes: Mapping[Var, int], simplify: Simplifier
    ) -> "ElementBox":
        """With other axes, over which the old ones are `values`."""

        def at(e: Expr) -> Expr:
            return simplify(substitute(e, values))

        stores = tuple(Store(s.buffer, tuple(map(at, s.indices)), at(s.value)) for s in self.stores)
        return ElementBox(stores, axes, at(self.condition))


@dataclass(frozen=True, slots=True)
class Cut:
    axis: Var
    points: tuple[int, ...]  # the iterations before which a condition changes
    own: int  # the first of the axes that every piece has for itself


def find_cut(piece: ElementBox, tiled: tuple[Var, ...], lanes: int) -> Cut | None:
    """The outermost cut. Axes that are `tiled` are cut where their whole tiles end."""
    conditions = set(conjuncts(piece.condition))
    if piece.size >= _MIN_CUT:
        for s in piece.stores:
            conditions.update(c for e in walk(s.value) if isinstance(e, Select) for c in conjuncts(e.cond))
    order = list(piece.axes)
    for at, (axis, extent) in enumerate(piece.axes.items()):
        points = sorted({p for c in conditions for p in turning_points(c, axis, extent)})
        if len(points) > _MAX_CUTS:  # as those of a triangle: vectors take both sides
            points = []
        own = at
        if not points and axis in tiled and extent % lanes:
            points = [extent // lanes * lanes]
            own = min(order.index(a) for a in tiled)
        if points:
            return Cut(axis, tuple(points), min(own, at))
    return None


def turning_points(cond: Expr, axis: Var, extent: int) -> range:
    """The iterations of `axis` before which a comparison changes. One that depends on other axes as well may do so
    before each; one of elements of a buffer is not known before they are read.
    """
    if (
        not isinstance(cond, Binary)
        or cond.op not in (BinaryOp.LT, BinaryOp.LE)
        or axis not in free_vars(cond)
        or loads(cond)
    ):
        return range(0)
    if free_vars(cond) != frozenset({axis}):
        return range(1, extent)
    form = Simplifier({axis: Interval(0, extent - 1)}).linear(cond.a - cond.b)
    if len(form.terms) != 1 or form.terms[0][0] is not axis:
        return range(0)
    # k·v + c (<, ≤) 0 holds up to some v, or from some v on.
    k, c = form.terms[0][1], form.const if cond.op is BinaryOp.LT else form.const - 1
    point = -(c // k) if k > 0 else c // -k + 1
    return range(point, point + 1) if 0 < point < extent else range(0)


def steps_of(buffer: Buffer, indices: Indices, simplify: Simplifier) -> dict[Var, int]:
    """How far the address moves with each axis that it is linear in."""
    form = simplify.weighted(indices, buffer.strides)
    bent = {v for atom, _ in form.terms if not isinstance(atom, Var) for v in free_vars(atom)}
    return {atom: k for atom, k in form.terms if isinstance(atom, Var) and atom not in bent}
