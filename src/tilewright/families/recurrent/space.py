"""The schedule of Funcs in which a loop depends on its own earlier iterations, around several blocks.

Such a nest is scheduled where it stands. The nests before it and after it are Funcs of their own, as far as schedules
are concerned: those that belong together are scheduled alone, and the steps are taken in the whole Func. So the rules
that know one reduction and what is around it apply to each.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from tilewright.cost.terms import Terms, added, spread_terms
from tilewright.cost.work import domain
from tilewright.families.extract import buffers_of, extract_nests
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.panel_tile import UNROLLS, panel_tiles
from tilewright.families.gemm.space import gemm_space, one_row_sizes
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.recurrent.cost import around_recurrent_seconds, recurrent_seconds, recurrent_terms
from tilewright.families.recurrent.match import RecurrentNest, recurrent_nests
from tilewright.families.recurrent.recipe import (
    RecurrentPlan,
    divide_columns,
    divide_rows,
    schedule_recurrent,
)
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.ir.expr import Buffer
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import top_level
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import Stmt, blocks

_log = logging.getLogger(__name__)


_KNOBS = ("row_part", "column_part", "rows", "vectors", "unroll", "prefetch")
# Steps of the sum ahead of which weights of a single row are asked for; bound: what is tried. On a Zen 4 they come in
# order anyway, and asking took 1.05 (16 steps) to 1.2 (32 steps) times as long.
_AHEAD = (0, 16, 32)


class RecurrentSpace(Space):
    """How a step's rows, or its columns, are divided among workers, and the register tile of its GEMMs. Workers that
    divide columns find their part of the weights in their caches again in the next step; those that divide rows meet
    only once, and each reads all weights in every step.
    """

    family = "recurrent"

    def __init__(self, request: ScheduleRequest) -> None:
        self._request = request
        self._nests = [
            RecurrentNest(request.func, nest, request.target) for nest in recurrent_nests(request.func)
        ]
        largest = max(self._nests, key=lambda n: sum(domain(b) for b in n.every))
        rows = _allowed(request.func, largest, largest.row_sizes, divide_rows)
        columns = _allowed(request.func, largest, largest.column_sizes, divide_columns)
        divided = [(0, 0), *((n, 0) for n in rows), *((0, n) for n in columns)]
        height = largest.rows[0].extent if largest.rows else 1
        self._points = np.array(
            [(*d, *t) for d in divided for t in _tiles(d[0] or height, d[1], request.target)], np.int64
        )
        self.knobs = tuple(
            Knob(name, tuple(int(v) for v in np.unique(self._points[:, n]))) for n, name in enumerate(_KNOBS)
        )

    def points(self) -> Points:
        return self._points

    def cost(self, points: Points) -> Costs:
        nests = sum(recurrent_seconds(nest, points, self._request.target) for nest in self._nests)
        return np.add(nests, self._around)

    def terms(self, points: Points) -> Terms:
        nests = [recurrent_terms(nest, points, self._request.target) for nest in self._nests]
        return spread_terms(added(*nests, {"beside": self._around}), len(points))

    @cached_property
    def _around(self) -> float:
        r, nests = self._request, [n.nest for n in self._nests]
        return around_recurrent_seconds(r.func, nests, self._alone_seconds, r.target, r.constants)

    def _alone_seconds(self, run: set[str]) -> float | None:
        space = gemm_space(replace(self._request, func=extract_nests(self._request.func, run)))
        if space is None:
            return None
        _, costs = space.ranked()
        return float(costs[0]) if len(costs) else None

    def build(self, decisions: KnobValues) -> Draft:
        target = self._request.target
        tile = RegisterTile(decisions["rows"], decisions["vectors"] * target.lanes(4))
        plan = RecurrentPlan(
            decisions["row_part"],
            decisions["column_part"],
            tile,
            decisions["unroll"],
            decisions["prefetch"],
        )
        s = Draft(single(self._request.func))
        for nest in self._nests:
            schedule_recurrent(s, nest, plan, target)
        for run in _runs(self._request.func, [n.nest for n in self._nests]):
            self._schedule_run(s, run)
        return s

    def _schedule_run(self, s: Draft, run: set[str]) -> None:
        try:
            with s.transaction():
                for step in self._request.alone(extract_nests(s.func, run)).trace:
                    s.apply(step)
        except ScheduleError as e:
            _log.debug("%s: %s stays as it is: %s", s.func.name, ", ".join(sorted(run)), e)


def recurrent_space(request: ScheduleRequest) -> RecurrentSpace | None:
    return RecurrentSpace(request) if recurrent_nests(request.func) else None


def _tiles(rows: int, column_part: int, target: Target) -> list[tuple[int, ...]]:
    """(rows, vectors, unroll, prefetch) of register tiles that a part is cut into."""
    every: list[tuple[int, ...]] = [(*t, 0) for t in panel_tiles(rows, target).tolist()]
    if rows == 1:
        wide = [(*size, u) for size in one_row_sizes(target.vector_registers) for u in UNROLLS]
        every = [(*t[:3], n) for t in (*every, *wide) for n in _AHEAD]
    most = column_part // target.lanes(4)
    return [t for t in every if t[1] <= most] if most else every


def _allowed(
    func: Func,
    nest: RecurrentNest,
    sizes: tuple[int, ...],
    divide: Callable[[Draft, RecurrentNest, int], object],
) -> tuple[int, ...]:
    """All of the sizes, if what is divided needs nothing of its other parts; that is so for all of them or none."""
    try:
        if sizes:
            divide(Draft(single(func)), nest, sizes[0])
    except ScheduleError:
        return ()
    return sizes


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
