"""A program while it is being scheduled, and the trace that led here.

    s = Schedule(func)
    i0, i1 = s.split("C_i", (None, 6))
    s.reorder(i0, "C_k", i1)
    s.parallel(i0)
    s.show()                # prints the program as it is now; s.show(step=1): as it was after the first step
    s.func                  # the program
    print(s)                # the trace: what was done, one step a line
    s.save("gemm.trace")    # and Schedule.load(func, "gemm.trace") does it again
    s.undo()                # takes the last step back

`apply` takes any step; ours have methods too, which return the names that the step makes. A refused step raises a
`ScheduleError` that shows the loops and marks the place, and changes nothing: it can be caught and another tried.
Several steps that make sense only together go into a transaction:

    try:
        with s.transaction():
            s.split("C_j", (None, 8))
            s.vectorize("C_j_1")
    except ScheduleError:
        ...                 # neither of them was taken
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scope, free_vars
from tilewright.ir.layout import Layout
from tilewright.schedule.debug import Watch, is_debug_mode
from tilewright.schedule.excerpt import outline
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    AddUnitLoop,
    Annotate,
    Attach,
    Bind,
    Blockize,
    CacheRead,
    CacheWrite,
    Coarsen,
    ComputeAt,
    ComputeInline,
    DecomposePadding,
    DecomposeReduction,
    Distribute,
    DropUnitIters,
    FillBorder,
    FoldPadding,
    Fuse,
    FuseIters,
    IterateOver,
    JoinFuncs,
    LoopPartition,
    Merge,
    PadEinsum,
    Parallel,
    Reindex,
    Reorder,
    ReverseComputeAt,
    ReverseComputeInline,
    Rfactor,
    RollingBuffer,
    RollingUpdate,
    SampleCategorical,
    SampleComputeLocation,
    SamplePerfectTile,
    SetScope,
    Split,
    Stage,
    StoreAt,
    Tensorize,
    TransformBlockLayout,
    TransformLayout,
    Unroll,
    Vectorize,
)
from tilewright.schedule.trace import Trace, print_trace
from tilewright.schedule.trace_file import load_trace, save_trace
from tilewright.support.errors import ScheduleError, UserError
from tilewright.tir.func import Func, Module, single
from tilewright.tir.stmt import AnnotationValue, For, blocks

S = TypeVar("S", bound=Step)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _State:
    """A module, and how it came about: by a `step` from the state `before`, or (neither) it was given."""

    module: Module
    step: Step | None = None
    before: "_State | None" = None


class Schedule:
    """The current `module` and its `trace`.

    `trace` may be given for a module that was scheduled before; those steps cannot be shown or taken back. `debug`
    checks everything after every step (`debug.py`); None: if the environment asks for it.
    """

    def __init__(self, program: Func | Module, trace: Trace = (), *, debug: bool | None = None) -> None:
        self._given = trace
        # All there is to a schedule is one link of a chain, so going back to an earlier one forgets nothing.
        self._state = _State(single(program) if isinstance(program, Func) else program)
        self._watch = Watch() if (is_debug_mode() if debug is None else debug) else None

    @property
    def module(self) -> Module:
        """The program after the last step."""
        return self._state.module

    @property
    def trace(self) -> Trace:
        """The steps, from the first."""
        return (*self._given, *(s.step for s in self._states() if s.step is not None))

    def _states(self) -> list[_State]:
        """The given program, and the one after each step."""
        found = [self._state]
        while (before := found[-1].before) is not None:
            found.append(before)
        return found[::-1]

    @property
    def func(self) -> Func:
        """The only function of the module."""
        if len(self.module.funcs) != 1:
            names = ", ".join(f.name for f in self.module.funcs)
            raise UserError(
                f"the module has {len(self.module.funcs)} functions",
                hint=f"take one of them from `module`: {names}",
            )
        return self.module.funcs[0]

    def apply(self, step: S) -> S:
        """Take the step; returns it, since it has the names of what it made."""
        try:
            module = self._after(step)
        except ScheduleError as e:
            if e.where is not None:
                raise
            nests = "\n".join(outline(f) for f in self.module.funcs)
            raise ScheduleError(e.message, where=nests, hint=e.hint) from None
        if self._watch is not None:
            self._watch.check(step, self.module, module)
        self._state = _State(module, step, self._state)
        return step

    def _after(self, step: Step) -> Module:
        return step.apply(self.module)

    def undo(self) -> Step:
        """Take the last step back; returns it."""
        step, before = self._state.step, self._state.before
        if step is None or before is None:
            raise UserError("there is no step to take back")
        self._state = before
        return step

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Take all steps in here, or none: an exception takes them back on its way out."""
        state = self._state
        try:
            yield
        except BaseException:
            self._state = state
            raise

    def settled(self) -> "Schedule":
        """The same program and trace, without the programs in between: these take memory."""
        return Schedule(self.module, self.trace, debug=False)

    def show(self, step: int | None = None) -> None:
        """Print the program as it is after the last step, or after the first `step` steps (0: as given)."""
        print(self.at(step), end="")

    def at(self, step: int | None = None) -> Module | Func:
        """The program after the first `step` steps; the Func itself where the module has only one."""
        states, first = self._states(), len(self._given)
        last = first + len(states) - 1
        n = last if step is None else step
        if not first <= n <= last:
            raise UserError(f"there is no step {n}", hint=f"from {first} to {last}")
        module = states[n - first].module
        return module.funcs[0] if len(module.funcs) == 1 else module

    def __str__(self) -> str:
        return self.trace_text()

    def trace_text(self) -> str:
        """The steps, one a line; `parse_trace` reads them back."""
        return print_trace(self.trace)

    def save(self, path: str | Path) -> None:
        """Write the trace to a file."""
        save_trace(self.trace, path)

    @classmethod
    def load(cls, program: Func | Module, path: str | Path) -> Self:
        """Take the steps of a saved trace."""
        made = cls(program)
        for n, step in enumerate(load_trace(path), 1):
            try:
                made.apply(step)
            except ScheduleError as e:
                message = f"step {n} of {path} does not fit this program: {e.message}"
                raise ScheduleError(message, where=e.where, hint=e.hint) from None
        return made

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

    def coarsen(self, loop: str, grain: int) -> tuple[str, str]:
        return self.apply(Coarsen(loop, grain)).names

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

    def rolling_update(self, block: str, size: int, skip: bool = False) -> str:
        """Returns the loop over chunks."""
        return self.apply(RollingUpdate(block, size, skip)).loop

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

    def blockize(self, loop: str, suffix: str = "o") -> str:
        """Returns the new block, which is named after the one in the loop."""
        self.apply(Blockize(loop, suffix))
        return next(
            b.name
            for f in self.module.funcs
            for b in blocks(f.body)
            if isinstance(b.body, For) and b.body.var.name == loop
        )

    def transform_block_layout(self, block: str, layout: Layout) -> tuple[str, ...]:
        """Returns the new loops."""
        self.apply(TransformBlockLayout(block, layout))
        new = next(b for f in self.module.funcs for b in blocks(f.body) if b.name == block)
        return tuple(v.name for b in new.bindings for v in free_vars(b))

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

    def stage(
        self, block: str, position: Sequence[int], iters: Sequence[str], dtype: DType | None = None
    ) -> str:
        """Returns the block that computes the operand."""
        return self.apply(Stage(block, tuple(position), tuple(iters), dtype)).copy

    def cache_read(self, block: str, buffer: str, scope: Scope) -> str:
        """Returns the block that makes the copy."""
        return self.apply(CacheRead(block, buffer, scope)).copy

    def cache_write(self, block: str, buffer: str, scope: Scope) -> str:
        """Returns the block that copies back."""
        return self.apply(CacheWrite(block, buffer, scope)).copy

    def set_scope(self, buffer: str, scope: Scope) -> None:
        self.apply(SetScope(buffer, scope))

    def fold_padding(self, block: str, others: Sequence[str] = ()) -> None:
        self.apply(FoldPadding(block, tuple(others)))

    def store_at(self, block: str, buffer: str) -> None:
        self.apply(StoreAt(block, buffer))

    def attach(self, guest: str, host: str, dim: int, row: int | None = None) -> None:
        self.apply(Attach(guest, host, dim, row))

    def pad_einsum(self, block: str, padding: Sequence[int]) -> None:
        self.apply(PadEinsum(block, tuple(padding)))

    def decompose_padding(self, block: str, loop: str) -> str:
        """Returns the block that fills."""
        return self.apply(DecomposePadding(block, loop)).name

    def fill_border(self, block: str, loop: str) -> None:
        self.apply(FillBorder(block, loop))

    def rolling_buffer(self, block: str, buffer: str) -> str:
        """Returns the block that computes the first rows."""
        return self.apply(RollingBuffer(block, buffer)).head

    def transform_layout(self, buffer: str, layout: Layout) -> None:
        self.apply(TransformLayout(buffer, layout))

    def join_funcs(self, first: str, second: str) -> str:
        """Returns the Func that computes both."""
        return self.apply(JoinFuncs(first, second)).name

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
