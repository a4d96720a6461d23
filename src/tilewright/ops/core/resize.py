"""Resize: sampling of a tensor at evenly spaced places.

A nearest or bilinear resize is one block. Kernels that reach further (cubic, or stretched against aliasing) go axis by
axis: a block of weights, which depends on no data and is computed at compile time, and a weighted sum along the axis.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self, TypeVar

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Buffer,
    Expr,
    Fma,
    UnaryOp,
    as_index,
    cast,
    const,
    maximum,
    minimum,
    select,
    unary,
)
from tilewright.ops.axes import FLOATS, accumulator
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.sampling import AxisSampling, regions, sampling, targets
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import SizeError, capacity, is_at_most, is_open, size_of
from tilewright.tir.build import FuncBuilder

_ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
_POLICIES = ("stretch", "not_larger", "not_smaller")
_Place = TypeVar("_Place", Expr, int)
_WRITTEN_OUT = (
    32  # up to this many terms are an expression, which fills vectors along any axis; more are a reduction
)


@dataclass(frozen=True, slots=True)
class Resize(Op):
    """Each output element is the input element nearest to its place (`rounding` says which), or, without `rounding`,
    interpolated: linearly, or by Keys' cubic with the coefficient `cubic`.

    Elements outside the input are those of its edge; in a kernel of several of them, they do not count at all if
    `inside_only`. Where a place itself is outside, the result is `fill`, if there is one.
    """

    onnx = ("Resize", "Upsample")
    kind = Kind.REDUCTION
    axes: tuple[AxisSampling, ...]
    rounding: str | None = None
    cubic: float | None = None
    inside_only: bool = False
    fill: float | None = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x = node.input(0)
        mode = node.text("mode", "nearest")
        old = node.op_type == "Upsample" or node.opset < 11
        if mode not in ("nearest", "linear", "bilinear", "cubic") or (old and mode == "cubic"):
            raise UserError(f"{node.op_type}: mode '{mode}' is not supported")
        convention = "asymmetric" if old else node.text("coordinate_transformation_mode", "half_pixel")
        rounding = "floor" if old else node.text("nearest_mode", "round_prefer_floor")
        if rounding not in _ROUNDINGS:
            raise UserError(f"{node.op_type}: unknown nearest_mode '{rounding}'")
        antialias = bool(node.integer("antialias", 0))
        if antialias and mode == "nearest":
            raise UserError("Resize: antialias needs mode linear or cubic")
        crops = convention == "tf_crop_and_resize"
        samplings = [AxisSampling(n) for n in x.shape]
        sizes = list(targets(node, x))
        crop = regions(node, len(sizes)) if crops else [(Fraction(0), Fraction(1))] * len(sizes)
        for (d, count, ratio), region in zip(sizes, crop, strict=True):
            if antialias and ratio is None:
                raise SizeError(f"Resize by ({x.shape[d]}) / ({count}) against aliasing")
            stretch = float(max(ratio, 1)) if antialias and ratio is not None else 1.0
            samplings[d] = sampling(convention, x.shape[d], count, ratio, region, stretch)
        return cls(
            tuple(samplings),
            rounding if mode == "nearest" else None,
            node.real("cubic_coeff_a", -0.75) if mode == "cubic" else None,
            bool(node.integer("exclude_outside", 0)),
            node.real("extrapolation_value", 0.0) if crops else None,
        ), (0,)

    @property
    def _reaches_far(self) -> bool:
        """Does the kernel read more than the two elements next to a place?"""
        return self.rounding is None and (self.cubic is not None or any(a.stretch > 1 for a in self.axes))

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if self.rounding is None and x.dtype is DType.BOOL:
            raise self.misfit(inputs, "only numbers can be interpolated")
        if x.rank != len(self.axes) or 0 in x.shape:
            raise self.misfit(inputs, f"{len(self.axes)} axes that are not empty are needed")
        return (TensorType(x.dtype, tuple(a.count for a in self.axes)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape)])
        wide = _accumulator(x.dtype)
        places = [_Places(b, axis, f"{name}_{d}", wide) for d, axis in enumerate(self.axes)]
        source = self._weighted(b, x, places, wide, name) if self._reaches_far else x

        def element(*i: Expr) -> Expr:
            if self.rounding is not None:
                value: Expr = x[tuple(map(self._nearest, i, places, x.shape))]
            elif self._reaches_far:
                value = _rounded(cast(wide, source[i]), x.dtype)
            else:
                value = _rounded(self._interpolated(x, i, places, wide), x.dtype)
            if self.fill is None:
                return value
            inside = [
                test
                for k, axis, n in zip(i, self.axes, x.shape, strict=True)
                if not axis.is_identity(n)
                for test in (const(0) <= _place(k, axis), _place(k, axis) <= _unit(axis) * (n - 1))
            ]
            return select(logical_and(*inside), value, const(self.fill, x.dtype))

        return (b.compute(name, out.shape, element),)

    def _nearest(self, i: Expr, places: "_Places", extent: int) -> Expr:
        axis = places.axis
        if axis.is_identity(extent):
            return i
        at = places.nearest(i, self.rounding)
        if is_open((axis.unit,)):
            return _inside(at, extent)
        last = _nearest_to(axis.scale * (axis.count - 1) + axis.offset, axis.unit, self.rounding)
        # Where no place is beyond the last element whatever the size, none has to be asked about an open one.
        return _inside(at, capacity(extent) if is_at_most(last, extent - 1) else extent)

    def _interpolated(self, x: Buffer, i: Sequence[Expr], places: Sequence["_Places"], wide: DType) -> Expr:
        def along(d: int, at: tuple[Expr, ...]) -> Expr:
            if d == len(i):
                return cast(wide, x[at])
            axis, n = self.axes[d], x.shape[d]
            if axis.is_identity(n):
                return along(d + 1, (*at, i[d]))
            low, share = places[d].split(i[d])
            below = along(d + 1, (*at, _inside(low, n)))
            above = along(d + 1, (*at, _inside(low + 1, n)))
            return below * (1 - share) + above * share

        return along(0, ())

    def _weighted(
        self, b: FuncBuilder, x: Buffer, places: Sequence["_Places"], wide: DType, name: str
    ) -> Buffer:
        """Weighted sums, axis by axis; the one that shrinks most comes first."""
        value = x
        for d in sorted(
            range(len(self.axes)), key=lambda d: capacity(self.axes[d].count) / capacity(x.shape[d])
        ):
            if not self.axes[d].is_identity(x.shape[d]):
                value = self._along(b, value, d, places[d], wide, name)
        return value

    def _along(self, b: FuncBuilder, x: Buffer, d: int, places: "_Places", wide: DType, name: str) -> Buffer:
        axis, extent, reach = self.axes[d], x.shape[d], self._reach(self.axes[d])

        def weight(i: Expr, t: Expr) -> Expr:
            low, share = places.split(i)
            distance = unary(UnaryOp.ABS, cast(wide, t) + (1 - reach) - share) / axis.stretch
            tap = low + (1 - reach) + t
            counts = logical_and(const(0) <= tap, tap < extent) if self.inside_only else const(1, DType.BOOL)
            return select(counts, self._kernel(distance), const(0, wide))

        weights = b.compute(f"{name}_weights{d}", (axis.count, 2 * reach), weight)
        if self.inside_only or axis.stretch > 1:
            weights = _normalised(b, weights, d, name)

        def term(at: Sequence[Expr], t: Expr) -> tuple[Expr, Expr]:
            here = _inside(places.split(at[d])[0] + (1 - reach) + t, extent)
            return cast(wide, x[(*at[:d], here, *at[d + 1 :])]), weights[at[d], t]

        def terms(*i: Expr) -> Expr:
            total: Expr | None = None
            for value, share in (term(i, const(t)) for t in range(2 * reach)):
                total = value * share if total is None else Fma(value, share, total)
            assert total is not None
            return total

        shape = (*x.shape[:d], axis.count, *x.shape[d + 1 :])
        if 2 * reach <= _WRITTEN_OUT:
            return b.compute(f"{name}_axis{d}", shape, terms)
        return b.reduce(f"{name}_axis{d}", shape, (2 * reach,), lambda *i: term(i[:-1], i[-1]), "sum")

    def _reach(self, axis: AxisSampling) -> int:
        """How many elements on either side of a place count at most."""
        return math.ceil((1 if self.cubic is None else 2) * axis.stretch)

    def _kernel(self, x: Expr) -> Expr:
        """The weight at a distance that is not negative."""
        if self.cubic is None:
            return maximum(1 - x, 0)
        a = self.cubic
        near = (x * (a + 2) - (a + 3)) * x * x + 1
        far = ((x * a - 5 * a) * x + 8 * a) * x - 4 * a
        return select(x <= 1, near, select(x < 2, far, const(0, x.dtype)))

    def _kernel_values(self, x: Array) -> Array:
        if self.cubic is None:
            return np.maximum(1 - x, 0)
        a = self.cubic
        far = np.where(x < 2, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a, 0)
        return np.where(x <= 1, ((a + 2) * x - (a + 3)) * x * x + 1, far)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dtype = DType.of(inputs[0].dtype)
        value = inputs[0] if self.rounding is not None else inputs[0].astype(np.float64)
        outside = np.zeros(tuple(a.count for a in self.axes), bool)
        for d, axis in enumerate(self.axes):
            if axis.is_identity(value.shape[d]):
                continue
            places = [Fraction(axis.scale * i + axis.offset, axis.unit) for i in range(axis.count)]
            last, tail = value.shape[d] - 1, [1] * (value.ndim - 1 - d)
            outside |= np.array([not 0 <= p <= last for p in places], bool).reshape(-1, *tail)
            if self.rounding is not None:
                at = np.array([_round(p, self.rounding) for p in places], np.int64)
                value = value.take(np.clip(at, 0, last), d)
                continue
            reach = self._reach(axis)
            low = np.array([math.floor(p) for p in places], np.int64)
            share = np.array([float(p - math.floor(p)) for p in places])
            taps = low[:, None] + np.arange(1 - reach, reach + 1)
            weights = self._kernel_values(
                abs(np.arange(1 - reach, reach + 1) - share[:, None]) / axis.stretch
            )
            if self.inside_only and self._reaches_far:
                weights = np.where((taps >= 0) & (taps <= last), weights, 0)
            weights /= np.where((total := weights.sum(-1, keepdims=True)) == 0, 1, total)
            total = np.zeros((*value.shape[:d], axis.count, *value.shape[d + 1 :]))
            for t in range(2 * reach):
                total += value.take(np.clip(taps[:, t], 0, last), d) * weights[:, t].reshape(-1, *tail)
            value = total
        if self.rounding is None and dtype.is_int:
            limits = np.iinfo(dtype.numpy)
            value = np.clip(np.rint(value), limits.min, limits.max)
        if self.fill is not None:
            value = np.where(outside, np.asarray(self.fill).astype(value.dtype), value)
        with np.errstate(all="ignore"):
            return (value.astype(dtype.numpy),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 1, 2, 3, 4)

        def scales(*values: float) -> Array:
            return np.array(values, np.float32)

        def sizes(*values: int) -> Array:
            return np.array(values, np.int64)

        for mode in ("nearest", "linear", "cubic"):
            yield cls.sample(x, None, scales(1, 1, 2, 2), mode=mode)
            yield cls.sample(
                x, None, scales(1, 1, 2, 1), mode=mode, coordinate_transformation_mode="asymmetric"
            )
            yield cls.sample(x, None, None, sizes(1, 2, 5, 3), mode=mode)
            corners: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
            yield cls.sample(x, None, None, sizes(5, 1), axes=[-2, -1], **corners)
            pytorch: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "pytorch_half_pixel"}
            yield cls.sample(x, None, None, sizes(1, 2, 1, 6), **pytorch)
            centred: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "half_pixel_symmetric"}
            yield cls.sample(x, None, scales(1, 1, 0.6, 1.3), opset=19, **centred)
            crop: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize"}
            region = scales(0, 0, 0.25, 0.5, 1, 1, 0.75, 1.5)
            yield cls.sample(x, region, None, sizes(1, 2, 5, 3), extrapolation_value=7.5, **crop)
        for rounding in _ROUNDINGS:
            yield cls.sample(x, None, scales(1, 1, 1.5, 2.5), nearest_mode=rounding)
        image = normal(rng, 1, 1, 7, 6)
        for mode in ("linear", "cubic"):
            for excludes in (0, 1):
                smooth: dict[str, Any] = {"mode": mode, "antialias": 1, "exclude_outside": excludes}
                yield cls.sample(image, None, scales(1, 1, 0.4, 0.6), **smooth)
                yield cls.sample(image, None, None, sizes(1, 1, 3, 9), **smooth)
        yield cls.sample(
            image, None, scales(1, 1, 0.8, 1.7), mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5
        )
        for policy in _POLICIES:
            yield cls.sample(image, None, None, sizes(4, 9), axes=[3, 2], keep_aspect_ratio_policy=policy)
        yield cls.sample(image.astype(np.float64), None, scales(1, 1, 1.5, 2), mode="cubic")
        yield cls.sample(image.astype(np.float16), None, scales(1, 1, 2, 2), mode="linear")
        yield cls.sample(rng.integers(0, 255, (1, 1, 3, 3)).astype(np.uint8), None, scales(1, 1, 2, 2))
        yield Sample(
            cls((AxisSampling(1), AxisSampling(5, 3, -1, 5), AxisSampling(4, 1, 0, 2)), None, -0.75),
            (rng.integers(-128, 128, (1, 3, 3)).astype(np.int8),),
        )
        yield cls.sample(x, scales(1, 1, 2, 3), op_type="Upsample", opset=9)
        yield cls.sample(x, op_type="Upsample", opset=7, scales=[1.0, 1.0, 2.0, 3.0], mode="linear")
        yield cls.sample(x, scales(1, 1, 0.5, 1.5), opset=10, mode="linear")


def _normalised(b: FuncBuilder, weights: Buffer, d: int, name: str) -> Buffer:
    """Weights whose sum for each place is one."""

    def each(i: Expr, t: Expr) -> Expr:
        return weights[i, t]

    total = b.reduce(f"{name}_total{d}", weights.shape[:1], weights.shape[1:], each)

    def share(i: Expr, t: Expr) -> Expr:
        return weights[i, t] / total[i]

    return b.compute(f"{name}_shares{d}", weights.shape, share)


def _accumulator(dtype: DType) -> DType:
    if dtype in FLOATS:
        return accumulator(dtype)
    return DType.F32 if dtype.bits <= 16 else DType.F64


def _rounded(value: Expr, dtype: DType) -> Expr:
    """An interpolated value as an element: integers are rounded, and brought into range, which cubics leave."""
    if dtype.is_float:
        return cast(dtype, value)
    limits = np.iinfo(dtype.numpy)
    low, high = float(limits.min), float(np.nextafter(np.float64(limits.max) + 1, 0))
    if dtype.bits < 64:
        high = float(limits.max)
    return cast(dtype, minimum(maximum(unary(UnaryOp.ROUND, value), low), high))


def _place(i: Expr, axis: AxisSampling) -> Expr:
    return i * axis.scale + axis.offset


def _unit(axis: AxisSampling) -> Expr:
    """Never 0: corners of a single element are not apart."""
    unit = as_index(axis.unit)
    return unit if size_of(axis.unit).bounds[0] >= 1 else maximum(unit, 1)


def _nearest_to(place: _Place, unit: _Place, rounding: str | None) -> _Place:
    """The element nearest to place / unit."""
    match rounding:
        case "floor":
            return place // unit
        case "ceil":
            return (place + (unit - 1)) // unit
        case "round_prefer_ceil":
            return (place * 2 + unit) // (2 * unit)
        case _:
            return (place * 2 + (unit - 1)) // (2 * unit)


class _Places:
    """The places of one axis. Where their unit is open each of them takes a division, whose result is kept: all that is
    beside or below an element has it in common.
    """

    def __init__(self, b: FuncBuilder, axis: AxisSampling, name: str, wide: DType) -> None:
        self.axis, self._b, self._name, self._wide = axis, b, name, wide
        self._is_open = is_open((axis.unit,))
        self._tables: dict[str, Buffer] = {}

    def nearest(self, i: Expr, rounding: str | None) -> Expr:
        """The element nearest to place i."""
        if not self._is_open:
            return _nearest_to(_place(i, self.axis), _unit(self.axis), rounding)
        return self._kept(
            "nearest", i, lambda i: _nearest_to(_place(i, self.axis), _unit(self.axis), rounding)
        )

    def split(self, i: Expr) -> tuple[Expr, Expr]:
        """The element below place i, and how far towards the next one the place is."""
        if self._is_open:
            return self._kept("below", i, self._below), self._kept("share", i, self._share)
        return self._below(i), self._share(i)

    def _below(self, i: Expr) -> Expr:
        return _place(i, self.axis) // _unit(self.axis)

    def _share(self, i: Expr) -> Expr:
        unit = _unit(self.axis)
        whole = cast(self._wide, unit) if self._is_open else const(self.axis.unit, self._wide)
        return cast(self._wide, _place(i, self.axis) - self._below(i) * unit) / whole

    def _kept(self, what: str, i: Expr, fn: Callable[[Expr], Expr]) -> Expr:
        if what not in self._tables:
            self._tables[what] = self._b.compute(f"{self._name}_{what}", (self.axis.count,), fn, axes=["i"])
        return self._tables[what][(i,)]


def _inside(at: Expr, extent: int) -> Expr:
    return minimum(maximum(at, const(0)), extent - 1)


def _round(place: Fraction, rounding: str) -> int:
    match rounding:
        case "floor":
            return math.floor(place)
        case "ceil":
            return math.ceil(place)
        case "round_prefer_ceil":
            return math.floor(place + Fraction(1, 2))
        case _:
            return math.ceil(place - Fraction(1, 2))
