"""Whether two engines' results agree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-4  # of the largest magnitude of an output: what float32 networks agree to


@dataclass(frozen=True, slots=True)
class Difference:
    """`error` is the largest difference over the largest magnitude of the finite values of the reference; infinite if
    shapes, or the places of NaN and infinities, differ.
    """

    output: str
    error: float


def compare(got: Mapping[str, NDArray[Any]], wanted: Mapping[str, NDArray[Any]]) -> tuple[Difference, ...]:
    """One Difference an output of `wanted`."""
    return tuple(Difference(name, _error(got[name], value)) for name, value in wanted.items())


def worst(differences: tuple[Difference, ...]) -> float:
    return max((d.error for d in differences), default=0.0)


def _error(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    if got.shape != wanted.shape:
        return float("inf")
    if wanted.size == 0:
        return 0.0
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    scale = float(np.abs(b[finite]).max())
    largest = float(np.abs(a[finite] - b[finite]).max())
    return largest / scale if scale > 0 else largest
