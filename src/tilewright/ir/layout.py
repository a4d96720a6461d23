"""Layouts: index maps made of primitives, applied to shapes, indices and arrays alike.

    Layout((SplitDim(1, 16), ReorderDims((0, 2, 3, 1, 4))))      NCHW -> NHWC16c blocks

A layout maps a logical shape to a physical one. Each primitive says four things: the new shape, how much of it is in
use (`sizes`), where an element goes (`forward`), and where a physical position comes from (`inverse`). `PadDim` and a
`SplitDim` that does not divide make positions without a logical element; `inside` tells them apart, and arrays are
filled with zeros there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    TRUE,
    Buffer,
    Expr,
    as_index,
)

Dims: TypeAlias = tuple[int, ...]
DimSizes: TypeAlias = "tuple[Expr | None, ...]"  # how much of each dimension is in use; None: all


@dataclass(frozen=True, slots=True)
class SplitDim:
    """Dimension `dim` of extent N becomes two: ceil(N / factor), factor."""

    dim: int
    factor: int

    def shape(self, s: Dims) -> Dims:
        return (*s[: self.dim], -(-s[self.dim] // self.factor), self.factor, *s[self.dim + 1 :])

    def sizes(self, s: Dims, used: DimSizes) -> DimSizes:
        size = used[self.dim]
        whole = None if size is None else (size + (self.factor - 1)) // self.factor
        return (*used[: self.dim], whole, None, *used[self.dim + 1 :])

    def forward(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        return [*i[: self.dim], i[self.dim] // self.factor, i[self.dim] % self.factor, *i[self.dim + 1 :]]

    def inverse(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        return [*i[: self.dim], i[self.dim] * self.factor + i[self.dim + 1], *i[self.dim + 2 :]]

    def inside(self, s: Dims, i: Sequence[Expr]) -> Expr:
        """Of the logical index `i`: does it exist?"""
        return TRUE if s[self.dim] % self.factor == 0 else i[self.dim] < s[self.dim]

    def array(self, a: NDArray[np.generic]) -> NDArray[np.generic]:
        new = self.shape(a.shape)
        extra = new[self.dim] * self.factor - a.shape[self.dim]
        if extra:
            a = np.pad(a, [(0, extra if d == self.dim else 0) for d in range(a.ndim)])
        return a.reshape(new)


@dataclass(frozen=True, slots=True)
class ReorderDims:
    """Physical dimension d is logical dimension order[d]."""

    order: tuple[int, ...]

    def shape(self, s: Dims) -> Dims:
        return tuple(s[d] for d in self.order)

    def sizes(self, s: Dims, used: DimSizes) -> DimSizes:
        return tuple(used[d] for d in self.order)

    def forward(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        return [i[d] for d in self.order]

    def inverse(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        out = list(i)
        for p, d in enumerate(self.order):
            out[d] = i[p]
        return out

    def inside(self, s: Dims, i: Sequence[Expr]) -> Expr:
        return TRUE

    def array(self, a: NDArray[np.generic]) -> NDArray[np.generic]:
        return a.transpose(self.order)


@dataclass(frozen=True, slots=True)
class FuseDims:
    """Dimensions dim … dim+count-1 become one."""

    dim: int
    count: int

    def shape(self, s: Dims) -> Dims:
        end = self.dim + self.count
        return (*s[: self.dim], math.prod(s[self.dim : end]), *s[end:])

    def sizes(self, s: Dims, used: DimSizes) -> DimSizes:
        """What is in use ends at one place only if that depends on the outermost of the dimensions."""
        end, outer = self.dim + self.count, used[self.dim]
        size = None if outer is None else outer * math.prod(s[self.dim + 1 : end])
        return (*used[: self.dim], size, *used[end:])

    def forward(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        end = self.dim + self.count
        out: Expr = as_index(0)
        for d in range(self.dim, end):
            out = out * s[d] + i[d]
        return [*i[: self.dim], out, *i[end:]]

    def inverse(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        rest, parts = i[self.dim], list[Expr]()
        for d in range(self.dim + self.count - 1, self.dim, -1):
            parts.append(rest % s[d])
            rest = rest // s[d]
        return [*i[: self.dim], rest, *reversed(parts), *i[self.dim + 1 :]]

    def inside(self, s: Dims, i: Sequence[Expr]) -> Expr:
        return TRUE

    def array(self, a: NDArray[np.generic]) -> NDArray[np.generic]:
        return a.reshape(self.shape(a.shape))


@dataclass(frozen=True, slots=True)
class PadDim:
    """`before` and `after` extra positions around dimension `dim`."""

    dim: int
    before: int
    after: int

    def shape(self, s: Dims) -> Dims:
        return (*s[: self.dim], self.before + s[self.dim] + self.after, *s[self.dim + 1 :])

    def sizes(self, s: Dims, used: DimSizes) -> DimSizes:
        """With the positions around it: whoever fills them wants them to be there."""
        size = used[self.dim]
        wide = None if size is None else size + (self.before + self.after)
        return (*used[: self.dim], wide, *used[self.dim + 1 :])

    def forward(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        return [*i[: self.dim], i[self.dim] + self.before, *i[self.dim + 1 :]]

    def inverse(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        return [*i[: self.dim], i[self.dim] - self.before, *i[self.dim + 1 :]]

    def inside(self, s: Dims, i: Sequence[Expr]) -> Expr:
        low = TRUE if self.before == 0 else as_index(0) <= i[self.dim]
        high = TRUE if self.after == 0 else i[self.dim] < s[self.dim]
        return logical_and(low, high)

    def array(self, a: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.pad(a, [(self.before, self.after) if d == self.dim else (0, 0) for d in range(a.ndim)])


LayoutPrimitive: TypeAlias = SplitDim | ReorderDims | FuseDims | PadDim


@dataclass(frozen=True, slots=True)
class Layout:
    """Primitives in the order they are applied to the logical shape."""

    primitives: tuple[LayoutPrimitive, ...] = ()

    def _shapes(self, logical: Dims) -> list[Dims]:
        shapes = [logical]
        for p in self.primitives:
            shapes.append(p.shape(shapes[-1]))
        return shapes

    def shape(self, logical: Dims) -> Dims:
        """The physical shape."""
        return self._shapes(logical)[-1]

    def buffer(self, logical: Buffer) -> Buffer:
        """The buffer that is laid out so."""
        shape, sizes = logical.shape, logical.sizes
        for p in self.primitives:
            sizes = p.sizes(shape, sizes) if sizes else ()
            shape = p.shape(shape)
        return logical.with_shape(shape, sizes)

    def forward(self, logical: Dims, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where the logical element `indices` is stored."""
        i, shape = list(indices), logical
        for p in self.primitives:
            i, shape = p.forward(shape, i), p.shape(shape)
        return tuple(i)

    def inverse(self, logical: Dims, indices: Sequence[Expr]) -> tuple[tuple[Expr, ...], Expr]:
        """Which logical element is stored at `indices`, and the condition that there is one."""
        i, conditions = list(indices), list[Expr]()
        for p, shape in zip(reversed(self.primitives), reversed(self._shapes(logical)[:-1]), strict=True):
            i = p.inverse(shape, i)
            conditions.append(p.inside(shape, i))
        return tuple(i), logical_and(*reversed(conditions))

    def array(self, a: NDArray[np.generic]) -> NDArray[np.generic]:
        """The physical array, contiguous, with zeros where there is no logical element."""
        for p in self.primitives:
            a = p.array(a)
        return np.ascontiguousarray(a)
