"""Instructions that add several products of short integers to each lane of a sum, for contractions of these.

    C[i, j] += i32(A[i, k]) · i32(B[k, j])    ──>    for k / 4, i, j in lanes: C[i, j] += Σ A[i, 4 k + g] · B[k, j, g]

The reduction is cut into groups, of as many elements as a lane of the sum has room for. The groups of B lie side by
side in its panels, those of A in memory or in a copy; all else is as for floats. Where the target has no instruction
for the types of the operands, but one for wider ones, copies of both are of that type. An instruction may ask for
elements of B that lie within bounds: those that are clamped to them are known to.
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
    within: tuple[int, int] | None = None  # what elements of b have to lie within


def dot_product(
    target: Target, a: DType, b: DType, extent: int = 0, within: tuple[int, int] | None = None
) -> DotProduct | None:
    """For operands of these types, or of the narrowest types that hold them; the quickest. `extent` is that of the loop
    that is cut into groups, and `within` what is known of b.
    """
    found = (d for d in dot_products(target, a, b) if not extent % d.group)
    return next((d for d in found if d.within is None or _is_inside(within, d.within)), None)


@lru_cache(maxsize=64)
def dot_products(target: Target, a: DType, b: DType) -> tuple[DotProduct, ...]:
    """The same, whatever is known: the quickest first."""
    found = [d for d in _dot_products(target) if _holds(d.a, a) and _holds(d.b, b)]
    return tuple(sorted(found, key=lambda d: (d.steps / d.group, d.b.bytes)))


def _is_inside(known: tuple[int, int] | None, asked: tuple[int, int]) -> bool:
    return known is not None and asked[0] <= known[0] and known[1] <= asked[1]


def _holds(wide: DType, dtype: DType) -> bool:
    if wide is dtype:
        return True
    signed = wide in (DType.I16, DType.I32)
    return signed and dtype.is_int and dtype.bytes < wide.bytes


@lru_cache(maxsize=16)
def _dot_products(target: Target) -> tuple[DotProduct, ...]:
    lanes = target.lanes(4)
    found: dict[tuple[DType, DType, int, tuple[int, int] | None], dict[int, tuple[float, str]]] = {}
    for i in intrinsics_of(target):
        c, *factors = i.meaning.params
        if i.emitter is None or len(factors) != 2 or c.dtype is not DType.I32 or len(c.shape) != 1:
            continue
        a, b = factors
        if len(a.shape) != 1 or b.shape != (*c.shape, *a.shape) or c.shape[0] > lanes:
            continue
        same = found.setdefault((a.dtype, b.dtype, a.shape[0], i.operands[2].within), {})
        known = same.get(c.shape[0])
        if known is None or i.steps < known[0]:
            same[c.shape[0]] = i.steps, i.name
    return tuple(
        DotProduct(a, b, group, same[lanes][0], {n: name for n, (_, name) in same.items()}, within)
        for (a, b, group, within), same in found.items()
        if lanes in same
    )
