"""sample_categorical: one of several ways to go on; which one is a decision.

    SampleCategorical(options=((), (Unroll("k_1"),)), decision=1)     does     Unroll("k_1")

An option is a tuple of steps, taken in order; the empty one leaves the program as it is. The choices are the options
that apply to the program at this point. Options hold no sampling steps: all decisions of a trace are those of its own
steps.
"""

from dataclasses import dataclass, replace

from tilewright.schedule.sampling import SamplingStep
from tilewright.schedule.step import Step
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Module


@dataclass(frozen=True, slots=True)
class SampleCategorical(SamplingStep):
    options: tuple[tuple[Step, ...], ...]
    decision: int | None = None

    def choices(self, module: Module) -> tuple[int, ...]:
        legal: list[int] = []
        refused: ScheduleError | None = None
        for n in range(len(self.options)):
            try:
                replace(self, decision=n).apply(module)
                legal.append(n)
            except ScheduleError as e:
                refused = refused or e
        if not legal:
            raise refused or ScheduleError(f"{self}: there are no options")
        return tuple(legal)

    def as_steps(self, module: Module) -> tuple[Step, ...] | None:
        nested = next((s for option in self.options for s in option if isinstance(s, SamplingStep)), None)
        if nested is not None:
            raise ScheduleError(
                f"the option with {nested} has a decision of its own",
                hint="make it a step of the trace, before or after this one",
            )
        if self.decision is None:
            return None
        if not 0 <= self.decision < len(self.options):
            raise ScheduleError(f"there is no option {self.decision}; there are {len(self.options)}")
        return self.options[self.decision]
