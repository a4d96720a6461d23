"""What every rule does before it looks at a Func, and with what it leaves over."""

from tilewright.families.inline import inline_moved, inline_spatial
from tilewright.families.stream.elements import bring_near, schedule_elements
from tilewright.schedule.draft import Draft
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
    for name in [b.name for b in blocks(s.func.body) if b.name in names]:
        block = s.func.block(name)  # what was inlined has changed others
        if block is None or block.is_reduction or not s.is_untouched(block) or inline_moved(s, block):
            continue
        if not bring_near(s, name, target):
            schedule_elements(s, name, target)
