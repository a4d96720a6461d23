"""A target: any x86-64, with instructions in the order that a Core 2 likes."""

from dataclasses import replace

from tilewright.target.target import BASELINE, Target


def toy_target() -> Target:
    return replace(BASELINE, cpu="core2")
