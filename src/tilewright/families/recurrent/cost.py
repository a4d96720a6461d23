"""The time of loops whose iterations depend on each other, and of the nests around them.

Every iteration reads all weights again. With few rows that is what it takes: they come from the cache that they fit,
and the multiply-adds are done meanwhile.
"""

from collections.abc import Callable, Collection
from math import ceil, prod
from typing import TypeAlias

import numpy as np

from tilewright.cost.parallel import few_parts
from tilewright.cost.stream import pass_seconds
from tilewright.cost.work import domain
from tilewright.families.elementwise.cost import alone_seconds, spatial_seconds
from tilewright.families.gemm.cost import ASKED_IN_ORDER, BEHIND_READS
from tilewright.families.gemm.panel_tile import panel_seconds
from tilewright.families.gemm.recipe import try_contraction
from tilewright.families.recurrent.match import RecurrentNest
from tilewright.families.space import Costs, Points
from tilewright.ir.expr import loads
from tilewright.schedule.find import top_level
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, Stmt, blocks

# Of a nest before, between or after: what the cheapest family for it needs; None if none is for it.
NestSeconds: TypeAlias = Callable[[set[str]], float | None]


def recurrent_seconds(nest: RecurrentNest, points: Points, target: Target) -> Costs:
    """Of a nest, by (rows of a part, columns of a part, rows, vectors, unroll and prefetch of the register tile); parts
    are 0 where it is not divided.
    """
    m, lanes = target.machine, target.lanes(4)
    total = np.full(len(points), sum(spatial_seconds(b, lanes, m) for b in nest.every if not b.is_reduction))
    for row_part, column_part in np.unique(points[:, :2], axis=0).tolist():
        here = (points[:, 0] == row_part) & (points[:, 1] == column_part)
        tiles = points[here, 2:]
        row_parts = nest.rows[0].extent // row_part if row_part in nest.row_sizes else 1
        column_parts = nest.columns[-1].extent // column_part if column_part in nest.column_sizes else 1
        for block in nest.every:
            if block.is_reduction:
                passes = nest.iterations * row_parts
                total[here] += _sum_seconds(block, passes, row_part, column_part, tiles, target)
        parts = nest.outer_parts * row_parts * column_parts
        meetings = 1 if column_parts == 1 else nest.iterations
        most = ceil(parts / m.threads)  # of one core: all of them
        total[here] *= few_parts(parts) * (most / parts)
        total[here] += m.part_seconds * meetings * most
        total[here] += m.meeting_seconds * (meetings if m.threads > 1 else 1)
    return total


def _sum_seconds(
    block: Block, passes: int, row_part: int, column_part: int, tiles: Points, target: Target
) -> Costs:
    """Of all iterations of all parts, each of which passes over the largest operand anew."""
    m, made, c = target.machine, block.store.buffer, try_contraction(block)
    operands = [ld.buffer.bytes for ld in loads(block.store.value) if ld.buffer is not made]
    again = passes * pass_seconds(
        min(max(operands, default=0), domain(block) // passes * made.dtype.bytes), m
    )
    if c is None:
        return np.full(len(tiles), max(again, domain(block) / target.lanes(4) / m.hertz))
    rows = row_part or (c.rows[-1].extent if c.rows else 1)
    cols = min(column_part or c.cols[-1].extent, c.cols[-1].extent)
    times = domain(block) / (rows * cols * prod(it.extent for it in c.reduce))
    computing = panel_seconds(c, rows, tiles, target, cols, prefetch=tiles[:, 3]) * times
    asked = np.where((tiles[:, 3] > 0) & (rows == 1), ASKED_IN_ORDER, 1.0)
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
