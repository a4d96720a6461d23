"""The schedule of Funcs in which a loop depends on its own earlier iterations, around several blocks.

Such a nest is scheduled where it stands. The nests before it and after it are Funcs of their own, as far as schedules
are concerned: those that belong together are scheduled alone, and the steps are taken in the whole Func. So the rules
that know one reduction and what is around it apply to each.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from tilewright.families.excerpt import buffers_of, excerpt
from tilewright.families.family import Alone, Request
from tilewright.families.gemm.panel_tile import best_tile
from tilewright.families.gemm.space import gemm_space
from tilewright.families.recurrent.cost import recurrent_seconds
from tilewright.families.recurrent.recipe import carried_nests, schedule_carried
from tilewright.families.space import OnePoint
from tilewright.ir.expr import Buffer
from tilewright.schedule.draft import Draft
from tilewright.schedule.moves import top_level
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import Stmt, blocks

_log = logging.getLogger(__name__)


class RecurrentSpace(OnePoint):
    family = "recurrent"

    def __init__(self, request: Request) -> None:
        self._request = request

    def seconds(self) -> float:
        r = self._request
        return recurrent_seconds(r.func, carried_nests(r.func), self._alone_seconds, r.target, r.constants)

    def _alone_seconds(self, run: set[str]) -> float | None:
        space = gemm_space(replace(self._request, func=excerpt(self._request.func, run)))
        if space is None:
            return None
        _, costs = space.ranked()
        return float(costs[0]) if len(costs) else None

    def schedule(self) -> Draft:
        return schedule_around_carried(self._request.func, self._request.target, self._request.alone)


def recurrent_space(request: Request) -> RecurrentSpace | None:
    return RecurrentSpace(request) if carried_nests(request.func) else None


def schedule_around_carried(func: Func, target: Target, alone: Alone) -> Draft:
    """Schedule a Func with such nests; `alone` schedules what is before, between and after them."""
    s, nests = Draft(single(func)), carried_nests(func)
    runs = _runs(func, nests)
    for nest in nests:
        schedule_carried(s, nest, lambda c, rows, cols: best_tile(c, rows, target, cols)[:2], target)
    for run in runs:
        try:
            with s.transaction():
                for step in alone(excerpt(s.func, run)).trace:
                    s.apply(step)
        except ScheduleError as e:
            _log.debug("%s: %s stays as it is: %s", func.name, ", ".join(sorted(run)), e)
    return s


def _runs(func: Func, nests: Sequence[Stmt]) -> list[set[str]]:
    """The blocks of the other nests: those together that hand something on to each other and to nobody else."""
    between: list[list[Stmt]] = [[]]
    for n in top_level(func):
        if n in nests:
            between.append([])
        else:
            between[-1].append(n)
    found: list[set[str]] = []
    for part in between:
        elsewhere = {*func.params, *buffers_of([n for n in top_level(func) if n not in part])}
        joined: list[tuple[set[str], set[Buffer]]] = []
        for n in part:
            names, own = {b.name for b in blocks(n)}, set(buffers_of([n])) - elsewhere
            for other in [j for j in joined if j[1] & own]:
                joined.remove(other)
                names |= other[0]
                own |= other[1]
            joined.append((names, own))
        found += [names for names, _ in joined]
    return found
