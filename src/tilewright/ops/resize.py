"""Resize: sampling of a tensor at evenly spaced places.

Place i of an output axis lies at (scale·i + offset) / unit on the input axis. These are integers, whatever coordinate
convention they came from, so places are exact and index arithmetic is a floor division.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, cast, const, maximum, minimum
from tilewright.ops.axes import FLOATS, accumulator, narrow, normal_axes, normal_axis, widen
from tilewright.ops.elementwise import normal
from tilewright.ops.opdef import Array, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder

_ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


@dataclass(frozen=True, slots=True)
class Sampling:
    """The places of one axis: `count` of them, at (scale·i + offset) / unit."""

    count: int
    scale: int = 1
    offset: int = 0
    unit: int = 1

    @property
    def is_identity(self) -> bool:
        return self.scale == self.unit and self.offset == 0


@dataclass(frozen=True, slots=True)
class Resize(Op):
    """Each output element is the input element nearest to its place (`rounding` says which), or, without `rounding`,
    interpolated linearly. Places outside the input take its edge."""

    onnx = ("Resize", "Upsample")
    kind = Kind.REDUCTION
    axes: tuple[Sampling, ...]
    rounding: str | None = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x = node.input(0)
        mode = node.text("mode", "nearest")
        if mode not in ("nearest", "linear", "bilinear"):
            raise UserError(f"{node.op_type}: mode '{mode}' is not supported")
        old = node.op_type == "Upsample" or node.opset < 11
        convention = "asymmetric" if old else node.text("coordinate_transformation_mode", "half_pixel")
        rounding = "floor" if old else node.text("nearest_mode", "round_prefer_floor")
        if rounding not in _ROUNDINGS:
            raise UserError(f"{node.op_type}: unknown nearest_mode '{rounding}'")
        if node.integer("antialias", 0) or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise UserError("Resize: antialias and keep_aspect_ratio_policy are not supported")
        samplings = [Sampling(n) for n in x.shape]
        for d, count, ratio in _targets(node, x):
            samplings[d] = _sampling(convention, x.shape[d], count, ratio)
        return cls(tuple(samplings), rounding if mode == "nearest" else None), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if self.rounding is None and x.dtype not in FLOATS:
            raise self.misfit(inputs, "only floats can be interpolated")
        if x.rank != len(self.axes) or 0 in x.shape:
            raise self.misfit(inputs, f"{len(self.axes)} axes that are not empty are needed")
        return (TensorType(x.dtype, tuple(a.count for a in self.axes)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape)])
        wide = accumulator(x.dtype)

        def nearest(*i: Expr) -> Expr:
            return x[tuple(map(self._nearest, i, self.axes, x.shape))]

        def interpolated(*i: Expr) -> Expr:
            def along(d: int, at: tuple[Expr, ...]) -> Expr:
                if d == len(i):
                    return cast(wide, x[at])
                axis, n = self.axes[d], x.shape[d]
                if axis.is_identity:
                    return along(d + 1, (*at, i[d]))
                place = i[d] * axis.scale + axis.offset
                low = place // axis.unit
                share = cast(wide, place - low * axis.unit) / axis.unit
                below = along(d + 1, (*at, _inside(low, n)))
                above = along(d + 1, (*at, _inside(low + 1, n)))
                return below * (1 - share) + above * share

            return cast(x.dtype, along(0, ()))

        return (b.compute(name, out.shape, nearest if self.rounding is not None else interpolated),)

    def _nearest(self, i: Expr, axis: Sampling, extent: int) -> Expr:
        if axis.is_identity:
            return i
        place, unit = i * axis.scale + axis.offset, axis.unit
        match self.rounding:
            case "floor":
                at = place // unit
            case "ceil":
                at = (place + (unit - 1)) // unit
            case "round_prefer_ceil":
                at = (place * 2 + unit) // (2 * unit)
            case _:
                at = (place * 2 + (unit - 1)) // (2 * unit)
        return _inside(at, extent)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        value = widen(inputs[0])
        for d, axis in enumerate(self.axes):
            places = [Fraction(axis.scale * i + axis.offset, axis.unit) for i in range(axis.count)]
            half, last = Fraction(1, 2), value.shape[d] - 1
            match self.rounding:
                case None:
                    low = np.array([math.floor(p) for p in places], np.int64)
                    share = np.array([float(p - math.floor(p)) for p in places])
                    share = share.reshape(-1, *[1] * (value.ndim - 1 - d))
                    below = value.take(np.clip(low, 0, last), d)
                    value = below * (1 - share) + value.take(np.clip(low + 1, 0, last), d) * share
                    continue
                case "floor":
                    at = [math.floor(p) for p in places]
                case "ceil":
                    at = [math.ceil(p) for p in places]
                case "round_prefer_ceil":
                    at = [math.floor(p + half) for p in places]
                case _:
                    at = [math.ceil(p - half) for p in places]
            value = value.take(np.clip(np.array(at, np.int64), 0, last), d)
        return (narrow(value, DType.of(inputs[0].dtype)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 1, 2, 3, 4)

        def scales(*values: float) -> Array:
            return np.array(values, np.float32)

        for mode in ("nearest", "linear"):
            yield cls.sample(x, None, scales(1, 1, 2, 2), mode=mode)
            yield cls.sample(
                x, None, scales(1, 1, 2, 1), mode=mode, coordinate_transformation_mode="asymmetric"
            )
            yield cls.sample(x, None, None, np.array([1, 2, 5, 3], np.int64), mode=mode)
            corners: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
            yield cls.sample(x, None, None, np.array([5, 1], np.int64), axes=[-2, -1], **corners)
            pytorch: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "pytorch_half_pixel"}
            yield cls.sample(x, None, None, np.array([1, 2, 1, 6], np.int64), **pytorch)
        for rounding in _ROUNDINGS:
            yield cls.sample(x, None, scales(1, 1, 1.5, 2.5), nearest_mode=rounding)
        yield cls.sample(x, scales(1, 1, 2, 3), op_type="Upsample", opset=9)


def _inside(at: Expr, extent: int) -> Expr:
    return minimum(maximum(at, const(0)), extent - 1)


def _targets(node: OnnxNode, x: TensorType) -> Iterable[tuple[int, int, Fraction]]:
    """For each axis that is resized: its number, its new extent, and input extent per output extent."""
    given = node.integers("axes")
    axes = tuple(range(x.rank)) if given is None else tuple(normal_axis(a, x.rank) for a in given)
    normal_axes(axes, x.rank)  # each only once
    scales = 1 if node.op_type == "Upsample" or node.opset < 11 else 2
    if node.has(3) and node.input(3).shape != (0,):
        sizes = node.value_integers(3, "the sizes")
        if len(sizes) != len(axes) or min(sizes, default=1) < 1:
            raise UserError(f"{node.op_type} of {x}: sizes {list(sizes)} for {len(axes)} axes")
        return [(d, m, Fraction(x.shape[d], m)) for d, m in zip(axes, sizes, strict=True)]
    ratios = [float(v) for v in node.value(scales, "the scales").reshape(-1)]
    if len(ratios) != len(axes) or not all(0 < r < math.inf for r in ratios):
        raise UserError(f"{node.op_type} of {x}: scales {ratios} for {len(axes)} axes")
    return [(d, math.floor(x.shape[d] * r), 1 / Fraction(r)) for d, r in zip(axes, ratios, strict=True)]


def _sampling(convention: str, extent: int, count: int, ratio: Fraction) -> Sampling:
    match convention:
        case "asymmetric":
            step, start = ratio, Fraction(0)
        case "half_pixel":
            step, start = ratio, (ratio - 1) / 2
        case "pytorch_half_pixel":
            step, start = ratio, (ratio - 1) / 2 if count > 1 else Fraction(0)
        case "align_corners":
            step, start = Fraction(extent - 1, count - 1) if count > 1 else Fraction(0), Fraction(0)
        case _:
            raise UserError(f"Resize: coordinate_transformation_mode '{convention}' is not supported")
    unit = math.lcm(step.denominator, start.denominator)
    if max(abs(step * unit), abs(start * unit), unit) * (count + 1) >= 1 << 61:
        raise UserError(
            f"Resize: the scale {float(1 / ratio)} is not a fraction that index arithmetic can hold"
        )
    return Sampling(count, int(step * unit), int(start * unit), unit)
