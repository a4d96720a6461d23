"""Convolutions by transformed tiles: the register tile of the product, by cost."""

from math import prod

from tilewright.cost.machine import machine_of
from tilewright.families.choosing import choosing
from tilewright.families.elementwise.cost import spatial_seconds
from tilewright.families.family import Request
from tilewright.families.gemm.panel_tile import best_tile
from tilewright.families.gemm.recipe import try_contraction
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import OnePoint
from tilewright.families.winograd.cost import StraightLine, staged_seconds
from tilewright.families.winograd.recipe import Stages, find_stages, schedule_transformed
from tilewright.ir.expr import Binary, Fma, Unary, loads, walk
from tilewright.schedule.draft import Draft
from tilewright.schedule.nest import find_block
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, blocks


class WinogradSpace(OnePoint):
    family = "winograd"

    def __init__(self, start: Draft, stages: Stages, target: Target) -> None:
        self._start, self._stages, self._target = start, stages, target

    def seconds(self) -> float:
        func, stages, m = self._start.func, self._stages, machine_of(self._target)
        known = {*stages.filters, *stages.inputs, stages.product, *stages.results}
        rest = [b for b in blocks(func.body) if b.name not in known]
        beside = sum(spatial_seconds(b, self._target.lanes(4), m) for b in rest)
        return stages_seconds(func, stages, self._target) + beside

    def schedule(self) -> Draft:
        s, target = self._start.branch(), self._target
        names = {b.name for b in blocks(s.func.body)}
        schedule_transformed(s, self._stages, lambda c, rows: best_tile(c, rows, target)[:2], target)
        schedule_rest(s, names, target)
        return s


def winograd_space(request: Request) -> WinogradSpace | None:
    start = request.start
    stages = None if start is None else find_stages(start.func)
    return None if start is None or stages is None else WinogradSpace(start, stages, request.target)


def stages_seconds(func: Func, stages: Stages, target: Target) -> float:
    """Of the product and of what is transformed before and after it, on one core."""
    m, c = machine_of(target), try_contraction(find_block(func, stages.product))
    assert c is not None, stages.product
    transforms = sum(
        _straight_line(find_block(func, n), target).seconds(m) for n in (*stages.inputs, *stages.results)
    )
    counts = [it.extent for it in c.rows[:-1]]
    times = prod((*counts, *(it.extent for it in (*c.cols[:-1], *c.batch))))
    blocks_of_tiles = prod(counts)
    between = (c.a.buffer.bytes + c.store.buffer.bytes) / blocks_of_tiles
    product = best_tile(c, c.rows[-1].extent, target).seconds * times
    return staged_seconds(transforms, product, c.b.buffer.bytes, between, blocks_of_tiles, m)


def _straight_line(block: Block, target: Target) -> StraightLine:
    value = block.store.value
    chosen = prod(it.extent for it in choosing(block))
    domain = prod(it.extent for it in block.iters)
    operations = sum(1 for e in walk(value) if isinstance(e, Binary | Fma | Unary) and e.dtype.is_float)
    lanes = target.lanes(block.store.buffer.dtype.bytes)
    return StraightLine(operations, len(loads(value)), chosen, domain / chosen / lanes)
