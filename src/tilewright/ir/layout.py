"""Layouts: index maps made of primitives, applied to shapes, indices and arrays alike.

    Layout((SplitDim(1, 16), ReorderDims((0, 1, 3, 4, 2))))      NCHW -> NCHW16c: blocks of 16 channels, these last

A layout maps a logical shape to a physical one. Primitives (`ir/layout_primitives.py`) may make positions without a
logical element (`PadDim`, a `SplitDim` or `UnfoldDim` that does not divide); arrays are filled with zeros there.

Layouts are an algebra: `a + b` is one after the other, `inverted` leads back, `normalised` leaves out what changes
nothing. The text of a layout is Python that `schedule/trace.py` reads back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import Buffer, Expr
from tilewright.ir.layout_primitives import (
    CropDim,
    Dims,
    DimSizes,
    FoldDim,
    FuseDims,
    LaidOutArray,
    LayoutPrimitive,
    PadDim,
    ReorderDims,
    SplitDim,
    UnfoldDim,
)
from tilewright.ir.simplify import Simplifier

__all__ = [
    "CropDim",
    "DimSizes",
    "Dims",
    "FoldDim",
    "FuseDims",
    "Layout",
    "LayoutPrimitive",
    "PadDim",
    "Projection",
    "ReorderDims",
    "SplitDim",
    "UnfoldDim",
    "reshape_layout",
]


@dataclass(frozen=True, slots=True)
class Layout:
    """Primitives in the order they are applied to the logical shape."""

    primitives: tuple[LayoutPrimitive, ...] = ()

    def __add__(self, other: "Layout") -> "Layout":
        """This one, and then the other, whose logical shape is the physical one of this."""
        return Layout((*self.primitives, *other.primitives))

    def shapes(self, logical: Dims) -> list[Dims]:
        """The shapes that the primitives are applied to, and the physical one."""
        shapes = [logical]
        for p in self.primitives:
            shapes.append(p.shape(shapes[-1]))
        return shapes

    def shape(self, logical: Dims) -> Dims:
        """The physical shape."""
        return self.shapes(logical)[-1]

    def buffer(self, logical: Buffer) -> Buffer:
        """The buffer that is laid out so."""
        shape, sizes = logical.shape, logical.sizes
        for p in self.primitives:
            sizes = p.sizes(shape, sizes) if sizes else ()
            shape = p.shape(shape)
        return logical.with_shape(shape, sizes)

    def forward(
        self, logical: Dims, indices: Sequence[Expr], simplify: Simplifier | None = None
    ) -> tuple[Expr, ...]:
        """Where the logical element `indices` is stored. With the ranges of variables, windows find all of their
        elements in one of the tiles that UnfoldDim makes.
        """
        i, shape = list(indices), logical
        for p in self.primitives:
            near = None
            if simplify is not None and isinstance(p, UnfoldDim):
                near = p.near(shape, i, simplify)
            i, shape = near or p.forward(shape, i), p.shape(shape)
        return tuple(i)

    def keeps(self, logical: Dims, indices: Sequence[Expr], simplify: Simplifier) -> bool:
        """Is the logical element `indices` known to have a place?"""
        i, shape = list(indices), logical
        for p in self.primitives:
            if isinstance(p, CropDim | UnfoldDim | FoldDim) and not p.keeps(shape, i, simplify):
                return False
            near = p.near(shape, i, simplify) if isinstance(p, UnfoldDim) else None
            i, shape = near or p.forward(shape, i), p.shape(shape)
        return True

    @property
    def copies(self) -> bool:
        """May an element have several places?"""
        return any(isinstance(p, UnfoldDim) for p in self.primitives)

    @property
    def merges(self) -> bool:
        """May several elements have one place?"""
        return any(isinstance(p, FoldDim) for p in self.primitives)

    @property
    def is_one_to_one(self) -> bool:
        """Has every element one place of its own?"""
        return not any(isinstance(p, CropDim | UnfoldDim | FoldDim) for p in self.primitives)

    def inverse(self, logical: Dims, indices: Sequence[Expr]) -> tuple[tuple[Expr, ...], Expr]:
        """Which logical element is stored at `indices`, and the condition that there is one."""
        i, conditions = list(indices), list[Expr]()
        for p, shape in zip(reversed(self.primitives), reversed(self.shapes(logical)[:-1]), strict=True):
            i = p.inverse(shape, i)
            conditions.append(p.inside(shape, i))
        return tuple(i), logical_and(*reversed(conditions))

    def array(self, a: LaidOutArray) -> LaidOutArray:
        """The physical array, contiguous, with zeros where there is no logical element."""
        for p in self.primitives:
            a = p.array(a)
        return np.ascontiguousarray(a)

    def inverted(self, logical: Dims) -> "Layout":
        """The layout of the physical shape that leads back to `logical`: elements whose place (`forward`) was cut off
        are zeros then, all others are what they were.
        """
        steps = zip(reversed(self.primitives), reversed(self.shapes(logical)[:-1]), strict=True)
        return Layout(tuple([q for p, shape in steps for q in p.undone(shape)]))

    def normalised(self, logical: Dims) -> "Layout":
        """The same map without primitives that change nothing or that others undo; neighbours that can be one are."""
        kept: list[LayoutPrimitive] = []
        shapes = [logical]
        for p in self.primitives:
            kept.append(p)
            shapes.append(p.shape(shapes[-1]))
            _shorten(kept, shapes)
        return Layout(tuple(kept))

    def projected(self, logical: Dims, operand: Dims) -> "Projection | None":
        """The map that an operand takes which is broadcast to `logical` (its dimensions are the last ones, or of extent
        1), when that takes this one: dimensions in which the operand does not vary drop out. None where such a
        dimension is fused with one in which it does.
        """
        missing = len(logical) - len(operand)
        if missing < 0 or any(m not in (1, n) for m, n in zip(operand, logical[missing:], strict=True)):
            return None
        varies = [d >= missing and operand[d - missing] != 1 for d in range(len(logical))]
        if not any(varies):
            return Projection(Layout(), ())
        flat = reshape_layout(operand, tuple([n for n, v in zip(logical, varies, strict=True) if v]))
        if flat is None:  # there are no elements
            return None
        found: list[LayoutPrimitive] = list(flat.primitives)
        shape = logical
        for p in self.primitives:
            step = _projected(p, shape, varies)
            if step is None:
                return None
            own_steps, varies = step
            found.extend(own_steps)
            shape = p.shape(shape)
        dims = tuple([d for d, v in enumerate(varies) if v])
        return Projection(Layout(tuple(found)).normalised(operand), dims)


class Projection(NamedTuple):
    """The layout of an operand that is broadcast, and the dimensions of the whole that its physical ones go with."""

    layout: Layout
    dims: Dims


def reshape_layout(old: Dims, new: Dims) -> Layout | None:
    """The map between shapes whose elements come in the same order; None if there is none. Dimensions that both have
    stay.
    """
    if math.prod(old) != math.prod(new) or 0 in old or not old or not new:
        return Layout() if old == new else None
    steps: list[LayoutPrimitive] = []
    i = j = at = 0
    while i < len(old) or j < len(new):
        # The least number of dimensions of each that have as many elements.
        rows, columns = [*old[i : i + 1]], [*new[j : j + 1]]
        i, j = i + 1, j + 1
        while math.prod(rows) != math.prod(columns):
            if math.prod(rows) < math.prod(columns):
                rows.append(old[i])
                i += 1
            else:
                columns.append(new[j])
                j += 1
        if not rows:  # a new dimension of extent 1 behind all others
            steps.append(SplitDim(at - 1, 1))
            at += 1
            continue
        if not columns:  # one that is gone
            steps.append(FuseDims(at - 1, 2))
            continue
        steps.extend(() if len(rows) == 1 else (FuseDims(at, len(rows)),))
        steps.extend(SplitDim(at, n) for n in reversed(columns[1:]))
        at += len(columns)
    return Layout(tuple(steps))


def _shorten(kept: list[LayoutPrimitive], shapes: list[Dims]) -> None:
    """Take from the end what changes nothing; `shapes` are those that `kept` are applied to, and the last."""
    while kept:
        if _is_identity(kept[-1]):
            kept.pop()
            shapes.pop()
            continue
        merged = _merged(kept[-2], kept[-1]) if len(kept) > 1 else None
        if merged is not None:
            kept[-2:] = [merged]
            del shapes[-2]
            continue
        start = next((n for n in reversed(range(len(kept))) if _is_undone(kept[n:], shapes[n])), None)
        if start is None:
            return
        del kept[start:], shapes[start + 1 :]


def _is_identity(p: LayoutPrimitive) -> bool:
    match p:
        case ReorderDims():
            return p.order == tuple(range(len(p.order)))
        case FuseDims():
            return p.count == 1
        case PadDim() | CropDim():
            return p.before == p.after == 0
        case SplitDim() | UnfoldDim() | FoldDim():
            return False


def _is_undone(steps: Sequence[LayoutPrimitive], shape: Dims) -> bool:
    """Is the first of the steps undone by the others? What loses elements is not."""
    first = steps[0]
    loses = isinstance(first, CropDim | FoldDim) or (isinstance(first, UnfoldDim) and first.has_gaps)
    return not loses and first.undone(shape) == tuple(steps[1:])


def _merged(p: LayoutPrimitive, q: LayoutPrimitive) -> LayoutPrimitive | None:
    """One primitive for two, if there is one."""
    match p, q:
        case ReorderDims(), ReorderDims():
            return ReorderDims(tuple([p.order[d] for d in q.order]))
        case (PadDim(), PadDim()) | (CropDim(), CropDim()) if p.dim == q.dim:
            return type(p)(p.dim, p.before + q.before, p.after + q.after)
        case PadDim(), CropDim() if p.dim == q.dim and q.before <= p.before and q.after <= p.after:
            return PadDim(p.dim, p.before - q.before, p.after - q.after)
        case FuseDims(), FuseDims() if p.dim == q.dim:
            return FuseDims(p.dim, p.count + q.count - 1)
        case _:
            return None


def _projected(
    p: LayoutPrimitive, shape: Dims, varies: Sequence[bool]
) -> tuple[tuple[LayoutPrimitive, ...], list[bool]] | None:
    """What a primitive does to the dimensions in which an operand varies, and which these are then."""
    if isinstance(p, ReorderDims):
        place = {d: n for n, d in enumerate(d for d, v in enumerate(varies) if v)}
        order = tuple([place[d] for d in p.order if varies[d]])
        return ((ReorderDims(order),) if order else ()), [varies[d] for d in p.order]
    at, own = p.dim, sum(varies[: p.dim])
    match p:
        case SplitDim():
            return ((SplitDim(own, p.factor),) if varies[at] else ()), _with(varies, at, 1, [varies[at]] * 2)
        case UnfoldDim():
            steps = (UnfoldDim(own, p.tile, p.stride),) if varies[at] else ()
            return steps, _with(varies, at, 1, [varies[at]] * 2)
        case PadDim() | CropDim():
            return ((type(p)(own, p.before, p.after),) if varies[at] else ()), list(varies)
        case FoldDim():
            if varies[at] != varies[at + 1]:
                return None
            steps = (FoldDim(own, p.stride, p.extent),) if varies[at] else ()
            return steps, _with(varies, at, 2, [varies[at]])
        case FuseDims():
            parts = varies[at : at + p.count]
            count = sum(parts)
            alone = all(v or n == 1 for v, n in zip(parts, shape[at : at + p.count], strict=True))
            if count and not alone:
                return None
            return ((FuseDims(own, count),) if count else ()), _with(varies, at, p.count, [count > 0])


def _with(items: Sequence[bool], at: int, count: int, new: Sequence[bool]) -> list[bool]:
    """The items with `count` of them replaced."""
    return [*items[:at], *new, *items[at + count :]]
