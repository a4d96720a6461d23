"""A kernel family: a kind of Func that it knows, and the ways it has to schedule one.

A family is a function that looks at a Func and, where it fits, gives the design space of its kernels: `match.py` says
what fits, `cost.py` what a point costs, `space.py` which points there are, `recipe.py` makes the steps of one. It is
named by its space, and `families.py` lists all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Protocol, TypeAlias

from tilewright.families.ordered.recipe import is_ordered
from tilewright.families.prepare import prepared
from tilewright.families.recurrent.match import recurrent_nests
from tilewright.families.space import Space
from tilewright.families.winograd.recipe import find_stages
from tilewright.schedule.draft import Draft
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import blocks

Alone: TypeAlias = Callable[[Func], Draft]


@dataclass
class ScheduleRequest:
    """A Func to be scheduled."""

    func: Func
    target: Target
    constants: frozenset[str]  # names of the params whose values are known at compile time
    alone: Alone  # schedules some nests of it as if they were a Func of their own
    limit: float = (
        inf  # seconds: what another family needs; one that surely needs more may say that it does not fit
    )

    @cached_property
    def start(self) -> Draft | None:
        """The Func with everything inlined that need not be stored; None if a loop depends on its own earlier
        iterations, so that nothing may be moved.
        """
        return None if recurrent_nests(self.func) else prepared(self.func)

    @cached_property
    def plain(self) -> Draft | None:
        """The same, if all of its reductions are sums in any order of what is read as it is; that is what most families
        are for.
        """
        s = self.start
        if s is None or any(is_ordered(b) for b in blocks(s.func.body)) or find_stages(s.func) is not None:
            return None
        return s


class Family(Protocol):
    def __call__(self, request: ScheduleRequest, /) -> Space | None:
        """The design space of the Func, if the family fits it."""
        ...
