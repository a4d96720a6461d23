"""sample_compute_location: where a block is computed is a decision.

    for i: T[i] = f(A[i])                 SampleComputeLocation("T", "j")           for j:
    for j: D[j] = T[j] + 1                          ─────>                              for T_0 in range(1): T[j] = f(…)
                                                                                        D[j] = T[j] + 1

A decision is the name of a loop, and does what ComputeAt does; or "inline", which does what ComputeInline does; or
"root", which leaves the block where it is. The choices are "root", "inline" if that is legal, and every loop for
which ComputeAt is, in program order. (A loop that is itself called `root` or `inline` is not among them.)
"""

from dataclasses import dataclass, replace

from tilewright.schedule.find import find_block, loops_above
from tilewright.schedule.sampling import SamplingStep
from tilewright.schedule.step import Step
from tilewright.schedule.steps.compute_at import ComputeAt
from tilewright.schedule.steps.compute_inline import ComputeInline
from tilewright.support.errors import ScheduleError
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.func import Func, Module

ROOT, INLINE = "root", "inline"


@dataclass(frozen=True, slots=True)
class SampleComputeLocation(SamplingStep):
    block: str
    decision: str | None = None

    def choices(self, module: Module) -> tuple[str, ...]:
        legal = [ROOT]
        for place in (INLINE, *_loops_around_consumers(self._func(module), self.block)):
            try:
                replace(self, decision=place).apply(module)
                legal.append(place)
            except ScheduleError:  # not a choice, then
                continue
        return tuple(legal)

    def as_steps(self, module: Module) -> tuple[Step, ...] | None:
        self._func(module)  # the block must be there, also to be left where it is
        match self.decision:
            case None:
                return None
            case "root":
                return ()
            case "inline":
                return (ComputeInline(self.block),)
            case loop:
                return (ComputeAt(self.block, loop),)

    def _func(self, module: Module) -> Func:
        func = module.func_of_block(self.block)
        if func is None:
            raise ScheduleError(
                f"{self}: no block is named {self.block!r}", hint="print the module to see its names"
            )
        return func


def _loops_around_consumers(func: Func, name: str) -> list[str]:
    """The loops around all readers of what the block writes, outermost first: no other can take it."""
    block = find_block(func, name)
    shared: list[str] | None = None
    for consumer in Dataflow(func).consumers(block):
        above = [n.var.name for n in loops_above(func, consumer) if n.var.name not in (ROOT, INLINE)]
        shared = above if shared is None else [n for n in shared if n in above]
    return shared or []
