"""Programs: steps that run in order, of which some choose by a condition what runs next.

There is one tree, generic over its leaves and over what names a condition. A model's program is, one after the other:

| of | leaves | a condition is |
|---|---|---|
| `tir.Module` | calls of Funcs and of external code | a Buffer |
| the compiler (`driver/assembly.py`) | calls of kernels and of external code | a Buffer |
| an `Artifact` | segments of kernel calls, external calls | a Slot |
| a plan of the runtime | prepared segments, external calls | a Slot |
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, cast

L = TypeVar("L")  # a leaf
C = TypeVar("C")  # a condition: one bool
L2 = TypeVar("L2")
C2 = TypeVar("C2")


@dataclass(frozen=True, slots=True)
class Branch(Generic[L, C]):
    """Runs `then` if the condition holds when it is reached, else `otherwise`."""

    cond: C
    then: "ProgramTree[L, C]"
    otherwise: "ProgramTree[L, C]"


@dataclass(frozen=True, slots=True)
class While(Generic[L, C]):
    """Runs `body` as long as the condition holds, which the body writes; it may not hold at the start."""

    cond: C
    body: "ProgramTree[L, C]"


ProgramStep: TypeAlias = L | Branch[L, C] | While[L, C]
ProgramTree: TypeAlias = tuple[ProgramStep[L, C], ...]


def leaves(program: ProgramTree[L, C]) -> Iterator[L]:
    """In program order; those of branches and loops once."""
    for step in program:
        if isinstance(step, Branch | While):
            for part in _parts(cast("Branch[L, C] | While[L, C]", step)):
                yield from leaves(part)
        else:
            yield step


def conditions(program: ProgramTree[L, C]) -> Iterator[C]:
    for step in program:
        if isinstance(step, Branch | While):
            choice = cast("Branch[L, C] | While[L, C]", step)
            yield choice.cond
            for part in _parts(choice):
                yield from conditions(part)


def is_sequence(program: ProgramTree[L, C]) -> bool:
    """Has it neither branches nor loops?"""
    return {Branch, While}.isdisjoint(map(type, program))  # steps of schedules ask this of thousands of calls


def map_program(
    program: ProgramTree[L, C], run: Callable[[list[L]], Iterable[L2]], cond: Callable[[C], C2]
) -> ProgramTree[L2, C2]:
    """The program with other leaves and conditions. `run` is given all leaves that run one after the other, up to the
    next branch or loop, so it may also join or drop some.
    """
    if is_sequence(program):
        return tuple(run(list(cast("Sequence[L]", program)))) if program else ()
    out: list[ProgramStep[L2, C2]] = []
    pending: list[L] = []

    def end_run() -> None:
        if pending:
            out.extend(run(pending.copy()))
            pending.clear()

    for step in program:
        if isinstance(step, Branch | While):
            end_run()
            choice = cast("Branch[L, C] | While[L, C]", step)
            where = cond(choice.cond)
            parts = [map_program(p, run, cond) for p in _parts(choice)]
            out.append(Branch(where, *parts) if isinstance(choice, Branch) else While(where, *parts))
        else:
            pending.append(step)
    end_run()
    return tuple(out)


def _parts(step: Branch[L, C] | While[L, C]) -> tuple[ProgramTree[L, C], ...]:
    return (step.then, step.otherwise) if isinstance(step, Branch) else (step.body,)
