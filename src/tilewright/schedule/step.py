"""A schedule step: a frozen value with `apply(module) -> module`.

A step checks its own preconditions and raises `ScheduleError` (with the offending IR and the violated condition)
before it changes anything; Modules are immutable, so a failed step leaves the program as it was. Steps name loops
and blocks by their unique names, print as they are written in Python, and can be stored and replayed. New names
are derived from old ones, so a trace replays to the same names.

Almost all steps rewrite one Func: they extend `BlockStep`, `LoopStep`, or `FuncStep` and say which one through
`anchor`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import cast

from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, Module


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """A change of a Module that keeps its meaning."""

    @abstractmethod
    def apply(self, module: Module) -> Module: ...

    def broken_promise(self, before: Func, after: Func) -> str | None:
        """What is wrong with a Func that it made of another, beyond the rules of all programs: debug mode asks."""
        return None

    def __str__(self) -> str:
        return value_text(self)


@dataclass(frozen=True, slots=True)
class FuncStep(Step):
    """A step that rewrites the one Func which holds the loop or block `anchor()`."""

    @abstractmethod
    def anchor(self) -> str:
        """The name of a loop or block in the Func."""

    @abstractmethod
    def rewrite(self, func: Func) -> Func:
        """The Func after this step. A refusal need not name the step: `apply` puts its text in front."""

    def apply(self, module: Module) -> Module:
        name = self.anchor()
        func = module.func_of_loop(name) or module.func_of_block(name)
        if func is None:
            raise ScheduleError(
                f"{self}: no loop or block is named {name!r}", hint="print the module to see its names"
            )
        try:
            return module.with_func(self.rewrite(func))
        except ScheduleError as e:
            if e.message.startswith(str(self)):
                raise
            raise ScheduleError(f"{self}: {e.message}", where=e.where, hint=e.hint) from None


@dataclass(frozen=True, slots=True)
class BlockStep(FuncStep):
    """A step on the Func of `block`, which comes first among its fields."""

    block: str

    def anchor(self) -> str:
        return self.block


@dataclass(frozen=True, slots=True)
class LoopStep(FuncStep):
    """A step on the Func of `loop`, which comes first among its fields."""

    loop: str

    def anchor(self) -> str:
        return self.loop


def value_text(value: object) -> str:
    """A step or one of its fields, as it is written in Python."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, tuple):
        items = [value_text(v) for v in cast("tuple[object, ...]", value)]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if is_dataclass(value):
        args = ", ".join(f"{f.name}={value_text(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({args})"
    return repr(value)
