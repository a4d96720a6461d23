"""Targets by name."""

from collections.abc import Callable

from tilewright.support.errors import UserError
from tilewright.target.target import AVX2, BASELINE, Target, native


def resolve_target(target: str | Target) -> Target:
    """ "native", "x86-64" (any), "x86-64-v3" (AVX2 and FMA), or a Target itself."""
    if isinstance(target, Target):
        return target
    known: dict[str, Callable[[], Target]] = {
        "native": native,
        "x86-64": lambda: BASELINE,
        "x86-64-v3": lambda: AVX2,
    }
    if target not in known:
        raise UserError(f"unknown target {target!r}", hint=f"one of {', '.join(known)}")
    return known[target]()
