"""The default schedule of any Func: which recipe fits its blocks.

Recipes assume more of a Func than that it is correct, and a step refuses what it cannot prove. So there is a ladder of
them: where one meets a refusal, the next starts over from the Func as it was given. The last takes no step at all.
"""

import logging
from collections.abc import Callable
from typing import TypeAlias

from tilewright.schedule.recipes.contraction import schedule_contraction, try_contraction
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.inline import inline_spatial
from tilewright.schedule.recipes.lanes import is_lane_reduction, schedule_lanes
from tilewright.schedule.recipes.rows import schedule_rows
from tilewright.schedule.recipes.spatial import bring_near, schedule_spatial
from tilewright.schedule.steps.drop_unit_iters import DropUnitIters
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import blocks

_log = logging.getLogger(__name__)

Recipe: TypeAlias = Callable[[Draft, Target, frozenset[str]], None]


def schedule_func(func: Func, target: Target, constants: frozenset[str] = frozenset()) -> Draft:
    """Schedule `func` for `target`; `constants` names the params whose values are known at compile time."""
    for recipe in LADDER:
        s = Draft(single(func))
        try:
            recipe(s, target, constants)
        except ScheduleError as e:
            _log.debug("%s: %s is not for it: %s", func.name, recipe.__name__, e)
        else:
            return s
    return Draft(single(func))


def by_structure(s: Draft, target: Target, constants: frozenset[str]) -> None:
    """Contractions in register tiles, other reductions in lanes or by rows, and the rest in memory order."""
    _simplify_domains(s)
    before = {b.name for b in blocks(s.func.body)}
    reductions = [b for b in blocks(s.func.body) if b.is_reduction]
    match reductions:
        case [block] if try_contraction(block) is not None:
            schedule_contraction(s, block.name, target, constants)
            _schedule_rest(s, before, target)
        case [block] if is_lane_reduction(block):
            schedule_lanes(s, block.name, target)
            _schedule_rest(s, before, target)
        case []:
            _schedule_rest(s, before, target)
        case _:
            schedule_rows(s, target)


def block_by_block(s: Draft, target: Target, constants: frozenset[str]) -> None:
    """Every block stays in its own nest: without a reduction in memory order, with one as it is written."""
    _simplify_domains(s)
    for block in list(blocks(s.func.body)):
        if not block.is_reduction:
            kept = s.module, s.trace
            try:
                schedule_spatial(s, block.name, target)
            except ScheduleError as e:
                s.module, s.trace = kept
                _log.debug("%s stays as it is: %s", block.name, e)


LADDER: tuple[Recipe, ...] = (by_structure, block_by_block)


def _simplify_domains(s: Draft) -> None:
    inline_spatial(s)
    for block in list(blocks(s.func.body)):
        s.apply(DropUnitIters(block.name))


def _schedule_rest(s: Draft, names: set[str], target: Target) -> None:
    """The all-spatial blocks that still are as they were: padding before, further consumers after."""
    for block in list(blocks(s.func.body)):
        if block.name in names and not block.is_reduction and s.is_untouched(block):
            near = bring_near(s, block.name, target)
            if not near:
                schedule_spatial(s, block.name, target)
