"""The table of tensor intrinsics: all families of all targets. Names are unique over all of them.

A new family is a module in this package and a line here (docs/adding-an-intrinsic.md); nothing else knows the list.
A package of somebody else's registers its own.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tilewright.ir.dtype import DType
from tilewright.support.extensions import Additions
from tilewright.target import arm, arm_tiles, sve, x86, x86_amx, x86_few_bits, x86_vnni
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.target import Target

INTRINSICS: tuple[Intrinsic, ...] = (
    *x86.F32_TILES,
    *x86.F32_WIDE_TILES,
    *x86.DOT_PRODUCTS,
    *x86_vnni.DOT_PRODUCTS,
    *x86_vnni.FEW_BITS,
    *x86_few_bits.FEW_BITS,
    *arm.F32_TILES,
    *arm.DOT_PRODUCTS,
    *arm.MATRIX_PRODUCTS,
    *arm.HALF_PRODUCTS,
    *arm.FEW_BITS,
    *sve.F32_TILES,
    *sve.DOT_PRODUCTS,
    *sve.FEW_BITS,
)
ADDED: Additions[Intrinsic] = Additions("intrinsic")

_OWN = {i.name: i for i in INTRINSICS}
assert len(_OWN) == len(INTRINSICS), "two intrinsics have one name"


def register_intrinsics(*family: Intrinsic) -> None:
    """Make intrinsics of another package known; again does nothing. UserError if a name is taken."""
    ADDED.add({i.name: i for i in family}, _OWN)


def find_intrinsic(name: str) -> Intrinsic | None:
    found = _OWN.get(name) or ADDED.items.get(name)
    return found or x86_amx.tile_intrinsic(name) or arm_tiles.vector_tile(name)


def intrinsic_names() -> tuple[str, ...]:
    return (*_OWN, *ADDED.items)


def intrinsics_of(target: Target) -> tuple[Intrinsic, ...]:
    """Those that `target` has the features for."""
    return tuple(i for i in (*INTRINSICS, *ADDED.items.values()) if i.features <= target.features)


def byte_products(target: Target) -> frozenset[tuple[DType, DType]]:
    """The types of bytes whose products `target` has an instruction to sum up in i32."""
    found = set[tuple[DType, DType]]()
    for i in intrinsics_of(target):
        total, *factors = i.meaning.params
        is_group = len(factors) == 2 and factors[1].shape == (*total.shape, *factors[0].shape)
        if any(o.within is not None for o in i.operands):
            continue
        if is_group and total.dtype is DType.I32 and all(f.dtype.bytes == 1 for f in factors):
            found.add((factors[0].dtype, factors[1].dtype))
    return frozenset(found)


class BoundedBytes(NamedTuple):
    """Bytes whose products are summed up sooner where the right ones lie within bounds."""

    left: DType
    right: DType
    within: tuple[int, int]


def bounded_byte_products(target: Target) -> tuple[BoundedBytes, ...]:
    """Those that `target` has an instruction for, which is no quicker without bounds."""
    found: dict[BoundedBytes, None] = {}
    for i in intrinsics_of(target):
        within = next((o.within for o in i.operands if o.within is not None), None)
        if within is not None:
            _, left, right = (p.dtype for p in i.meaning.params)
            found[BoundedBytes(left, right, within)] = None
    return () if byte_products(target) else tuple(found)


def sums_shorts(target: Target) -> bool:
    """Has `target` an instruction that sums up products of i16 in i32?"""
    found = ([p.dtype for p in i.meaning.params] for i in intrinsics_of(target))
    return [DType.I32, DType.I16, DType.I16] in found


def block_products(target: Target) -> Mapping[int, tuple[int, DType]]:
    """The bits of the weights whose products with signed bytes `target` has an instruction to sum up in i32, four bytes
    of weights in each lane: with its lanes, and the type of the bytes. The widest, and of unsigned ones if it has both.
    """
    found: dict[int, tuple[int, DType]] = {}
    for i in intrinsics_of(target):
        total, *factors = i.meaning.params
        *rows, weights = factors
        is_dot = (
            total.dtype is DType.I32 and len(total.shape) == 1 and weights.shape[-2:] == (*total.shape, 4)
        )
        if i.emitter is None or not is_dot or any(r.dtype is not DType.I8 for r in rows):
            continue
        bits = 8 // len(rows)
        widest = max(found.get(bits, (0, DType.I8)), (total.shape[0], weights.dtype), key=_width)
        found[bits] = widest
    return found


def _width(found: tuple[int, DType]) -> tuple[int, bool]:
    lanes, dtype = found
    return lanes, dtype is DType.U8
