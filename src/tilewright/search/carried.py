"""The schedule of Funcs in which a loop depends on its own earlier iterations, around several blocks.

Such a nest is scheduled where it stands. The nests before it and after it are Funcs of their own, as far as schedules
are concerned: those that belong together are scheduled alone, and the steps are taken in the whole Func. So the rules
that know one reduction and what is around it apply to each.
"""

import logging
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tilewright.cost.contraction import Choices, Form, contraction_seconds
from tilewright.cost.machine import machine_of
from tilewright.ir.expr import Buffer, loads
from tilewright.schedule.moves import top_level
from tilewright.schedule.recipes.carried import carried_nests, schedule_carried
from tilewright.schedule.recipes.contraction import Contraction
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.tiles import Tile
from tilewright.search.contraction_space import tile_sizes
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import Stmt, Store, blocks, seq, stmt_exprs, walk

_log = logging.getLogger(__name__)

_UNROLLS = (64, 24)


def schedule_around_carried(func: Func, target: Target, alone: Callable[[Func], Draft]) -> Draft:
    """Schedule a Func with such nests; `alone` schedules what is before, between and after them."""
    s, nests = Draft(single(func)), carried_nests(func)
    runs = _runs(func, nests)
    for nest in nests:
        schedule_carried(s, nest, lambda c, rows: _tile(c, rows, target), target)
    for run in runs:
        kept = s.module, s.trace
        try:
            for step in alone(_excerpt(s.func, run)).trace:
                s.apply(step)
        except ScheduleError as e:
            s.module, s.trace = kept
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


def _excerpt(func: Func, run: set[str]) -> Func:
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


def _tile(c: Contraction, rows: int, target: Target) -> tuple[Tile, int]:
    """The cheapest register tile of so many rows in one iteration, and how much of it is written out."""
    machine, bytes_each = machine_of(target), c.b.dtype.bytes
    cols, k = c.cols[-1].extent, prod(it.extent for it in c.reduce)
    form = Form(
        batch=1,
        other_rows=1,
        rows=rows,
        cols=cols,
        k=k,
        k_inner=c.reduce[-1].extent,
        a_row_step=k,
        a_k_step=1,
        b_col_step=1,
        b_k_step=cols,
        out_col_step=1,
        out_row_step=cols,
        a_constant=False,
        b_constant=True,  # packed before the loop
        a_elements=rows * k,
        b_elements=k * cols,
        bytes_each=bytes_each,
        epilogue_loads=1,
    )
    points = np.array(
        [(r, v, u) for r, v in tile_sizes(machine.registers) if r <= rows for u in _UNROLLS], dtype=np.int64
    )
    no, yes = np.zeros(len(points), np.bool_), np.ones(len(points), np.bool_)
    choices = Choices(points[:, 0], points[:, 1], no, yes, yes, np.zeros(len(points), np.int64), points[:, 2])
    height, vectors, unroll = (
        int(n) for n in points[np.argmin(contraction_seconds(form, choices, machine, 1))]
    )
    return Tile(height, vectors * target.lanes(bytes_each)), unroll
