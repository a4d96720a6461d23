"""The default schedule of any Func: which recipe fits its blocks."""

from tilewright.schedule.recipes.contraction import schedule_contraction, try_contraction
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.inline import inline_spatial
from tilewright.schedule.recipes.lanes import is_lane_reduction, schedule_lanes
from tilewright.schedule.recipes.rows import schedule_rows
from tilewright.schedule.recipes.spatial import schedule_spatial
from tilewright.schedule.steps.drop_unit_iters import DropUnitIters
from tilewright.target.target import Target
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import blocks


def schedule_func(func: Func, target: Target, constants: frozenset[str] = frozenset()) -> Draft:
    """Schedule `func` for `target`; `constants` names the params whose values are known at compile time."""
    s = Draft(single(func))
    inline_spatial(s)
    for block in list(blocks(s.func.body)):
        s.apply(DropUnitIters(block.name))
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
    return s


def _schedule_rest(s: Draft, names: set[str], target: Target) -> None:
    """The all-spatial blocks that still are as they were: padding before, further consumers after."""
    for block in list(blocks(s.func.body)):
        if block.name in names and not block.is_reduction and s.is_untouched(block):
            schedule_spatial(s, block.name, target)
