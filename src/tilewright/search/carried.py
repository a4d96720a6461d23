"""The schedule of Funcs in which a loop depends on its own earlier iterations, around several blocks.

Such a nest is scheduled where it stands. The nests before it and after it are Funcs of their own, as far as schedules
are concerned: those that belong together are scheduled alone, and the steps are taken in the whole Func. So the rules
that know one reduction and what is around it apply to each.
"""

import logging
from collections.abc import Callable, Sequence

from tilewright.ir.expr import Buffer, loads
from tilewright.schedule.moves import top_level
from tilewright.schedule.recipes.carried import carried_nests, schedule_carried
from tilewright.schedule.recipes.draft import Draft
from tilewright.search.panel_tile import best_tile
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import Stmt, Store, blocks, seq, stmt_exprs, walk

_log = logging.getLogger(__name__)


def schedule_around_carried(func: Func, target: Target, alone: Callable[[Func], Draft]) -> Draft:
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
        elsewhere = {*func.params, *_buffers([n for n in top_level(func) if n not in part])}
        joined: list[tuple[set[str], set[Buffer]]] = []
        for n in part:
            names, own = {b.name for b in blocks(n)}, set(_buffers([n])) - elsewhere
            for other in [j for j in joined if j[1] & own]:
                joined.remove(other)
                names |= other[0]
                own |= other[1]
            joined.append((names, own))
        found += [names for names, _ in joined]
    return found


def excerpt(func: Func, run: set[str]) -> Func:
    """The nests of these blocks as a Func. What others use too is a param."""
    inside = [n for n in top_level(func) if any(b.name in run for b in blocks(n))]
    others = [n for n in top_level(func) if n not in inside]
    used, elsewhere = _buffers(inside), _buffers(others)
    shared = [b for b in used if b in func.params or b in elsewhere]
    stored = {n.buffer for nest in inside for n in walk(nest) if isinstance(n, Store)}
    local = tuple(b for b in used if b not in shared)
    return Func(func.name, tuple(shared), local, seq(*inside), tuple(b for b in shared if b in stored))


def _buffers(nests: Sequence[Stmt]) -> dict[Buffer, None]:
    found: dict[Buffer, None] = {}
    for n in (n for nest in nests for n in walk(nest)):
        found.update((ld.buffer, None) for e in stmt_exprs(n) for ld in loads(e))
        if isinstance(n, Store):
            found[n.buffer] = None
    return found
