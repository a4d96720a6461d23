"""How far the results of two engines are apart.

Floats may differ by a tolerance, relative to the largest magnitude of the reference. Integers, bools and strings must
be equal; a few steps between integers can be allowed, for quantised models, in which a tie rounds either way. NaN and
infinities must be in the same places.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.cli.defaults import TOLERANCE

_CHUNK = 1 << 18  # elements compared at a time: copies of whole tensors in float64 would be large

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Difference:
    """`error` is the largest difference over the largest magnitude of the finite values of the reference; infinite if
    no tolerance would do, and then `reason` says why.
    """

    output: str
    error: float
    largest: float = 0.0  # between finite values
    different: int = 0  # how many elements are not equal
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`relative` to the largest magnitude; integers may be `steps` apart. Types must be equal."""

    relative: float = TOLERANCE
    steps: int = 0

    def differences(self, got: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[Difference, ...]:
        return compare_outputs(got, wanted, steps=self.steps, same_types=True)

    def worst(self, got: Mapping[str, Any], wanted: Mapping[str, Any]) -> Difference:
        return max(self.differences(got, wanted), key=lambda d: d.error)

    def allows(self, difference: Difference) -> bool:
        return difference.error <= self.relative


def compare_outputs(
    got: Mapping[str, Any], wanted: Mapping[str, Any], *, steps: int = 0, same_types: bool = False
) -> tuple[Difference, ...]:
    """One Difference an output of `wanted`: an array, a sequence, a map or None. Integers may be `steps` apart."""
    return tuple(_difference(name, got[name], value, steps, same_types) for name, value in wanted.items())


def worst(differences: tuple[Difference, ...]) -> float:
    return max((d.error for d in differences), default=0.0)


def _difference(name: str, got: Any, wanted: Any, steps: int, same_types: bool) -> Difference:
    if isinstance(wanted, list):
        if not isinstance(got, list) or len(got) != len(wanted):  # pyright: ignore[reportUnknownArgumentType]
            return Difference(name, _NEVER, reason="sequences of different lengths")
        pairs = cast("Iterable[tuple[Any, Any]]", zip(got, wanted, strict=True))  # pyright: ignore
        found = [_difference(name, a, b, steps, same_types) for a, b in pairs]
        return max(found, key=lambda d: d.error, default=Difference(name, 0.0))
    if isinstance(wanted, dict):
        theirs = cast("dict[Any, Any]", wanted)
        if not isinstance(got, dict) or got.keys() != theirs.keys():
            return Difference(name, _NEVER, reason="maps with different keys")
        a, b = (np.array([m[key] for key in theirs]) for m in (cast("dict[Any, Any]", got), theirs))
        return _difference(name, a, b, steps, same_types)
    if wanted is None or got is None:
        both = wanted is None and got is None
        return Difference(name, 0.0) if both else Difference(name, _NEVER, reason="one of them is empty")
    a, b = np.asarray(got), np.asarray(wanted)
    if a.shape != b.shape:
        return Difference(name, _NEVER, reason=f"shapes {list(a.shape)} and {list(b.shape)}")
    if (same_types or is_exact(a.dtype) != is_exact(b.dtype)) and a.dtype != b.dtype:
        return Difference(name, _NEVER, reason=f"types {a.dtype} and {b.dtype}")
    if a.dtype.kind in "OSU":
        different = int(np.count_nonzero(a != b))
        reason = f"{different} of {a.size} strings differ" if different else ""
        return Difference(name, _NEVER if different else 0.0, 0.0, different, reason)
    return _of_integers(name, a, b, steps) if is_exact(b.dtype) else _of_floats(name, a, b)


def is_exact(dtype: np.dtype[Any]) -> bool:
    """Are values of this type compared exactly: integers (the short ones of ml_dtypes too), bools, strings?"""
    return dtype.kind in "biuOSU" or dtype.name.startswith(("int", "uint"))


def _chunks(a: NDArray[Any], b: NDArray[Any]) -> "zip[tuple[NDArray[Any], NDArray[Any]]]":
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    starts = range(0, flat_a.size, _CHUNK)
    return zip(
        (flat_a[s : s + _CHUNK] for s in starts), (flat_b[s : s + _CHUNK] for s in starts), strict=True
    )


def _of_integers(name: str, a: NDArray[Any], b: NDArray[Any], steps: int) -> Difference:
    different, largest = 0, 0
    for x, y in _chunks(a, b):
        if x.dtype.kind not in "iu" or y.dtype.kind not in "iu":  # bools, and ml_dtypes
            x, y = x.astype(np.int64), y.astype(np.int64)
        apart = x != y
        different += int(np.count_nonzero(apart))
        largest = max([largest, *(abs(int(p) - int(q)) for p, q in _extremes(x[apart], y[apart]))])
    allowed = 0 if b.dtype.kind == "b" else steps
    if largest <= allowed:
        return Difference(name, 0.0, largest, different)
    reason = f"{different} of {a.size} integers differ, by up to {largest}"
    return Difference(name, _NEVER, largest, different, reason)


def _extremes(x: NDArray[Any], y: NDArray[Any]) -> list[tuple[Any, Any]]:
    """The pair furthest apart upwards, and downwards. Differences of 64-bit integers do not fit into one, so they are
    ordered as floats.
    """
    if not x.size:
        return []
    gap = x.astype(np.float64) - y.astype(np.float64)
    return [(x[i], y[i]) for i in (int(gap.argmax()), int(gap.argmin()))]


def _of_floats(name: str, a: NDArray[Any], b: NDArray[Any]) -> Difference:
    kind = np.complex128 if b.dtype.kind == "c" else np.float64
    largest = scale = 0.0
    different = misplaced = 0
    with np.errstate(all="ignore"):
        for x, y in _chunks(a, b):
            x, y = x.astype(kind), y.astype(kind)
            equal = (x == y) | (np.isnan(x) & np.isnan(y))
            finite = np.isfinite(y)
            different += int(equal.size - np.count_nonzero(equal))
            misplaced += int(np.count_nonzero(~equal & ~(finite & np.isfinite(x))))
            scale = max(scale, float(np.abs(y[finite]).max(initial=0.0)))
            both = finite & np.isfinite(x)
            largest = max(largest, float(np.abs(x[both] - y[both]).max(initial=0.0)))
    if misplaced:
        reason = f"NaN or infinities in {misplaced} of {a.size} places differ"
        return Difference(name, _NEVER, largest, different, reason)
    return Difference(name, largest / scale if scale > 0 else largest, largest, different)
