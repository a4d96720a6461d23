"""The primitives that layouts are made of (`ir/layout.py`): index maps of one shape to another.

    SplitDim(d, F)          x         ->  x // F, x % F
    ReorderDims(order)      x0, x1 …  ->  x[order[0]], x[order[1]] …
    FuseDims(d, n)          x, y …    ->  (x · Ny + y) …
    PadDim(d, l, r)         x         ->  x + l           l and r places more
    CropDim(d, l, r)        x         ->  x - l           without the first l and the last r elements
    UnfoldDim(d, B, S)      x         ->  t, x - t·S      tiles of B elements, one every S: U[t, b] = X[t·S + b]
    FoldDim(d, S, N)        t, b      ->  t·S + b         N elements out of such tiles

Each says the new shape, how much of it is in use (`sizes`), where an element goes (`forward`), where a place comes from
(`inverse`), which places that are computed so have an element (`inside`), what becomes of an array, what leads back
(`undone`), and what is wrong with it for a shape (`misfit`).

Split, reorder, fuse and pad give every element one place of its own. The others do not: UnfoldDim gives an element of
two tiles a place in each, `forward` tells one of them; CropDim has none for elements that are cut off, nor UnfoldDim
for those between tiles if they do not touch (S > B). `keeps` tells whether an element is known to have a place.
FoldDim has one place for all copies of an element, which must be equal.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import TRUE, Expr, as_index, minimum
from tilewright.ir.simplify import Linear, Simplifier

Dims: TypeAlias = tuple[int, ...]
DimSizes: TypeAlias = "tuple[Expr | None, ...]"  # how much of each dimension is in use; None: all
LaidOutArray: TypeAlias = NDArray[np.generic]

# Sums of more terms are not taken apart to find the tile of a window: all ways to do so are tried, two to this power.
_MAX_TERMS = 6


def _no_dim(dim: int, shape: Dims) -> str | None:
    return None if 0 <= dim < len(shape) else f"there is no dimension {dim}"


@dataclass(frozen=True, slots=True)
class SplitDim:
    """Dimension `dim` of extent N becomes two: ceil(N / factor), factor."""

    dim: int
    factor: int

    def misfit(self, s: Dims) -> str | None:
        return "the factor must be positive" if self.factor < 1 else _no_dim(self.dim, s)

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

    def array(self, a: LaidOutArray) -> LaidOutArray:
        new = self.shape(a.shape)
        extra = new[self.dim] * self.factor - a.shape[self.dim]
        if extra:
            a = np.pad(a, [(0, extra if d == self.dim else 0) for d in range(a.ndim)])
        return a.reshape(new)

    def undone(self, s: Dims) -> "tuple[LayoutPrimitive, ...]":
        extra = -s[self.dim] % self.factor
        return (FuseDims(self.dim, 2), *((CropDim(self.dim, 0, extra),) if extra else ()))


@dataclass(frozen=True, slots=True)
class ReorderDims:
    """Physical dimension d is logical dimension order[d]."""

    order: tuple[int, ...]

    def misfit(self, s: Dims) -> str | None:
        fits = sorted(self.order) == list(range(len(s)))
        return None if fits else "the order is no permutation of its dimensions"

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

    def array(self, a: LaidOutArray) -> LaidOutArray:
        return a.transpose(self.order)

    def undone(self, s: Dims) -> "tuple[LayoutPrimitive, ...]":
        return (ReorderDims(tuple([self.order.index(d) for d in range(len(self.order))])),)


@dataclass(frozen=True, slots=True)
class FuseDims:
    """Dimensions dim … dim+count-1 become one."""

    dim: int
    count: int

    def misfit(self, s: Dims) -> str | None:
        fits = self.dim >= 0 and self.count >= 1 and self.dim + self.count <= len(s)
        return None if fits else "it reaches over the end"

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

    def array(self, a: LaidOutArray) -> LaidOutArray:
        return a.reshape(self.shape(a.shape))

    def undone(self, s: Dims) -> "tuple[LayoutPrimitive, ...]":
        inner = s[self.dim + 1 : self.dim + self.count]
        return tuple([SplitDim(self.dim, n) for n in reversed(inner)])


@dataclass(frozen=True, slots=True)
class PadDim:
    """`before` and `after` extra positions around dimension `dim`."""

    dim: int
    before: int
    after: int

    def misfit(self, s: Dims) -> str | None:
        if self.before < 0 or self.after < 0:
            return "padding must not be negative"
        return _no_dim(self.dim, s)

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

    def array(self, a: LaidOutArray) -> LaidOutArray:
        return np.pad(a, [(self.before, self.after) if d == self.dim else (0, 0) for d in range(a.ndim)])

    def undone(self, s: Dims) -> "tuple[LayoutPrimitive, ...]":
        return (CropDim(self.dim, self.before, self.after),)


@dataclass(frozen=True, slots=True)
class CropDim:
    """Dimension `dim` without its first `before` and its last `after` elements, which have no place."""

    dim: int
    before: int
    after: int

    def misfit(self, s: Dims) -> str | None:
        if self.before < 0 or self.after < 0:
            return "what is cut off must not be negative"
        if _no_dim(self.dim, s) is None and self.before + self.after >= s[self.dim]:
            return "nothing would be left"
        return _no_dim(self.dim, s)

    def shape(self, s: Dims) -> Dims:
        return (*s[: self.dim], s[self.dim] - self.before - self.after, *s[self.dim + 1 :])

    def sizes(self, s: Dims, used: DimSizes) -> DimSizes:
        """As of what was padded: the positions around it are where the dimension ends when the program runs."""
        size = used[self.dim]
        narrow = None if size is None else size - (self.before + self.after)
        return (*used[: self.dim], narrow, *used[self.dim + 1 :])

    def forward(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        return [*i[: self.dim], i[self.dim] - self.before, *i[self.dim + 1 :]]

    def inverse(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        return [*i[: self.dim], i[self.dim] + self.before, *i[self.dim + 1 :]]

    def inside(self, s: Dims, i: Sequence[Expr]) -> Expr:
        return TRUE

    def array(self, a: LaidOutArray) -> LaidOutArray:
        kept = slice(self.before, a.shape[self.dim] - self.after)
        return a[(*[slice(None)] * self.dim, kept)]

    def undone(self, s: Dims) -> "tuple[LayoutPrimitive, ...]":
        """The shape comes back; what was cut off does not."""
        return (PadDim(self.dim, self.before, self.after),)

    def keeps(self, s: Dims, i: Sequence[Expr], simplify: Simplifier) -> bool:
        """Is the element known to have a place?"""
        lo, hi = simplify.bounds(i[self.dim])
        return lo >= self.before and hi < s[self.dim] - self.after


@dataclass(frozen=True, slots=True)
class UnfoldDim:
    """Dimension `dim` of extent N becomes tiles of `tile` elements, which start every `stride` elements; as many as
    all N need. `WindowTiles` has those that windows need.
    """

    dim: int
    tile: int
    stride: int

    def misfit(self, s: Dims) -> str | None:
        if self.tile < 1 or self.stride < 1:
            return "tile and stride must be positive"
        return _no_dim(self.dim, s)

    @property
    def has_gaps(self) -> bool:
        """Are there elements between tiles?"""
        return self.stride > self.tile

    def tiles(self, extent: int) -> int:
        more = max(-(-(extent - self.tile) // self.stride), 0)
        return min(
            more + 1, max(-(-extent // self.stride), 1)
        )  # the latter where there are gaps between tiles

    def shape(self, s: Dims) -> Dims:
        return (*s[: self.dim], self.tiles(s[self.dim]), self.tile, *s[self.dim + 1 :])

    def sizes(self, s: Dims, used: DimSizes) -> DimSizes:
        """No element of an open dimension has its place after the tile that would start behind it."""
        size, tiles = used[self.dim], self.tiles(s[self.dim])
        count = None if size is None else minimum((size + (self.stride - 1)) // self.stride, tiles)
        return (*used[: self.dim], count, None, *used[self.dim + 1 :])

    def forward(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        x, last = i[self.dim], self.tiles(s[self.dim]) - 1
        if (s[self.dim] - 1) // self.stride <= last:
            place = [x // self.stride, x % self.stride]
        else:  # the last tile has what remains
            t = minimum(x // self.stride, last)
            place = [t, x - t * self.stride]
        return [*i[: self.dim], *place, *i[self.dim + 1 :]]

    def near(self, s: Dims, i: Sequence[Expr], simplify: Simplifier) -> list[Expr] | None:
        """Where all elements of a window are in the same tile, that one: for the index V·o + d·r and S = V·T the place
        (o // T, V·(o % T) + d·r). None if no part of the sum tells the tile.
        """
        tiles = self.tiles(s[self.dim])
        for first, rest in _two_parts(simplify.linear(i[self.dim])):
            whole = simplify.expr(first)
            t = simplify(whole // self.stride)
            b = simplify(whole % self.stride + simplify.expr(rest))
            at, into = simplify.bounds(t), simplify.bounds(b)
            if at.lo >= 0 and at.hi < tiles and into.lo >= 0 and into.hi < self.tile:
                return [*i[: self.dim], t, b, *i[self.dim + 1 :]]
        return None

    def inverse(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        return [*i[: self.dim], i[self.dim] * self.stride + i[self.dim + 1], *i[self.dim + 2 :]]

    def inside(self, s: Dims, i: Sequence[Expr]) -> Expr:
        return i[self.dim] < s[self.dim] if self._reach(s[self.dim]) > s[self.dim] else TRUE

    def array(self, a: LaidOutArray) -> LaidOutArray:
        extent = a.shape[self.dim]
        extra = max(self._reach(extent) - extent, 0)
        if extra:
            a = np.pad(a, [(0, extra if d == self.dim else 0) for d in range(a.ndim)])
        return a.take(_tile_elements(self.tiles(extent), self.tile, self.stride), axis=self.dim)

    def undone(self, s: Dims) -> "tuple[LayoutPrimitive, ...]":
        return (FoldDim(self.dim, self.stride, s[self.dim]),)

    def keeps(self, s: Dims, i: Sequence[Expr], simplify: Simplifier) -> bool:
        return not self.has_gaps or self.near(s, i, simplify) is not None

    def _reach(self, extent: int) -> int:
        """Where the last tile ends."""
        return (self.tiles(extent) - 1) * self.stride + self.tile


@dataclass(frozen=True, slots=True)
class FoldDim:
    """Dimensions `dim` and `dim` + 1, tiles that start every `stride` elements, become the `extent` elements that
    they are of. Where tiles overlap, the elements must be equal.
    """

    dim: int
    stride: int
    extent: int

    def misfit(self, s: Dims) -> str | None:
        if self.stride < 1 or self.extent < 1:
            return "stride and extent must be positive"
        return _no_dim(self.dim, s) or _no_dim(self.dim + 1, s)

    def shape(self, s: Dims) -> Dims:
        return (*s[: self.dim], self.extent, *s[self.dim + 2 :])

    def sizes(self, s: Dims, used: DimSizes) -> DimSizes:
        tiles = used[self.dim]
        size = None if tiles is None else minimum((tiles - 1) * self.stride + s[self.dim + 1], self.extent)
        return (*used[: self.dim], size, *used[self.dim + 2 :])

    def forward(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        return [*i[: self.dim], i[self.dim] * self.stride + i[self.dim + 1], *i[self.dim + 2 :]]

    def inverse(self, s: Dims, i: Sequence[Expr]) -> list[Expr]:
        x = i[self.dim]
        t = minimum(x // self.stride, s[self.dim] - 1)
        return [*i[: self.dim], t, x - t * self.stride, *i[self.dim + 1 :]]

    def inside(self, s: Dims, i: Sequence[Expr]) -> Expr:
        tiles, tile = s[self.dim : self.dim + 2]
        all_covered = self.stride <= tile and self.extent <= (tiles - 1) * self.stride + tile
        return TRUE if all_covered else i[self.dim + 1] < tile

    def array(self, a: LaidOutArray) -> LaidOutArray:
        tiles, tile = a.shape[self.dim : self.dim + 2]
        x = np.arange(self.extent)
        t = np.minimum(x // self.stride, tiles - 1)
        b = x - t * self.stride
        flat = a.reshape((*a.shape[: self.dim], tiles * tile, *a.shape[self.dim + 2 :]))
        # The place after the last is where elements come from that are in no tile.
        flat = np.pad(flat, [(0, 1 if d == self.dim else 0) for d in range(flat.ndim)])
        place: NDArray[np.intp] = np.asarray(t * tile + b, np.intp)
        place[b >= tile] = tiles * tile
        return flat.take(place, axis=self.dim)

    def undone(self, s: Dims) -> "tuple[LayoutPrimitive, ...]":
        unfold = UnfoldDim(self.dim, s[self.dim + 1], self.stride)
        more = s[self.dim] - unfold.tiles(self.extent)
        if more == 0:
            return (unfold,)
        return (unfold, PadDim(self.dim, 0, more) if more > 0 else CropDim(self.dim, 0, -more))

    def keeps(self, s: Dims, i: Sequence[Expr], simplify: Simplifier) -> bool:
        return simplify.bounds(i[self.dim] * self.stride + i[self.dim + 1]).hi < self.extent

    def agrees(self, a: LaidOutArray) -> bool:
        """Are all copies of an element equal, to the bit?"""
        tiles, tile = a.shape[self.dim : self.dim + 2]
        x = _tile_elements(tiles, tile, self.stride)
        copies = self.array(a).take(np.minimum(x, self.extent - 1), axis=self.dim)
        bits = f"u{a.dtype.itemsize}"
        same = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(copies).view(bits)
        cut_off = (x >= self.extent).reshape((tiles, tile, *[1] * (a.ndim - self.dim - 2)))
        return bool(np.all(same | cut_off))


LayoutPrimitive: TypeAlias = SplitDim | ReorderDims | FuseDims | PadDim | CropDim | UnfoldDim | FoldDim


def _tile_elements(tiles: int, tile: int, stride: int) -> NDArray[np.intp]:
    """Which element each place of the tiles has."""
    return (np.arange(tiles) * stride)[:, None] + np.arange(tile)


def _two_parts(form: Linear) -> Iterator[tuple[Linear, Linear]]:
    """All ways to take a sum apart, those with the fewest terms in the first part first."""
    if len(form.terms) > _MAX_TERMS:
        return
    for count in range(len(form.terms) + 1):
        for chosen in combinations(form.terms, count):
            others = tuple([t for t in form.terms if t not in chosen])
            yield Linear(0, chosen), Linear(form.const, others)
            if form.const and chosen:
                yield Linear(form.const, chosen), Linear(0, others)
