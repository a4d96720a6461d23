"""Calibration: within which bounds the values of a region lie, and so what a byte stands for.

A value x is held as the byte q with x = scale · (q - zero), the same for a whole tensor. zero is where 0 lies: padding
and ReLU are exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.calibration import values_of
from tilewright.graph.external import Region

Array: TypeAlias = NDArray[Any]
Ranges: TypeAlias = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated(Region):
    """A region, and within which bounds its values lie."""

    ranges: Ranges = field(default_factory=dict[str, tuple[float, float]])


@dataclass(frozen=True, slots=True)
class Affine:
    scale: float = 1.0
    zero: int = 0

    @staticmethod
    def of(low: float, high: float) -> "Affine":
        """For values from `low` to `high`, and 0."""
        low, high = min(low, 0.0), max(high, 0.0)
        if not np.isfinite(high - low) or high - low < 1e-30:
            return Affine()
        scale = (high - low) / 255
        return Affine(scale, int(np.clip(round(-128 - low / scale), -128, 127)))


def calibrated(region: Region, samples: Sequence[Mapping[str, Array]], percentile: float) -> Calibrated:
    """The bounds of all values over the samples. With a percentile below 100, so much of them lies within: what is
    rare and large then costs less than what is common and small.
    """
    ranges: dict[str, tuple[float, float]] = {}
    # What one layer alone quantizes are its inputs, and these are known.
    for values in values_of(region.graph, samples) if samples and len(region.units) > 1 else samples:
        for name, array in values.items():
            low, high = _bounds(array, percentile)
            before = ranges.get(name, (low, high))
            ranges[name] = min(low, before[0]), max(high, before[1])
    return Calibrated(region.key, region.graph, region.units, region.order, region.dtypes, ranges)


def _bounds(array: Array, percentile: float) -> tuple[float, float]:
    if percentile >= 100:
        return float(array.min(initial=0)), float(array.max(initial=0))
    low, high = np.percentile(array, [100 - percentile, percentile])
    return float(low), float(high)
