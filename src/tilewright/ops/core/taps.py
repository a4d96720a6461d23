"""Interpolation at places that are data: which elements of an axis a place reads, and their weights.

A place is a float, in elements. Its taps are the element nearest to it, the two around it, or the four around it. Per
axis there is a block of their indices and one of their weights; what samples a tensor is then a weighted sum over the
taps of all axes. A tap outside the axis has index -1 and stands for a zero, or is brought back in; either way no model
can read memory that is not its own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from itertools import product

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import (
    Buffer,
    Expr,
    Fma,
    UnaryOp,
    cast,
    const,
    equal,
    lift,
    maximum,
    minimum,
    select,
    unary,
)
from tilewright.support.arrays import Array
from tilewright.support.sizes import capacity, is_open, same_size
from tilewright.tir.build import FuncBuilder

_WRITTEN_OUT = 16  # terms of a sum that is an expression, not a reduction
_CUBIC = -0.75  # the coefficient of Keys' kernel


@unique
class ResamplingKernel(Enum):
    """The value is how many elements it reads along an axis."""

    NEAREST = 1  # half to even
    LINEAR = 2
    CUBIC = 4


@unique
class Edge(Enum):
    """What stands for elements beyond the ends of an axis."""

    ZEROS = "zeros"
    BORDER = "border"  # the last element
    REFLECT_CENTRES = "centres"  # mirrored at the centre of the last element
    REFLECT_SIDES = "sides"  # mirrored at the outer side of the last element


@dataclass(frozen=True, slots=True)
class Taps:
    """The taps of places on one axis: `at[i…, t]` and `weight[i…, t]`, which a nearest neighbour does not have."""

    at: Buffer
    weight: Buffer | None

    @staticmethod
    def of(
        b: FuncBuilder,
        name: str,
        shape: Sequence[int],
        place: Callable[..., Expr],
        extent: int,
        kernel: ResamplingKernel,
        edge: Edge,
    ) -> "Taps":
        """The blocks `<name>_place`, `<name>_at` and `<name>_weight`."""
        rank = len(shape)
        places = bounded_places(b, name, shape, place, extent, kernel, edge)

        def at(*i: Expr) -> Expr:
            return tap_index(places[i[:rank]], i[rank], extent, kernel, edge)

        def weight(*i: Expr) -> Expr:
            return tap_weight(places[i[:rank]], i[rank], kernel)

        full, axes = (*shape, kernel.value), [*(f"i{d}" for d in range(rank)), "t"]
        indices = b.compute(f"{name}_at", full, at, axes=axes)
        if kernel is ResamplingKernel.NEAREST:
            return Taps(indices, None)
        return Taps(indices, b.compute(f"{name}_weight", full, weight, axes=axes))


def bounded_places(
    b: FuncBuilder,
    name: str,
    shape: Sequence[int],
    place: Callable[..., Expr],
    extent: int,
    kernel: ResamplingKernel,
    edge: Edge,
) -> Buffer:
    """The block `<name>_place`: places that can be converted to indices."""
    # Far away all is alike. Without this the conversion to an index could leave its range.
    limit = float(capacity(extent) + kernel.value)

    def bounded(*i: Expr) -> Expr:
        value = place(*i)
        if _is_folded(kernel, edge):
            value = _folded(value, extent, edge)
        value = unary(UnaryOp.ROUND, value) if kernel is ResamplingKernel.NEAREST else value
        return minimum(maximum(value, -limit), limit)

    return b.compute(f"{name}_place", shape, bounded, axes=[f"i{d}" for d in range(len(shape))])


def tap_index(
    place: Expr, t: Expr, extent: int, kernel: ResamplingKernel, edge: Edge, dtype: DType = INDEX
) -> Expr:
    """Which element tap `t` of a bounded place is; -1 if a zero stands for it."""
    return brought_in(first_tap(place, extent, kernel, dtype) + cast(dtype, t), extent, edge)


def first_tap(place: Expr, extent: int, kernel: ResamplingKernel, dtype: DType = INDEX) -> Expr:
    """Which element the first tap of a bounded place would be, if the axis had no ends."""
    low = _clamped(cast(dtype, unary(UnaryOp.FLOOR, place)), capacity(extent) + kernel.value)
    return low + (1 - max(kernel.value // 2, 1))


def tap_weight(place: Expr, t: Expr, kernel: ResamplingKernel) -> Expr:
    share = place - unary(UnaryOp.FLOOR, place)
    if kernel is ResamplingKernel.LINEAR:
        return select(equal(t, 0), 1 - share, share)
    return _keys(unary(UnaryOp.ABS, cast(share.dtype, t) - 1 - share))


def read(x: Buffer, before: Sequence[Expr], at: Sequence[Expr]) -> Expr:
    """x[before…, at…], or zero if one of the taps `at` is outside."""
    inside = logical_and(*(const(0) <= a for a in at))
    return select(inside, x[(*before, *(maximum(a, 0) for a in at))], const(0, x.dtype))


def weighted_sum(
    b: FuncBuilder,
    name: str,
    shape: Sequence[int],
    taps: Sequence[int],
    term: Callable[..., tuple[Expr, Expr]],
    axes: Sequence[str],
) -> Callable[..., Expr]:
    """The sum of value · weight over all taps, as a function of the place: written out if they are few, so that it
    fills vectors along any axis, else a block `name`."""

    def written_out(*i: Expr) -> Expr:
        total: Expr | None = None
        for value, weight in (term(*i, *map(const, t)) for t in product(*map(range, taps))):
            total = value * weight if total is None else Fma(value, weight, total)
        assert total is not None
        return total

    if math.prod(taps) <= _WRITTEN_OUT:
        return written_out
    total = b.reduce(name, shape, taps, term, "sum", axes=[*axes, *(f"t{d}" for d in range(len(taps)))])
    return lambda *i: total[i]


def _clamped(i: Expr, limit: int) -> Expr:
    """A place that is no number may have become any index."""
    return minimum(maximum(i, -limit), limit)


def _keys(x: Expr) -> Expr:
    a = _CUBIC
    near = (x * (a + 2) - (a + 3)) * x * x + 1
    far = ((x * a - 5 * a) * x + 8 * a) * x - 4 * a
    return select(x <= 1, near, far)


def _keys_values(x: Array) -> Array:
    a = _CUBIC
    return np.where(x <= 1, ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a)


def _mirrors(extent: int, edge: Edge) -> tuple[float, int]:
    """Where the first mirror is, and how far from it the second."""
    return (0.0, extent - 1) if edge is Edge.REFLECT_CENTRES else (-0.5, extent)


def _is_folded(kernel: ResamplingKernel, edge: Edge) -> bool:
    """Is a place itself brought into the axis? A cubic goes on beyond the border, where all elements are alike."""
    return edge is not Edge.ZEROS and (kernel, edge) != (ResamplingKernel.CUBIC, Edge.BORDER)


def _folded(place: Expr, extent: int, edge: Edge) -> Expr:
    if edge is Edge.BORDER:
        return minimum(maximum(place, 0.0), as_float(extent - 1, place.dtype))
    first, length = _mirrors(extent, edge)
    if same_size(length, 0):
        return const(0, place.dtype)
    turn, both = place - first, as_float(2 * length, place.dtype)
    whole = maximum(both, 1.0) if isinstance(both, Expr) else both  # the two may be at the same place
    turn = turn - unary(UnaryOp.FLOOR, turn / whole) * whole
    return minimum(turn, both - turn) + first


def as_float(n: int, dtype: DType) -> Expr | float:
    """A number of elements among floats: Python's own arithmetic would take an open one for the largest."""
    return lift(n, dtype) if is_open((n,)) else float(n)


def brought_in(at: Expr, extent: int, edge: Edge) -> Expr:
    """The element of the axis that stands for `at`; -1 for a zero."""
    match edge:
        case Edge.ZEROS:
            return select(logical_and(const(0, at.dtype) <= at, at < extent), at, const(-1, at.dtype))
        case Edge.BORDER:
            return minimum(maximum(at, 0), extent - 1)
        case Edge.REFLECT_CENTRES if is_open((extent,)):
            both = lift(2 * (extent - 1), at.dtype)
            turn = at % maximum(both, 1)
            return minimum(turn, both - turn)
        case Edge.REFLECT_CENTRES if extent > 1:
            turn = at % (2 * (extent - 1))
            return minimum(turn, const(2 * (extent - 1), at.dtype) - turn)
        case Edge.REFLECT_CENTRES:
            return const(0, at.dtype)
        case Edge.REFLECT_SIDES:
            turn = at % (2 * extent)
            return minimum(turn, lift(2 * extent - 1, at.dtype) - turn)


# ---------------------------------------------------------------------------------------------------- for references


def tap_values(place: Array, extent: int, kernel: ResamplingKernel, edge: Edge) -> tuple[Array, Array]:
    """Indices and weights, with an axis for the taps at the end; -1 where a zero stands."""
    limit = float(extent + kernel.value)
    if edge is Edge.BORDER and _is_folded(kernel, edge):
        place = np.clip(place, 0, extent - 1)
    elif _is_folded(kernel, edge):
        first, length = _mirrors(extent, edge)
        with np.errstate(invalid="ignore"):
            turn = np.mod(place - first, 2 * length) if length else np.zeros(place.shape)
        place = np.minimum(turn, 2 * length - turn) + first
    place = np.clip(np.rint(place) if kernel is ResamplingKernel.NEAREST else place, -limit, limit)
    low, t = np.floor(place), np.arange(kernel.value)
    share = (place - low)[..., None]
    with np.errstate(invalid="ignore"):
        at = low.astype(np.int64)[..., None] + t + (1 - max(kernel.value // 2, 1))
    match kernel:
        case ResamplingKernel.NEAREST:
            weight = np.ones(share.shape)
        case ResamplingKernel.LINEAR:
            weight = np.where(t == 0, 1 - share, share)
        case ResamplingKernel.CUBIC:
            weight = _keys_values(abs(t - 1 - share))
    match edge:
        case Edge.ZEROS:
            at = np.where((at >= 0) & (at < extent), at, -1)
        case Edge.BORDER:
            at = np.clip(at, 0, extent - 1)
        case Edge.REFLECT_CENTRES:
            turn = np.mod(at, max(2 * (extent - 1), 1))
            at = np.minimum(turn, max(2 * (extent - 1), 1) - turn) if extent > 1 else turn
        case Edge.REFLECT_SIDES:
            turn = np.mod(at, 2 * extent)
            at = np.minimum(turn, 2 * extent - 1 - turn)
    return at, weight


def sampled(x: Array, taps: Sequence[tuple[Array, Array]]) -> Array:
    """The weighted sum over the taps of all axes of x[c, axes…], one at a time: [c, places…].

    All index arrays broadcast against each other, but for their last axis.
    """
    total: Array | float = 0.0
    for combination in product(*(range(at.shape[-1]) for at, _ in taps)):
        at = [a[..., t] for (a, _), t in zip(taps, combination, strict=True)]
        weight: Array | float = 1.0
        inside: Array | bool = True
        for (a, w), t in zip(taps, combination, strict=True):
            weight, inside = weight * w[..., t], inside & (a[..., t] >= 0)
        total = total + np.where(inside, x[(slice(None), *(np.maximum(a, 0) for a in at))], 0) * weight
    return np.asarray(total)
