"""Tensors laid out to be sampled at places that are data, and where each place is.

What a place needs depends on no channel: one number per tap says where it is, and another its weight. With enough
channels these lie side by side, so that a tap is a row of memory; with few of them, places do, and every tap gathers.
Either way a row of zeros behind the image stands for all that is outside, so that no tap asks whether it is inside.
With few channels and several taps, a frame around the image is better still: one number says where all taps are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Buffer, Expr, cast, const, lift, loads, maximum, minimum, select
from tilewright.ops.core.taps import Edge, brought_in
from tilewright.support.sizes import capacity, is_open, same_size
from tilewright.tir.build import FuncBuilder

_ROW = 8  # channels that are worth being side by side


def is_row(channels: int) -> bool:
    return capacity(channels) >= _ROW


@dataclass(frozen=True, slots=True)
class SampledImage:
    """x[n, c, axes…] as it is read: `buffer` is [n, axes…, c], or [n, c, axes…] if there are few channels. With zeros
    around it, the first of `axes` is one longer, and there they are. Places count elements as they lie in memory: where
    axes are open, by their capacities."""

    buffer: Buffer
    axes: tuple[int, ...]  # of the image itself
    has_rows: bool

    @staticmethod
    def of(b: FuncBuilder, x: Buffer, name: str, *, zeros: bool) -> "SampledImage":
        n, channels, first, *rest = x.shape
        has_rows = is_row(channels)
        if not has_rows and not zeros:
            return SampledImage(x, x.shape[2:], has_rows)

        def element(i: Expr, c: Expr, h: Expr, *more: Expr) -> Expr:
            if not zeros:
                return x[(i, c, h, *more)]
            return select(h < first, x[(i, c, minimum(h, first - 1), *more)], const(0, x.dtype))

        axes, names = (first + zeros, *rest), [f"h{d}" for d in range(len(rest) + 1)]

        def row(i: Expr, *at: Expr) -> Expr:
            return element(i, at[-1], *at[:-1])

        if has_rows:
            made = b.compute(name, (n, *axes, channels), row, axes=["n", *names, "c"])
        else:
            made = b.compute(name, (n, channels, *axes), element, axes=["n", "c", *names])
        return SampledImage(made, x.shape[2:], has_rows)

    @property
    def index_type(self) -> DType:
        """Of places: vectors of them are twice as long in 32 bits."""
        return DType.I32 if math.prod(map(capacity, self.buffer.shape)) < 1 << 31 else INDEX

    @property
    def _first(self) -> int:
        """The first axis as it lies in memory."""
        return self.buffer.shape[1 if self.has_rows else 2]

    def place(self, at: Sequence[Expr]) -> Expr:
        """The element of an image that `at` is, counted from the first; the zeros, if one of them is negative."""
        flat: Expr = const(0, self.index_type)
        for a, extent in zip(at, self.axes, strict=True):
            flat = flat * capacity(extent) + cast(self.index_type, a)
        if same_size(self._first, self.axes[0]):
            return flat
        inside = logical_and(*(const(0, a.dtype) <= a for a in at))
        first, *rest = self.axes
        return select(inside, flat, lift(first * math.prod(map(capacity, rest)), self.index_type))

    def read(self, n: Expr, c: Expr, place: Expr) -> Expr:
        rest, indices = cast(INDEX, place), list[Expr]()
        if is_open((*self.axes, *(n for e in loads(place) for n in e.buffer.shape))):
            # Beyond the sizes in use a place may be anything, but has to be one.
            rest = minimum(
                maximum(rest, 0), capacity(self._first) * math.prod(map(capacity, self.axes[1:])) - 1
            )
        for extent in reversed(self.axes[1:]):
            indices.insert(0, rest % capacity(extent))
            rest = rest // capacity(extent)
        return self.buffer[(n, rest, *indices, c) if self.has_rows else (n, c, rest, *indices)]


@dataclass(frozen=True, slots=True)
class FramedImage:
    """x[n, c, axes…] in a frame of what stands for elements outside, as wide as the `taps` that a kernel reads along an
    axis: all taps of a place are at fixed distances from its first one, so that a place is one index."""

    buffer: Buffer
    axes: tuple[int, ...]  # of the image itself
    taps: int

    @staticmethod
    def suits(x: Buffer, places: Buffer) -> bool:
        """Are indices, one for each element read, what costs? And are axes fixed, which distances hang on?"""
        return not is_row(x.shape[1]) and not is_open((*x.shape, *places.shape))

    @staticmethod
    def of(b: FuncBuilder, x: Buffer, name: str, taps: int, edge: Edge) -> "FramedImage":
        axes = x.shape[2:]

        def element(i: Expr, c: Expr, *at: Expr) -> Expr:
            own = [(a - taps, n) for a, n in zip(at, axes, strict=True)]
            if edge is not Edge.ZEROS:
                own = [(brought_in(a, n, edge), n) for a, n in own]
            value = x[(i, c, *(minimum(maximum(a, 0), n - 1) for a, n in own))]
            if edge is not Edge.ZEROS:
                return value
            inside = logical_and(*(test for a, n in own for test in (const(0) <= a, a < n)))
            return select(inside, value, const(0, x.dtype))

        names = ["n", "c", *(f"h{d}" for d in range(len(axes)))]
        shape = (*x.shape[:2], *(n + 2 * taps for n in axes))
        return FramedImage(b.compute(name, shape, element, axes=names), axes, taps)

    @property
    def index_type(self) -> DType:
        return DType.I32 if math.prod(self.buffer.shape) < 1 << 31 else INDEX

    def place(self, first: Sequence[Expr]) -> Expr:
        """The element of a framed image, counted from its first, where `first` are a place's first taps in the image
        itself. Beyond the frame all is as in it: zeros, or the last element; mirrored places do not leave it."""
        flat: Expr = const(0, self.index_type)
        for a, n, framed in zip(first, self.axes, self.buffer.shape[2:], strict=True):
            flat = flat * framed + minimum(maximum(a, -self.taps), n) + self.taps
        return flat

    def read(self, n: Expr, c: Expr, place: Expr, tap: Sequence[int]) -> Expr:
        distance, indices = 0, list[Expr]()
        for t, framed in zip(tap, self.buffer.shape[2:], strict=True):
            distance = distance * framed + t
        rest = cast(INDEX, place) + distance
        for framed in reversed(self.buffer.shape[3:]):
            indices.insert(0, rest % framed)
            rest = rest // framed
        return self.buffer[(n, c, rest, *indices)]


def sampled_output(
    b: FuncBuilder,
    image: SampledImage,
    name: str,
    shape: Sequence[int],
    element: Callable[[Expr, Expr, Sequence[Expr]], Expr],
    dtype: DType,
) -> Buffer:
    """out[n, c, places…] = element(n, c, places), as `dtype`: with rows, made in their order and then transposed."""
    n, c, *places = shape
    names = [f"h{d}" for d in range(len(places))]
    axes = ["n", "c", *names]

    def whole(i: Expr, k: Expr, *p: Expr) -> Expr:
        return cast(dtype, element(i, k, p))

    def row(i: Expr, *at: Expr) -> Expr:
        return whole(i, at[-1], *at[:-1])

    if not image.has_rows:
        return b.compute(name, shape, whole, axes=axes)
    rows = b.compute(f"{name}_rows", (n, *places, c), row, axes=["n", *names, "c"])

    def transposed(i: Expr, k: Expr, *p: Expr) -> Expr:
        return rows[(i, *p, k)]

    return b.compute(name, shape, transposed, axes=axes)
