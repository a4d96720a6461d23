"""annotate: a remark on a loop or a block.

    for i in range(8):             Annotate("i", "cost", 3)       for i in range(8, cost=3):
        C(vi = i)                        ─────>                       C(vi = i)

It means nothing to the program; whoever put it there may find it again: a search, a recipe, a tool. The value None
takes the remark away, any other replaces the one that there is. Values print and read back: strings, bools and finite
numbers.
"""

import math
from dataclasses import dataclass, replace

from tilewright.schedule.edit import replace_stmt
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block, find_loop
from tilewright.schedule.step import FuncStep
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.stmt import AnnotationValue, Block, For, blocks, loops


@dataclass(frozen=True, slots=True)
class Annotate(FuncStep):
    target: str  # a loop or a block
    key: str
    value: AnnotationValue | None

    def anchor(self) -> str:
        return self.target

    def rewrite(self, func: Func) -> Func:
        old = self._find(func)
        notes = dict(old.annotations)
        if not self.key:
            raise step_refusal(func, old, "the key is empty")
        if self.value is None:
            if self.key not in notes:
                known = ", ".join(notes) or "none"
                raise step_refusal(
                    func, old, f"{self.target} has no annotation {self.key!r}", f"it has: {known}"
                )
            del notes[self.key]
        else:
            self._check_value(func, old, self.value)
            notes[self.key] = self.value
        return replace_stmt(func, old, replace(old, annotations=tuple(sorted(notes.items()))))

    def _find(self, func: Func) -> For | Block:
        is_loop = any(n.var.name == self.target for n in loops(func.body))
        if not is_loop:
            return find_block(func, self.target)
        if any(b.name == self.target for b in blocks(func.body)):
            raise ScheduleError(f"{func.name} has both a loop and a block {self.target!r}")
        return find_loop(func, self.target)

    def _check_value(self, func: Func, at: For | Block, value: object) -> None:
        fits = isinstance(value, str | int | float)  # a bool is an int
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            raise step_refusal(func, at, f"{value!r} is no string, bool or finite number")
