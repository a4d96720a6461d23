"""A Module while it is being scheduled, and the trace that led here.

    s = Schedule(module)
    i0, i1 = s.split("C_i", (None, 6))
    s.reorder(i0, "C_k", i1)
    s.parallel(i0)
    print(s)                # the trace
    s.module                # the program

There is a method per step, which returns the names that the step makes; `apply` takes any step. A refused step raises
and changes nothing, so it can be caught and another tried.
"""

from collections.abc import Sequence
from typing import TypeVar

from tilewright.schedule.step import Step
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Parallel, Unroll, Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.rfactor import Rfactor
from tilewright.schedule.steps.split import Split
from tilewright.schedule.trace import Trace, print_trace
from tilewright.tir.func import Module

S = TypeVar("S", bound=Step)


class Schedule:
    """Holds the current `module` and its `trace`; both are immutable values, so keep them to come back to."""

    def __init__(self, module: Module, trace: Trace = ()) -> None:
        self.module, self.trace = module, trace

    def apply(self, step: S) -> S:
        """Take the step; returns it, for the names it makes."""
        self.module = step.apply(self.module)
        self.trace = (*self.trace, step)
        return step

    def __str__(self) -> str:
        return print_trace(self.trace)

    # ------------------------------------------------------------------------------------------------------ loops

    def split(self, loop: str, factors: Sequence[int | None]) -> tuple[str, ...]:
        return self.apply(Split(loop, tuple(factors))).names

    def fuse(self, *loops: str) -> str:
        return self.apply(Fuse(loops)).name

    def reorder(self, *loops: str) -> None:
        self.apply(Reorder(loops))

    def loop_partition(self, loop: str, points: Sequence[int]) -> tuple[str, ...]:
        return self.apply(LoopPartition(loop, tuple(points))).names

    def parallel(self, loop: str) -> None:
        self.apply(Parallel(loop))

    def vectorize(self, loop: str) -> None:
        self.apply(Vectorize(loop))

    def unroll(self, loop: str) -> None:
        self.apply(Unroll(loop))

    # -------------------------------------------------------------------------------------------------- reductions

    def decompose_reduction(self, block: str, loop: str) -> str:
        return self.apply(DecomposeReduction(block, loop)).name

    def rfactor(self, block: str, loop: str) -> str:
        return self.apply(Rfactor(block, loop)).name
