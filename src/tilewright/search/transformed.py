"""The schedule of products of transformed operands (`schedule/recipes/transformed.py`), with the tile by cost."""

from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.transformed import find_stages, schedule_transformed
from tilewright.search.panel_tile import best_tile
from tilewright.search.prepare import schedule_rest
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
