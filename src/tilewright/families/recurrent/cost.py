"""The time of loops whose iterations depend on each other, and of the nests around them.

Every iteration reads all weights again. With few rows that is what it takes: they come from the cache that they fit,
and the multiply-adds are done meanwhile.
"""

from collections.abc import Callable, Collection
from math import ceil, prod
from typing import NamedTuple, TypeAlias

import numpy as np

from tilewright.cost.parallel import few_parts
from tilewright.cost.stream import pass_seconds, pass_term
from tilewright.cost.terms import Amounts, Ledger, TermName, gathered, scaled, with_team
from tilewright.cost.work import domain
from tilewright.families.elementwise.cost import alone_seconds, spatial_seconds
from tilewright.families.gemm.cost import ASKED_IN_ORDER, BEHIND_READS
from tilewright.families.gemm.panel_tile import panel_seconds, panel_terms
from tilewright.families.gemm.recipe import try_contraction
from tilewright.families.recurrent.match import RecurrentNest
from tilewright.families.space import Costs, Points
from tilewright.ir.expr import loads
from tilewright.schedule.find import top_level
from tilewright.support.arrays import FloatArray, IntArray
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, Stmt, blocks

# Of a nest before, between or after: what the cheapest family for it needs; None if none is for it.
NestSeconds: TypeAlias = Callable[[set[str]], float | None]


def recurrent_seconds(nest: RecurrentNest, points: Points, target: Target) -> Costs:
    """Of a nest, by (rows of a part, columns of a part, rows, vectors, unroll and prefetch of the register tile); parts
    are 0 where it is not divided.
    """
    m = target.machine
    total = np.full(len(points), _spatial_seconds(nest, target))
    for row_part, column_part in np.unique(points[:, :2], axis=0).tolist():
        here = (points[:, 0] == row_part) & (points[:, 1] == column_part)
        tiles, divided = points[here, 2:], _divided(nest, row_part, column_part)
        for block in nest.every:
            if block.is_reduction:
                total[here] += _sum_seconds(block, divided, tiles, target)
        most = ceil(divided.parts / m.threads)  # of one core: all of them
        total[here] *= few_parts(divided.parts) * (most / divided.parts)
        total[here] += m.part_seconds * divided.meetings * most
        total[here] += m.meeting_seconds * (divided.meetings if m.threads > 1 else 1)
    return total


def recurrent_terms(nest: RecurrentNest, points: Points, target: Target) -> dict[TermName, FloatArray]:
    """What these seconds are made of."""
    m, seconds = target.machine, recurrent_seconds(nest, points, target)
    found: list[tuple[IntArray, Amounts]] = []
    for row_part, column_part in np.unique(points[:, :2], axis=0).tolist():
        here = np.flatnonzero((points[:, 0] == row_part) & (points[:, 1] == column_part))
        tiles, divided, told = points[here, 2:], _divided(nest, row_part, column_part), Ledger()
        told.add("beside", _spatial_seconds(nest, target))
        for block in nest.every:
            if block.is_reduction:
                _sum_seconds(block, divided, tiles, target, told)
        share = ceil(divided.parts / m.threads) / divided.parts
        found.append((here, with_team(scaled(told.terms, share), seconds[here])))
    return gathered(len(points), found)


class _Divided(NamedTuple):
    """How a nest is divided."""

    row_part: int
    column_part: int
    passes: int  # over the operands of sums
    parts: int
    meetings: int


def _divided(nest: RecurrentNest, row_part: int, column_part: int) -> _Divided:
    row_parts = nest.rows[0].extent // row_part if row_part in nest.row_sizes else 1
    column_parts = nest.columns[-1].extent // column_part if column_part in nest.column_sizes else 1
    parts = nest.outer_parts * row_parts * column_parts
    meetings = 1 if column_parts == 1 else nest.iterations
    return _Divided(row_part, column_part, nest.iterations * row_parts, parts, meetings)


def _spatial_seconds(nest: RecurrentNest, target: Target) -> float:
    m, lanes = target.machine, target.lanes(4)
    return sum(spatial_seconds(b, lanes, m) for b in nest.every if not b.is_reduction)


def _sum_seconds(
    block: Block, divided: _Divided, tiles: Points, target: Target, told: Ledger | None = None
) -> Costs:
    """Of all iterations of all parts, each of which passes over the largest operand anew. `told` is told what they are
    made of.
    """
    m, made, c, passes = target.machine, block.store.buffer, try_contraction(block), divided.passes
    operands = [ld.buffer.bytes for ld in loads(block.store.value) if ld.buffer is not made]
    nbytes = min(max(operands, default=0), domain(block) // passes * made.dtype.bytes)
    again, where = passes * pass_seconds(nbytes, m), pass_term(nbytes, m)
    if c is None:
        computed = domain(block) / target.lanes(4) / m.hertz
        if told is not None:
            told.add(where if again > computed else "arithmetic", max(again, computed))
        return np.full(len(tiles), max(again, computed))
    rows = divided.row_part or (c.rows[-1].extent if c.rows else 1)
    cols = min(divided.column_part or c.cols[-1].extent, c.cols[-1].extent)
    times = domain(block) / (rows * cols * prod(it.extent for it in c.reduce))
    computing = panel_seconds(c, rows, tiles, target, cols, prefetch=tiles[:, 3]) * times
    asked = np.where((tiles[:, 3] > 0) & (rows == 1), ASKED_IN_ORDER, 1.0)
    if told is not None:
        own, is_read = (
            panel_terms(c, rows, tiles, target, cols, prefetch=tiles[:, 3]),
            again * asked > computing,
        )
        told.add_all(scaled(own, np.where(is_read, BEHIND_READS, 1.0 + BEHIND_READS) * times))
        told.add(where, np.where(is_read, again * asked, 0.0))
    return np.maximum(again * asked, computing) + BEHIND_READS * computing


def around_recurrent_seconds(
    func: Func, carried: Collection[For], alone: NestSeconds, target: Target, constants: frozenset[str]
) -> float:
    """Of the nests before, between and after."""
    return sum(
        _nest_seconds(nest, alone, target)
        for nest in top_level(func)
        if nest not in carried and not _is_constant(nest, constants)
    )


def _nest_seconds(nest: Stmt, alone: NestSeconds, target: Target) -> float:
    every = list(blocks(nest))
    if not any(b.is_reduction for b in every):
        return alone_seconds(every, target)
    found = alone({b.name for b in every})
    if found is not None:
        return found
    return sum(domain(b) / target.lanes(4) / target.machine.hertz for b in every)


def _is_constant(nest: Stmt, constants: frozenset[str]) -> bool:
    """Does it run at compile time, as it reads nothing but constants?"""
    every = [b for b in blocks(nest) if b.try_store is not None]
    read = {ld.buffer.name for b in every for ld in loads(b.store.value)}
    return bool(read) and read <= constants
