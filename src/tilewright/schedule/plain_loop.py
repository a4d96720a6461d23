"""Loops that a step may take apart: serial ones that nobody has remarked on.

A kind or an annotation is a decision about the loop as it is; its parts would not be what was decided about.
"""

from tilewright.schedule.excerpt import step_refusal
from tilewright.tir.func import Func
from tilewright.tir.stmt import For, LoopKind


def check_plain(func: Func, loop: For, verb: str) -> None:
    """`verb` is what the step does to the loop, for the hint."""
    name = loop.var.name
    if loop.kind is not LoopKind.SERIAL:
        raise step_refusal(func, loop, f"{name} is {loop.kind.value}", hint=f"{verb} loops before that")
    if loop.annotations:
        key = loop.annotations[0][0]
        raise step_refusal(
            func,
            loop,
            f"{name} has the annotation {key!r}",
            hint=f"{verb} loops before that, or take it away: Annotate({name!r}, {key!r}, None)",
        )
