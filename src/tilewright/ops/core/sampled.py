"""Tensors laid out to be sampled at places that are data, and where each place is.

What a place needs depends on no channel: one number per tap says where it is, and another its weight. With enough
channels these lie side by side, so that a tap is a row of memory; with few of them, places do, and every tap gathers.
Either way a row of zeros behind the image stands for all that is outside, so that no tap asks whether it is inside.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Buffer, Expr, cast, const, lift, loads, maximum, minimum, select
from tilewright.support.sizes import capacity, is_open, same_size
from tilewright.tir.build import FuncBuilder

_ROW = 8  # channels that are worth being side by side


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
        has_rows = capacity(channels) >= _ROW
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
