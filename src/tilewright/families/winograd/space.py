"""Convolutions by transformed tiles: the register tile of the GEMM, and where the transforms are.

How large the transformed tiles are, and how many make a block, is part of the algorithm (`search/algorithms.py`); what
is left is how its stages run. `inside`: transforms and GEMMs of a block of tiles follow each other, and what they
hand on stays near. Otherwise each stage goes over all tiles.
"""

from functools import cached_property
from math import prod

import numpy as np

from tilewright.cost.parallel import evenly
from tilewright.families.choosing import choosing
from tilewright.families.elementwise.cost import spatial_seconds
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.panel_tile import panel_seconds, panel_tiles
from tilewright.families.gemm.recipe import Contraction, try_contraction
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.winograd.cost import StraightLine, staged_seconds
from tilewright.families.winograd.recipe import WinogradBlocks, find_stages, schedule_transformed
from tilewright.ir.expr import Binary, Fma, Unary, loads, walk
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, blocks

_KNOBS = ("rows", "vectors", "unroll", "inside")


class WinogradSpace(Space):
    family = "winograd"

    def __init__(self, start: Draft, stages: WinogradBlocks, target: Target) -> None:
        self._start, self._stages, self._target = start, stages, target
        self._gemm = gemm_of(start.func, stages)
        tiles = panel_tiles(self._gemm.rows[-1].extent, target)
        orders = (1, 0) if len(self._gemm.rows) > 1 else (0,)
        self._points = np.array([(*t, o) for o in orders for t in tiles], np.int64)
        self.knobs = tuple(
            Knob(name, tuple(int(v) for v in np.unique(self._points[:, n]))) for n, name in enumerate(_KNOBS)
        )

    def points(self) -> Points:
        return self._points

    def cost(self, points: Points) -> Costs:
        func, stages, target = self._start.func, self._stages, self._target
        costs = (
            stages_seconds(func, stages, points[:, :3], target, inside=inside) for inside in (False, True)
        )
        return np.where(points[:, 3] > 0, *reversed(tuple(costs))) + self._beside

    @cached_property
    def _beside(self) -> float:
        """The blocks that are no stage: they run on the results, or make what is transformed."""
        m, s = self._target.machine, self._stages
        stages = {*s.filters, *s.inputs, s.gemm, *s.results}
        rest = [b for b in blocks(self._start.func.body) if b.name not in stages]
        return m.meeting_seconds + evenly(sum(spatial_seconds(b, self._target.lanes(4), m) for b in rest), m)

    def build(self, decisions: KnobValues) -> Draft:
        s, lanes = self._start.branch(), self._target.lanes(self._gemm.b.dtype.bytes)
        names = {b.name for b in blocks(s.func.body)}
        tile = RegisterTile(decisions["rows"], decisions["vectors"] * lanes)
        inside = bool(decisions["inside"])
        schedule_transformed(s, self._stages, tile, decisions["unroll"], self._target, inside=inside)
        schedule_rest(s, names, self._target)
        return s


def winograd_space(request: ScheduleRequest) -> WinogradSpace | None:
    start = request.start
    stages = None if start is None else find_stages(start.func)
    return None if start is None or stages is None else WinogradSpace(start, stages, request.target)


def gemm_of(func: Func, stages: WinogradBlocks) -> Contraction:
    c = try_contraction(find_block(func, stages.gemm))
    assert c is not None, stages.gemm
    return c


def best_stages_seconds(func: Func, stages: WinogradBlocks, target: Target) -> float:
    """With the cheapest register tile, and blocks of tiles one by one."""
    tiles = panel_tiles(gemm_of(func, stages).rows[-1].extent, target)
    return float(stages_seconds(func, stages, tiles, target, inside=True).min())


def stages_seconds(
    func: Func, stages: WinogradBlocks, tiles: Points, target: Target, *, inside: bool
) -> Costs:
    """Of the GEMM, by its register tiles (rows, vectors, unroll), and of what is transformed before and after it, on
    one core.
    """
    m, c = target.machine, gemm_of(func, stages)
    transforms = sum(
        _straight_line(find_block(func, n), target).seconds(m) for n in (*stages.inputs, *stages.results)
    )
    blocks_of_tiles = prod(it.extent for it in c.rows[:-1])
    times = blocks_of_tiles * prod(it.extent for it in (*c.cols[:-1], *c.batch))
    gemm = panel_seconds(c, c.rows[-1].extent, tiles, target) * times
    together = c.rows[0].extent if inside and len(c.rows) > 1 else 1
    between = (c.a.buffer.bytes + c.store.buffer.bytes) / together
    return staged_seconds(transforms, gemm, c.b.buffer.bytes, between, together, m)


def _straight_line(block: Block, target: Target) -> StraightLine:
    value = block.store.value
    chosen = prod(it.extent for it in choosing(block))
    domain = prod(it.extent for it in block.iters)
    operations = sum(1 for e in walk(value) if isinstance(e, Binary | Fma | Unary) and e.dtype.is_float)
    lanes = target.lanes(block.store.buffer.dtype.bytes)
    return StraightLine(operations, len(loads(value)), chosen, domain / chosen / lanes)
