"""How far results are from those of the model in floats."""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from tilewright.support.arrays import Array

Results = Mapping[str, Array]


def relative_error(pairs: Iterable[tuple[Results, Results]]) -> float:
    """Of results and what they should be, over all samples: the root of the sum of squared differences over that of
    the squares, of the output where it is largest. Outputs that are no floats do not count. Numbers that are not finite
    must be the same in both, or the error is infinite.
    """
    differences: dict[str, float] = {}
    squares: dict[str, float] = {}
    for found, wanted in pairs:
        for name, right in wanted.items():
            if right.dtype.kind != "f":
                continue
            a, b = (v.astype(np.float64) for v in (found[name], right))
            is_finite = np.isfinite(b)
            if not np.array_equal(a[~is_finite], b[~is_finite], equal_nan=True):
                return math.inf
            a, b = a[is_finite], b[is_finite]
            differences[name] = differences.get(name, 0.0) + float(np.square(a - b).sum())
            squares[name] = squares.get(name, 0.0) + float(np.square(b).sum())
    return max((_ratio(d, squares[name]) for name, d in differences.items()), default=0.0)


def _ratio(difference: float, square: float) -> float:
    if not math.isfinite(difference):
        return math.inf
    if not square:
        return math.inf if difference else 0.0
    return math.sqrt(difference / square)
