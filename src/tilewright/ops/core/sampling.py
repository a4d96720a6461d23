"""Where a resized axis is sampled: ONNX's conventions for coordinates, brought to one form.

Place i of an output axis lies at (scale·i + offset) / unit on the input axis. These are integers, whatever convention
they came from, so places are exact and index arithmetic is a floor division.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tilewright.ops.axes import normal_axes, normal_axis
from tilewright.ops.opdef import OnnxNode, TensorType
from tilewright.support.errors import UserError
from tilewright.support.sizes import SizeError, SymInt, capacity, is_open, ratio_of, same_size, size_of

_ROOM = 1 << 61  # of index arithmetic
_EXACT = 1 << 24  # all integers up to this are f32
_MOST_EXTENTS = 1 << 16  # of an open axis that are multiplied by a scale, one after the other
_BY_CORNERS = ("align_corners", "tf_crop_and_resize")  # where the ratio of extents is not that of places
_DENOMINATOR = 1000  # of a scale that was a short fraction before it was written as a float, at most


@dataclass(frozen=True, slots=True)
class AxisSampling:
    """The places of one axis: `count` of them, at (scale·i + offset) / unit. Around each, the kernel is `stretch` times
    as wide as its own. Where dimensions are open all but the last may be; a unit of 0 then counts as 1."""

    count: int
    scale: int = 1
    offset: int = 0
    unit: int = 1
    stretch: float = 1.0

    def is_identity(self, extent: int) -> bool:
        return self.scale == self.unit and self.offset == 0 and same_size(self.count, extent)


def _axes(node: OnnxNode, x: TensorType) -> tuple[int, ...]:
    given = node.integers("axes")
    axes = tuple(range(x.rank)) if given is None else tuple(normal_axis(a, x.rank) for a in given)
    normal_axes(axes, x.rank)  # each only once
    return axes


def targets(node: OnnxNode, x: TensorType) -> Iterable[tuple[int, int, Fraction | None]]:
    """For each axis that is resized: its number, its new extent, and input extent per output extent; None if that is
    another one for every size.
    """
    axes = _axes(node, x)
    if node.has(3) and node.input(3).shape != (0,):
        return _sized(node, x, axes, node.value_integers(3, "the sizes"))
    if node.op_type == "Upsample" and node.opset < 9:
        ratios = [float(v) for v in node.attrs.get("scales", ())]
    else:
        given = 1 if node.op_type == "Upsample" or node.opset < 11 else 2
        ratios = [float(v) for v in node.value(given, "the scales").reshape(-1)]
    if len(ratios) != len(axes) or not all(0 < r < math.inf for r in ratios):
        raise UserError(f"{node.op_type} of {x}: scales {ratios} for {len(axes)} axes")
    return [(d, _scaled(x.shape[d], r), 1 / Fraction(r)) for d, r in zip(axes, ratios, strict=True)]


def _scaled(extent: int, ratio: float) -> int:
    """The new extent. The product is rounded to f32 before it is cut: that is how others count, and 0.7 · 10 should be
    7. An open extent has one if a fraction gives the same for all of its sizes.
    """
    if not isinstance(extent, SymInt):
        return int(np.float32(extent) * np.float32(ratio))
    low, high = extent.size.bounds
    short = Fraction(ratio).limit_denominator(_DENOMINATOR)
    if high - low < _MOST_EXTENTS and short > 0:
        every = np.arange(low, high + 1)
        rounded = (every.astype(np.float32) * np.float32(ratio)).astype(np.int64)
        if np.array_equal(rounded, every * short.numerator // short.denominator):
            return extent * short.numerator // short.denominator
    raise SizeError(f"({extent}) * {ratio} is no quotient of integers")


def _sized(
    node: OnnxNode, x: TensorType, axes: Sequence[int], sizes: Sequence[int]
) -> Iterable[tuple[int, int, Fraction | None]]:
    if len(sizes) != len(axes) or any(n < 1 for n in sizes) or any(not x.shape[d] for d in axes):
        raise UserError(f"{node.op_type} of {x}: sizes {list(sizes)} for {len(axes)} axes")
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    match policy:
        case "stretch":
            return [(d, m, _ratio(x.shape[d], m)) for d, m in zip(axes, sizes, strict=True)]
        case "not_larger" | "not_smaller":
            ratios = [ratio_of(x.shape[d], m) for d, m in zip(axes, sizes, strict=True)]
            ratio = max(ratios) if policy == "not_larger" else min(ratios)
            return [(d, _rounded(x.shape[d], ratio), ratio) for d in axes]
        case _:
            raise UserError(f"Resize: unknown keep_aspect_ratio_policy '{policy}'")


def _ratio(extent: int, count: int) -> Fraction | None:
    try:
        return ratio_of(extent, count)
    except SizeError:
        return None


def _rounded(extent: int, ratio: Fraction) -> int:
    """extent / ratio, to the nearest."""
    return (extent * (2 * ratio.denominator) + ratio.numerator) // (2 * ratio.numerator)


def regions(node: OnnxNode, count: int) -> list[tuple[Fraction, Fraction]]:
    """Where each axis is cropped: its first and last place, as parts of the extent."""
    given = [float(v) for v in node.value(1, "the region").reshape(-1)]
    if len(given) != 2 * count or not all(map(math.isfinite, given)):
        raise UserError(f"Resize: the region {given} for {count} axes")
    exact = [Fraction(v) for v in given]
    return list(zip(exact[:count], exact[count:], strict=True))


def sampling(
    convention: str,
    extent: int,
    count: int,
    ratio: Fraction | None,
    region: tuple[Fraction, Fraction],
    stretch: float,
) -> AxisSampling:
    if ratio is None or (is_open((extent, count)) and convention in _BY_CORNERS):
        return _open_sampling(convention, extent, count, ratio, region, stretch)
    step, start = ratio, (ratio - 1) / 2
    match convention:
        case "asymmetric":
            start = Fraction(0)
        case "half_pixel":
            pass
        case (
            "half_pixel_symmetric"
        ):  # the middle of the output, whose extent was rounded, is that of the input
            start += _left_over(extent, count, ratio) / 2
        case "pytorch_half_pixel":
            scale, offset, unit = _integers(step, start, count)
            return AxisSampling(count, scale, offset * _is_several(count), unit, stretch)
        case "align_corners":
            step, start = Fraction(extent - 1, max(count - 1, 1)), Fraction(0)
        case "tf_crop_and_resize":
            first, last = region
            step = (last - first) * (extent - 1) / max(count - 1, 1)
            start = first * (extent - 1) if count > 1 else (first + last) * (extent - 1) / 2
        case _:
            raise UserError(f"Resize: coordinate_transformation_mode '{convention}' is not supported")
    return AxisSampling(count, *_integers(step, start, count), stretch)


def _open_sampling(
    convention: str,
    extent: int,
    count: int,
    ratio: Fraction | None,
    region: tuple[Fraction, Fraction],
    stretch: float,
) -> AxisSampling:
    """The places of an axis that are others for every size: the same as fractions of sizes."""
    match convention:
        case "asymmetric":
            scale, offset, unit = extent, 0, count
        case "half_pixel" | "half_pixel_symmetric":
            scale, offset, unit = 2 * extent, extent - count, 2 * count
        case "pytorch_half_pixel":
            scale, offset, unit = 2 * extent, (extent - count) * _is_several(count), 2 * count
        case "align_corners":
            scale, offset, unit = extent - 1, 0, count - 1
        case "tf_crop_and_resize":
            first, last = region
            whole = math.lcm(first.denominator, last.denominator)
            reach, begin = int((last - first) * whole) * (extent - 1), int(first * whole) * (extent - 1)
            if count > 1:
                scale, offset, unit = reach, begin * (count - 1), whole * (count - 1)
            else:
                scale, offset, unit = 0, 2 * begin + reach, 2 * whole
        case _:
            raise UserError(f"Resize: coordinate_transformation_mode '{convention}' is not supported")
    ends = [abs(n) for size in (scale, offset, unit) for n in size_of(size).bounds]
    if max(ends) * (capacity(count) + 1) >= _ROOM:
        raise SizeError(f"places of ({extent}) / ({count}) are too fine for index arithmetic")
    return AxisSampling(count, scale, offset, unit if is_open((unit,)) else max(unit, 1), stretch)


def _is_several(count: int) -> int:
    """1 if there is more than one place, otherwise 0: of an open number as a quotient, which needs no guard."""
    if not is_open((count,)):
        return int(count > 1)
    most = capacity(count)
    return (count - 2 + most) // most


def _left_over(extent: int, count: int, ratio: Fraction) -> Fraction:
    """Of the input, where outputs `ratio` apart are as wide as that."""
    if is_open((extent, count)) and ratio_of(extent, count) == ratio:
        return Fraction(0)
    return extent - count * ratio


def _integers(step: Fraction, start: Fraction, count: int) -> tuple[int, int, int]:
    """Scale, offset and unit. If the fraction is too fine for index arithmetic, the finest one that is not."""
    unit = math.lcm(step.denominator, start.denominator)
    size = max(abs(step), abs(start), Fraction(1))
    room = _ROOM // (capacity(count) + 1)
    if size * unit >= room:
        unit = 1 << max(math.floor(room / size).bit_length() - 2, 0)
    if size * unit >= room:
        raise UserError(f"Resize: places {float(step)} apart are too far for index arithmetic")
    return round(step * unit), round(start * unit), unit
