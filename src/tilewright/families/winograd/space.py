"""The schedule of products of transformed operands (`families/winograd/recipe.py`), with the tile by cost."""

from tilewright.families.gemm.panel_tile import best_tile
from tilewright.families.prepare import schedule_rest
from tilewright.families.winograd.recipe import find_stages, schedule_transformed
from tilewright.schedule.draft import Draft
from tilewright.target.target import Target
from tilewright.tir.stmt import blocks


def schedule_stages(s: Draft, target: Target) -> bool:
    """Schedule a prepared Func if it is one of these."""
    stages = find_stages(s.func)
    if stages is None:
        return False
    names = {b.name for b in blocks(s.func.body)}
    schedule_transformed(s, stages, lambda c, rows: best_tile(c, rows, target)[:2], target)
    schedule_rest(s, names, target)
    return True
