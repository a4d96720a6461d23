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

from tilewright.ir.expr import Scope
from tilewright.ir.layout import Layout
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    AddUnitLoop,
    Annotate,
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    DecomposeReduction,
    Distribute,
    DropUnitIters,
    FoldPadding,
    Fuse,
    FuseIters,
    IterateOver,
    LoopPartition,
    Merge,
    Parallel,
    Reindex,
    Reorder,
    ReverseComputeAt,
    ReverseComputeInline,
    Rfactor,
    SampleCategorical,
    SampleComputeLocation,
    SamplePerfectTile,
    SetScope,
    Split,
    Tensorize,
    TransformLayout,
    Unroll,
    Vectorize,
)
from tilewright.schedule.trace import Trace, print_trace
from tilewright.tir.func import Module
from tilewright.tir.stmt import AnnotationValue

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

    def distribute(self, loop: str) -> None:
        self.apply(Distribute(loop))

    def merge(self, *loops: str) -> None:
        """The first loop keeps its name."""
        self.apply(Merge(loops))

    def add_unit_loop(self, block: str) -> str:
        return self.apply(AddUnitLoop(block)).loop

    def parallel(self, loop: str) -> None:
        self.apply(Parallel(loop))

    def vectorize(self, loop: str) -> None:
        self.apply(Vectorize(loop))

    def unroll(self, loop: str) -> None:
        self.apply(Unroll(loop))

    def bind(self, loop: str, axis: str) -> None:
        self.apply(Bind(loop, axis))

    def annotate(self, target: str, key: str, value: AnnotationValue | None) -> None:
        """`target` is a loop or a block; None takes the annotation away."""
        self.apply(Annotate(target, key, value))

    # -------------------------------------------------------------------------------------------------- reductions

    def decompose_reduction(self, block: str, loop: str) -> str:
        """Returns the new init block."""
        return self.apply(DecomposeReduction(block, loop)).name

    def rfactor(self, block: str, loop: str) -> str:
        """Returns the new block with the partial results."""
        return self.apply(Rfactor(block, loop)).name

    # ----------------------------------------------------------------------------------------- where a block runs

    def compute_at(self, block: str, loop: str) -> None:
        self.apply(ComputeAt(block, loop))

    def reverse_compute_at(self, block: str, loop: str) -> None:
        self.apply(ReverseComputeAt(block, loop))

    def compute_inline(self, block: str) -> None:
        self.apply(ComputeInline(block))

    def reverse_compute_inline(self, block: str) -> None:
        self.apply(ReverseComputeInline(block))

    # -------------------------------------------------------------------------- what it runs over, and its buffers

    def fuse_iters(self, block: str, iters: Sequence[str]) -> str:
        """Returns the new iterator."""
        return self.apply(FuseIters(block, tuple(iters))).iter

    def drop_unit_iters(self, block: str) -> None:
        self.apply(DropUnitIters(block))

    def iterate_over(self, block: str, buffer: str) -> None:
        self.apply(IterateOver(block, buffer))

    def reindex(self, block: str, buffer: str, iters: Sequence[str]) -> str:
        """Returns the block that makes the copy."""
        return self.apply(Reindex(block, buffer, tuple(iters))).copy

    def cache_read(self, block: str, buffer: str, scope: Scope) -> str:
        """Returns the block that makes the copy."""
        return self.apply(CacheRead(block, buffer, scope)).copy

    def cache_write(self, block: str, buffer: str, scope: Scope) -> str:
        """Returns the block that copies back."""
        return self.apply(CacheWrite(block, buffer, scope)).copy

    def set_scope(self, buffer: str, scope: Scope) -> None:
        self.apply(SetScope(buffer, scope))

    def fold_padding(self, block: str) -> None:
        self.apply(FoldPadding(block))

    def transform_layout(self, buffer: str, layout: Layout) -> None:
        self.apply(TransformLayout(buffer, layout))

    # ---------------------------------------------------------------------------------------- tensor instructions

    def tensorize(self, at: str, intrinsic: str) -> None:
        self.apply(Tensorize(at, intrinsic))

    # -------------------------------------------------------------------------------------- decisions of a search

    def sample_perfect_tile(
        self, loop: str, parts: int, max_innermost: int, decision: Sequence[int]
    ) -> tuple[str, ...]:
        return self.apply(SamplePerfectTile(loop, parts, max_innermost, tuple(decision))).names

    def sample_categorical(self, options: Sequence[Sequence[Step]], decision: int) -> None:
        self.apply(SampleCategorical(tuple(tuple(o) for o in options), decision))

    def sample_compute_location(self, block: str, decision: str) -> None:
        self.apply(SampleComputeLocation(block, decision))
