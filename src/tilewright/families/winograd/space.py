"""Convolutions by transformed tiles: the register tile of the GEMM, the loops around it, and where the transforms are.

How large the transformed tiles are, and how many make a block, is part of the algorithm (`search/algorithms.py`); what
is left is how its stages run. `inside`: transforms and GEMMs of a block of tiles follow each other, and what they
hand on stays near. Otherwise each stage goes over all tiles. `ahead`: how many tiles before it is transformed a part of
the image is asked for.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.parallel import evenly
from tilewright.cost.stream import stream_term
from tilewright.cost.terms import Amount, Amounts, TermName, Terms, added, chosen_terms, scaled, spread_terms
from tilewright.families.choosing import choosing
from tilewright.families.elementwise.cost import spatial_seconds
from tilewright.families.family import ScheduleRequest
from tilewright.families.gemm.panel_tile import panel_loops, panel_seconds, panel_terms
from tilewright.families.gemm.recipe import Contraction, try_contraction
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.prepare import schedule_rest
from tilewright.families.space import Costs, Knob, KnobValues, Points, Space
from tilewright.families.winograd.cost import (
    StraightLine,
    Weights,
    staged_seconds,
    staged_terms,
    waiting_seconds,
)
from tilewright.families.winograd.recipe import (
    WinogradBlocks,
    WinogradPlan,
    find_stages,
    schedule_transformed,
)
from tilewright.ir.expr import Binary, Fma, Unary, loads, walk
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.target.machine import Machine
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, blocks

_LOOPS = (
    "rows",
    "vectors",
    "unroll",
    "columns_outside",
    "prefetch",
    "next_panel",
)  # of the GEMM, as `panel_loops` has them
_KNOBS = (*_LOOPS, "inside", "ahead")
_COLUMNS = tuple(_LOOPS.index(name) for name in ("columns_outside", "prefetch", "next_panel"))
_INSIDE, _AHEAD = (_KNOBS.index(name) for name in ("inside", "ahead"))
_TILES_AHEAD = (0, 2, 4)  # iterations over tiles that the image is asked for ahead; bound


class WinogradSpace(Space):
    family = "winograd"

    def __init__(self, start: Draft, stages: WinogradBlocks, target: Target) -> None:
        self._start, self._stages, self._target = start, stages, target
        self._gemm = gemm_of(start.func, stages)
        self._points = _stage_points(start.func, stages, target)
        self.knobs = tuple(
            Knob(name, tuple(int(v) for v in np.unique(self._points[:, n]))) for n, name in enumerate(_KNOBS)
        )

    def points(self) -> Points:
        return self._points

    def cost(self, points: Points) -> Costs:
        beside = self._target.machine.meeting_seconds + self._rest
        return stages_seconds(self._start.func, self._stages, points, self._target) + beside

    def terms(self, points: Points) -> Terms:
        stages = stages_terms(self._start.func, self._stages, points, self._target)
        beside: Amounts = {"beside": self._rest, "team": self._target.machine.meeting_seconds}
        return spread_terms(added(stages, beside), len(points))

    @cached_property
    def _rest(self) -> float:
        """The blocks that are no stage: they run on the results, or make what is transformed."""
        m, s = self._target.machine, self._stages
        stages = {*s.filters, *s.inputs, s.gemm, *s.results}
        rest = [b for b in blocks(self._start.func.body) if b.name not in stages]
        return evenly(sum(spatial_seconds(b, self._target.lanes(4), m) for b in rest), m)

    def completed(self, decisions: KnobValues) -> KnobValues:
        return {"next_panel": 0, **decisions}

    def build(self, decisions: KnobValues) -> Draft:
        s, lanes = self._start.branch(), self._target.lanes(self._gemm.b.dtype.bytes)
        names = {b.name for b in blocks(s.func.body)}
        plan = WinogradPlan(
            RegisterTile(decisions["rows"], decisions["vectors"] * lanes),
            unroll=decisions["unroll"],
            columns_outside=bool(decisions["columns_outside"]),
            prefetch=decisions["prefetch"],
            next_panel=bool(decisions["next_panel"]),
            inside=bool(decisions["inside"]),
            ahead=decisions["ahead"],
        )
        schedule_transformed(s, self._stages, plan, self._target)
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


def _stage_points(func: Func, stages: WinogradBlocks, target: Target) -> Points:
    """All points: register tiles and loops, and then what concerns the transforms."""
    c = gemm_of(func, stages)
    loops = panel_loops(c.rows[-1].extent, target)
    orders = (1, 0) if len(c.rows) > 1 else (0,)
    ahead = _TILES_AHEAD if _is_in_line(find_block(func, stages.inputs[0])) else (0,)
    # Stages that are apart are divided among workers tile by tile: no tile is known to be the next one.
    rest = np.array([p for p in product(orders, ahead) if p[0] or not p[1]], dtype=np.int64)
    return np.concatenate([np.tile(loops, (len(rest), 1)), np.repeat(rest, len(loops), axis=0)], axis=1)


def best_stages_seconds(func: Func, stages: WinogradBlocks, target: Target) -> float:
    """At the cheapest point."""
    points = _stage_points(func, stages, target)
    return float(stages_seconds(func, stages, points, target).min())


def stages_seconds(func: Func, stages: WinogradBlocks, points: Points, target: Target) -> Costs:
    """Of the GEMM, by its register tiles and loops, and of what is transformed before and after it, on one core."""
    m, f = target.machine, _stage_form(func, stages, target)
    outside, ahead, next_panel = (points[:, n] for n in _COLUMNS)
    each = panel_seconds(f.c, f.rows, points, target, columns_outside=outside > 0, prefetch=ahead)
    transforms, gemm, weights = f.transforms + f.waiting(points, m), each * f.times, f.weights(next_panel > 0)

    def staged(together: int) -> Costs:
        return staged_seconds(transforms, gemm, weights, f.between / together, together, m)

    if len(f.c.rows) == 1:
        return staged(1)
    return np.where(points[:, _INSIDE] > 0, staged(f.c.rows[0].extent), staged(1))


def stages_terms(
    func: Func, stages: WinogradBlocks, points: Points, target: Target
) -> dict[TermName, Amount]:
    """What these seconds are made of."""
    m, f = target.machine, _stage_form(func, stages, target)
    outside, ahead, next_panel = (points[:, n] for n in _COLUMNS)
    each = panel_terms(f.c, f.rows, points, target, columns_outside=outside > 0, prefetch=ahead)
    transforms = added({"copies": f.transforms}, {stream_term(f.image, m): f.waiting(points, m)})
    gemm, weights = scaled(each, f.times), f.weights(next_panel > 0)

    def staged(together: int) -> dict[TermName, Amount]:
        return staged_terms(transforms, gemm, weights, f.between / together, together, m)

    if len(f.c.rows) == 1:
        return staged(1)
    return chosen_terms(points[:, _INSIDE] > 0, staged(f.c.rows[0].extent), staged(1))


@dataclass(frozen=True, slots=True)
class _StageForm:
    """The stages by numbers."""

    c: Contraction
    transforms: float  # seconds
    image: int  # bytes of all that is transformed

    @property
    def rows(self) -> int:
        return self.c.rows[-1].extent

    @property
    def times(self) -> int:
        """How many GEMMs there are."""
        blocks_of_tiles = prod(it.extent for it in self.c.rows[:-1])
        return blocks_of_tiles * prod(it.extent for it in (*self.c.cols[:-1], *self.c.batch))

    @property
    def between(self) -> int:
        """Bytes that stages hand on."""
        return self.c.a.buffer.bytes + self.c.store.buffer.bytes

    def weights(self, is_asked: NDArray[np.bool_]) -> Weights:
        return Weights(self.c.b.buffer.bytes, is_asked)

    def waiting(self, points: Points, m: Machine) -> Costs:
        """For the image, where it is not asked for."""
        return waiting_seconds(self.image, m) * (points[:, _AHEAD] == 0)


def _stage_form(func: Func, stages: WinogradBlocks, target: Target) -> _StageForm:
    lines = [_straight_line(find_block(func, n), target) for n in (*stages.inputs, *stages.results)]
    transforms = sum(line.seconds(target.machine) for line in lines)
    return _StageForm(gemm_of(func, stages), transforms, _image_bytes(func, stages))


def _image_bytes(func: Func, stages: WinogradBlocks) -> int:
    """Of all that is transformed."""
    values = [find_block(func, name).store.value for name in stages.inputs]
    return sum(b.bytes for b in {ld.buffer for value in values for ld in loads(value)})


def _is_in_line(block: Block) -> bool:
    """Is the next tile of a block a fixed distance away in the image?"""
    read = loads(block.store.value)[0]
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    form = simplify.weighted(read.indices, read.buffer.strides)
    return block.store.indices[-2] in {atom for atom, _ in form.terms}


def _straight_line(block: Block, target: Target) -> StraightLine:
    value = block.store.value
    chosen = prod(it.extent for it in choosing(block))
    domain = prod(it.extent for it in block.iters)
    operations = sum(1 for e in walk(value) if isinstance(e, Binary | Fma | Unary) and e.dtype.is_float)
    lanes = target.lanes(block.store.buffer.dtype.bytes)
    return StraightLine(operations, len(loads(value)), chosen, domain / chosen / lanes)
