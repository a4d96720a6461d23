"""A schedule step: a frozen value with `apply(module) -> module`.

A step checks its own preconditions and raises `ScheduleError` (with the offending IR and the violated condition)
before it changes anything; Modules are immutable, so a failed step leaves the program as it was. Steps name loops
and blocks by their unique names, print as they are written in Python, and can be stored and replayed. New names
are derived from old ones, so a trace replays to the same names.

Almost all steps rewrite one Func: they extend `FuncStep` and say which one through `anchor`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func, Module


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """A change of a Module that keeps its meaning."""

    @abstractmethod
    def apply(self, module: Module) -> Module: ...

    def __str__(self) -> str:
        args = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"{type(self).__name__}({args})"


@dataclass(frozen=True, slots=True)
class FuncStep(Step):
    """A step that rewrites the one Func which holds the loop or block `anchor()`."""

    @abstractmethod
    def anchor(self) -> str:
        """The name of a loop or block in the Func."""

    @abstractmethod
    def rewrite(self, func: Func) -> Func: ...

    def apply(self, module: Module) -> Module:
        name = self.anchor()
        func = module.func_of_loop(name) or module.func_of_block(name)
        if func is None:
            raise ScheduleError(
                f"{self}: no loop or block is named {name!r}", hint="print the module to see its names"
            )
        return module.with_func(self.rewrite(func))
