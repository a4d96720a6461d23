"""Sampling steps: the places of a trace where a search may choose.

A sampling step carries its decision as a field and does what was decided, through ordinary steps. So a trace with
decisions is a value like any other: it prints, is stored, and replays to the same program. A search changes nothing but
decisions (`schedule/decisions.py` draws and redraws them). A step without a decision stands for all of them and is
refused when applied.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.schedule.step import Step
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Module

SampledValue: TypeAlias = int | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SamplingStep(Step):
    """A step with a field `decision`, which is None as long as it is open."""

    @abstractmethod
    def choices(self, module: Module) -> tuple[SampledValue, ...]:
        """All decisions with which the step applies to `module`, in a fixed order; ScheduleError if there is none."""

    @abstractmethod
    def as_steps(self, module: Module) -> tuple[Step, ...] | None:
        """The ordinary steps that do what was decided; None while the decision is open. ScheduleError if the step does
        not offer this decision here.
        """

    def apply(self, module: Module) -> Module:
        try:
            steps = self.as_steps(module)
            if steps is None:
                raise ScheduleError(
                    "nothing is decided",
                    hint="draw the open decisions of a trace with decide(module, trace, rng)",
                )
            for step in steps:
                module = step.apply(module)
        except ScheduleError as e:
            if e.message.startswith(str(self)):
                raise
            raise ScheduleError(f"{self}: {e.message}", where=e.where, hint=e.hint) from None
        return module
