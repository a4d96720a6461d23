"""The table of tensor intrinsics: all families of all targets. Names are unique over all of them.

A new family is a module in this package and a line here (docs/adding-an-intrinsic.md); nothing else knows the list.
A package of somebody else's registers its own.
"""

from functools import lru_cache
from typing import TypeAlias

from tilewright.support.errors import UserError
from tilewright.target import arm, x86
from tilewright.target.intrinsic import Intrinsic
from tilewright.target.target import Target

Family: TypeAlias = tuple[Intrinsic, ...]

FAMILIES: tuple[Family, ...] = (
    x86.F32_TILES,
    x86.DOT_PRODUCTS,
    arm.F32_TILES,
    arm.DOT_PRODUCTS,
    arm.MATRIX_PRODUCTS,
)
registered: list[Family] = []  # of other packages


def register_family(family: Family) -> None:
    """Make a family known to this process; again does nothing. UserError if a name is taken."""
    if family in _families():
        return
    taken = [i.name for i in family if find_intrinsic(i.name) is not None]
    if taken:
        raise UserError(f"there is an intrinsic {taken[0]!r} already", hint="begin names with the family's")
    registered.append(family)


def _families() -> tuple[Family, ...]:
    return (*FAMILIES, *registered)


@lru_cache(maxsize=4)
def _by_name(families: tuple[Family, ...]) -> dict[str, Intrinsic]:
    table = {i.name: i for family in families for i in family}
    assert len(table) == sum(map(len, families)), "two intrinsics have one name"
    return table


def find_intrinsic(name: str) -> Intrinsic | None:
    return _by_name(_families()).get(name)


def intrinsic_names() -> tuple[str, ...]:
    return tuple(_by_name(_families()))


def intrinsics_of(target: Target) -> tuple[Intrinsic, ...]:
    """Those that `target` has the features for."""
    return tuple(i for i in _by_name(_families()).values() if i.features <= target.features)
