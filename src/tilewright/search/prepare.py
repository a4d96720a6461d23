"""What every rule does before it looks at a Func, and with what it leaves over."""

from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.inline import inline_moved, inline_spatial
from tilewright.schedule.recipes.spatial import bring_near, schedule_spatial
from tilewright.schedule.steps.drop_unit_iters import DropUnitIters
from tilewright.target.target import Target
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import blocks


def prepared(func: Func) -> Draft:
    """The Func with everything inlined that need not be stored, and no iterators of one value."""
    s = Draft(single(func))
    inline_spatial(s)
    for block in list(blocks(s.func.body)):
        s.apply(DropUnitIters(block.name))
    return s


def schedule_rest(s: Draft, names: set[str], target: Target) -> None:
    """The all-spatial blocks that still are as they were: padding before, further consumers after."""
    for block in list(blocks(s.func.body)):
        if block.name in names and not block.is_reduction and s.is_untouched(block):
            if inline_moved(s, block):
                continue
            near = bring_near(s, block.name, target)
            if not near:
                schedule_spatial(s, block.name, target)
