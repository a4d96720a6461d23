"""The table of tensor intrinsics: all families of all targets. Names are unique."""

from functools import lru_cache

from tilewright.target import arm, x86
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.target import Target

FAMILIES: tuple[tuple[Intrinsic, ...], ...] = (
    x86.F32_TILES,
    x86.DOT_PRODUCTS,
    arm.F32_TILES,
    arm.DOT_PRODUCTS,
    arm.MATRIX_PRODUCTS,
)


@lru_cache(maxsize=1)
def _by_name() -> dict[str, Intrinsic]:
    table = {i.name: i for family in FAMILIES for i in family}
    assert len(table) == sum(map(len, FAMILIES)), "two intrinsics have one name"
    return table


def find_intrinsic(name: str) -> Intrinsic | None:
    return _by_name().get(name)


def intrinsic_names() -> tuple[str, ...]:
    return tuple(_by_name())


def intrinsics_of(target: Target) -> tuple[Intrinsic, ...]:
    """Those that `target` has the features for."""
    return tuple(i for i in _by_name().values() if i.features <= target.features)
