"""Targets by name. A new one is a line here; a package of somebody else's registers its own."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tilewright.support.errors import UserError
from tilewright.support.extensions import Additions
from tilewright.target.target import (
    AMX,
    AVX2,
    AVX512,
    AVX512_VNNI,
    AVX_VNNI,
    AVX_VNNI_INT8,
    BASELINE,
    Target,
    native,
)

MakeTarget: TypeAlias = Callable[[], Target]

TARGETS: Mapping[str, MakeTarget] = {
    "native": native,
    "x86-64": lambda: BASELINE,  # any
    "x86-64-v3": lambda: AVX2,  # with AVX2 and FMA
    "x86-64-v4": lambda: AVX512,  # and AVX-512
    # With instructions for bytes, which only some processors of a level have.
    "x86-64-v3+avxvnni": lambda: AVX_VNNI,
    "x86-64-v3+avxvnniint8": lambda: AVX_VNNI_INT8,
    "x86-64-v4+avx512vnni": lambda: AVX512_VNNI,
    "x86-64-v4+amx": lambda: AMX,
}
ADDED: Additions[MakeTarget] = Additions("target")


def register_target(name: str, make: MakeTarget) -> None:
    """Make a target of another package known by name; `make` is called whenever it is asked for."""
    ADDED.add({name: make}, TARGETS)


def resolve_target(target: str | Target) -> Target:
    """A target by its name (those in `TARGETS`, and registered ones), or a Target itself."""
    if isinstance(target, Target):
        return target
    known = {**TARGETS, **ADDED.items}
    if target not in known:
        raise UserError(f"unknown target {target!r}", hint=f"one of {', '.join(known)}")
    return known[target]()
