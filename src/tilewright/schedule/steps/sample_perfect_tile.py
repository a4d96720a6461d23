"""sample_perfect_tile: a loop becomes a nest of tiles that divide it; which ones is a decision.

    for i in range(20):    SamplePerfectTile("i", 3, 4, decision=(5, 1, 4))     for i_0 in range(5):
        block(vi = i)                      ─────>                                   for i_1 in range(1):
                                                                                        for i_2 in range(4):
                                                                                            block(vi = …)

The product of the decided factors is the extent and the innermost is at most `max_innermost`, so no predicate is
needed. The loops are named as those of Split. The choices are all such tuples of `parts` factors.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.schedule.find import find_loop
from tilewright.schedule.sampling import SamplingStep
from tilewright.schedule.step import Step
from tilewright.schedule.steps.split import Split
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Module

_MAX_PARTS = 16  # more levels than any memory has; the number of choices grows with its power


@dataclass(frozen=True, slots=True)
class SamplePerfectTile(SamplingStep):
    loop: str
    parts: int
    max_innermost: int
    decision: tuple[int, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The new loops, outermost first."""
        return tuple(f"{self.loop}_{n}" for n in range(self.parts))

    def choices(self, module: Module) -> tuple[tuple[int, ...], ...]:
        extent = self._extent(module)
        if not 1 <= self.parts <= _MAX_PARTS:
            raise ScheduleError(f"{self}: a loop is tiled into 1 to {_MAX_PARTS} parts, not {self.parts}")
        found = tuple(f for f in factorizations(extent, self.parts) if f[-1] <= self.max_innermost)
        if not found:
            raise ScheduleError(
                f"{self}: no {self.parts} factors of {extent} have an innermost of at most {self.max_innermost}"
            )
        # Whether the loop may be split does not depend on the factors: one tells about all.
        replace(self, decision=found[0]).apply(module)
        return found

    def as_steps(self, module: Module) -> tuple[Step, ...] | None:
        if self.decision is None:
            return None
        if len(self.decision) != self.parts:
            raise ScheduleError(f"{len(self.decision)} factors are decided, for {self.parts} parts")
        if self.decision[-1] > self.max_innermost:
            raise ScheduleError(f"the innermost factor {self.decision[-1]} is more than {self.max_innermost}")
        extent, product = self._extent(module), math.prod(self.decision)
        if product != extent:
            raise ScheduleError(
                f"the product of the factors is {product}, the extent of {self.loop} is {extent}",
                hint="to tile a loop by what does not divide it: Split, after LoopPartition if the tail matters",
            )
        return (Split(self.loop, self.decision),)

    def _extent(self, module: Module) -> int:
        func = module.func_of_loop(self.loop)
        if func is None:
            raise ScheduleError(
                f"{self}: no loop is named {self.loop!r}", hint="print the module to see its names"
            )
        return find_loop(func, self.loop).extent


@lru_cache(maxsize=1024)
def factorizations(extent: int, parts: int) -> tuple[tuple[int, ...], ...]:
    """All tuples of `parts` positive factors whose product is `extent`, by rising first factors."""
    if parts == 1:
        return ((extent,),)
    firsts = [d for d in range(1, extent + 1) if extent % d == 0]
    return tuple((first, *rest) for first in firsts for rest in factorizations(extent // first, parts - 1))
