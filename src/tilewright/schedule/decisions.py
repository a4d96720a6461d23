"""A trace with sampling steps as a space: drawing decisions.

Which decisions a sampling step has depends on the program it meets, and so on all decisions before it. And a decision
that is legal where it is taken may lead to a step further on that is refused: then the last decisions are taken
otherwise, as long as `PATIENCE` lasts. All is deterministic, given the generator.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from tilewright.schedule.sampling import SampledValue
from tilewright.schedule.steps.sample_categorical import SampleCategorical
from tilewright.schedule.steps.sample_compute_location import SampleComputeLocation
from tilewright.schedule.steps.sample_perfect_tile import SamplePerfectTile
from tilewright.schedule.trace import Trace
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Module

T = TypeVar("T")

OpenDecision: TypeAlias = SamplePerfectTile | SampleCategorical | SampleComputeLocation

# After this many refusals a draw is given up. Spaces whose decisions are mostly independent need a few.
PATIENCE = 200

OfferChoices: TypeAlias = Callable[
    [int, OpenDecision, Module], Sequence[SampledValue]
]  # for step n of a trace, best first


def choices(module: Module, step: OpenDecision) -> tuple[SampledValue, ...]:
    """All decisions with which `step` applies to `module`, in a fixed order; ScheduleError if there is none."""
    return step.choices(module)


def sampling_steps(trace: Trace) -> tuple[int, ...]:
    """Which steps of a trace carry decisions."""
    return tuple(n for n, step in enumerate(trace) if isinstance(step, OpenDecision))


class DrawnTrace(NamedTuple):
    """A decided trace, and for each step (by its number) that was open, the choices that it had."""

    trace: Trace
    choices: Mapping[int, tuple[SampledValue, ...]]


def draw_trace(module: Module, trace: Trace, rng: np.random.Generator) -> DrawnTrace:
    """The trace with all open decisions drawn, each evenly from those that are legal when its step is reached; it
    applies to `module`. Decisions that are taken already stay. ScheduleError if no way through was found.
    """
    had: dict[int, tuple[SampledValue, ...]] = {}

    def offer(n: int, step: OpenDecision, at: Module) -> Sequence[SampledValue]:
        if step.decision is not None:
            return (step.decision,)
        had[n] = step.choices(at)  # on another way here it was perhaps something else: the last way counts
        return _shuffled(had[n], rng)

    return DrawnTrace(_complete(module, trace, 0, offer, _Patience()), had)


# ------------------------------------------------------------------------------------------------------- ways through


class _Patience:
    def __init__(self) -> None:
        self.left = PATIENCE


def _complete(module: Module, trace: Trace, start: int, offer: OfferChoices, patience: _Patience) -> Trace:
    """The steps from `start` on, decided by the first of the offers that lead to the end; `module` is what the steps
    before made.
    """
    for n in range(start, len(trace)):
        step = trace[n]
        if not isinstance(step, OpenDecision):
            module = step.apply(module)
            continue
        refused = ScheduleError(f"{step}: no other decision is legal")
        for decision in offer(n, step, module):
            decided = replace(step, decision=decision)
            try:
                rest = _complete(decided.apply(module), trace, n + 1, offer, patience)
                return (*trace[start:n], decided, *rest)
            except ScheduleError as e:
                refused = e
                patience.left -= 1
                if patience.left <= 0:
                    break
        raise refused
    return trace[start:]


def _shuffled(items: Sequence[T], rng: np.random.Generator) -> list[T]:
    return [items[int(n)] for n in rng.permutation(len(items))]
