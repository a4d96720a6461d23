"""A kernel family: Funcs of one block without a reduction. It claims to be cheaper than any other."""

from tilewright.families.family import ScheduleRequest
from tilewright.families.space import OnePoint
from tilewright.schedule.draft import Draft
from tilewright.tir.stmt import blocks, loops
from toy_extension.step import Halve


class ToySpace(OnePoint):
    family = "toy"

    def __init__(self, start: Draft) -> None:
        self._start = start

    def seconds(self) -> float:
        return 1e-9

    def schedule(self) -> Draft:
        s = self._start.branch()
        s.apply(Halve(next(iter(loops(s.func.body))).var.name))
        return s


def toy_space(request: ScheduleRequest) -> ToySpace | None:
    start = request.plain
    every = [] if start is None else list(blocks(start.func.body))
    if start is None or len(every) != 1 or every[0].is_reduction:
        return None
    return ToySpace(start)
