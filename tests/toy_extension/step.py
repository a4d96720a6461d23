"""A step: a loop becomes two, of which the inner one has two iterations."""

from dataclasses import dataclass

from tilewright.schedule.step import FuncStep
from tilewright.schedule.steps import Split
from tilewright.tir.func import Func


@dataclass(frozen=True, slots=True)
class Halve(FuncStep):
    loop: str

    def anchor(self) -> str:
        return self.loop

    @property
    def names(self) -> tuple[str, ...]:
        return Split(self.loop, (None, 2)).names

    def rewrite(self, func: Func) -> Func:
        return Split(self.loop, (None, 2)).rewrite(func)
