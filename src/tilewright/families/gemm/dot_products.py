"""Instructions that add several products of short integers to each lane of a sum, for contractions of these.

    C[i, j] += i32(A[i, k]) · i32(B[k, j])    ──>    for k / 4, i, j in lanes: C[i, j] += Σ A[i, 4 k + g] · B[k, j, g]

The reduction is cut into groups, of as many elements as a lane of the sum has room for. The groups of B lie side by
side in its panels, those of A in memory or in a copy; all else is as for floats. Where the target has no instruction
for the types of the operands, but one for wider ones, copies of both are of that type.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from tilewright.ir.dtype import DType
from tilewright.target.intrinsics import intrinsics_of
from tilewright.target.target import Target


@dataclass(frozen=True, slots=True)
class DotProduct:
    """The instructions of a target for one pair of types."""

    a: DType
    b: DType
    group: int  # products that are added at a time to a lane
    steps: float  # multiply-adds of a vector that take as long
    names: Mapping[int, str]  # of intrinsics, by lanes


@lru_cache(maxsize=64)
def dot_product(target: Target, a: DType, b: DType) -> DotProduct | None:
    """For operands of these types, or of the narrowest types that hold them; the quickest."""
    found = [d for d in _dot_products(target) if _holds(d.a, a) and _holds(d.b, b)]
    return min(found, key=lambda d: (d.steps / d.group, d.b.bytes), default=None)


def _holds(wide: DType, dtype: DType) -> bool:
    if wide is dtype:
        return True
    signed = wide in (DType.I16, DType.I32)
    return signed and dtype.is_int and dtype.bytes < wide.bytes


@lru_cache(maxsize=16)
def _dot_products(target: Target) -> tuple[DotProduct, ...]:
    lanes = target.lanes(4)
    found: dict[tuple[DType, DType, int], dict[int, tuple[float, str]]] = {}
    for i in intrinsics_of(target):
        c, *factors = i.meaning.params
        if i.emitter is None or len(factors) != 2 or c.dtype is not DType.I32 or len(c.shape) != 1:
            continue
        a, b = factors
        if len(a.shape) != 1 or b.shape != (*c.shape, *a.shape) or c.shape[0] > lanes:
            continue
        same = found.setdefault((a.dtype, b.dtype, a.shape[0]), {})
        known = same.get(c.shape[0])
        if known is None or i.steps < known[0]:
            same[c.shape[0]] = i.steps, i.name
    return tuple(
        DotProduct(a, b, group, same[lanes][0], {n: name for n, (_, name) in same.items()})
        for (a, b, group), same in found.items()
        if lanes in same
    )
