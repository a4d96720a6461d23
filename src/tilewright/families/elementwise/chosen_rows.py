"""Rows that data chooses, as those of an embedding: the next one is fetched while this one is copied.

    for i in range(128):                             for part in parallel(16):
        for j in range(768):                             for i in range(8, prefetch=1):
            y[i, j] = x[at[i], j]           ──>              for j in range(48):
                                                                 two vectors of y[part * 8 + i]

No hardware foresees where a row begins, so a loop over rows annotated with PREFETCH asks for the line of the next row
that is as far from its start (`codegen/expressions.py`). A part has several rows: from one to the next the index of the
next is known.
"""

from collections.abc import Sequence

from tilewright.cost.caches import LINE_BYTES
from tilewright.families.parallel import parallel_prefix, part_size
from tilewright.ir.expr import Load, Var, free_vars, loads
from tilewright.ir.rewrite import substitute
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.schedule.steps.annotate import Annotate
from tilewright.schedule.steps.loop_kind import Unroll, Vectorize
from tilewright.schedule.steps.split import Split
from tilewright.tir.stmt import PREFETCH, Block

_LEAST_LINES = 4  # lines of a row; bound: shorter ones are over before the next is there


def chooses_rows(s: Draft, name: str, outer: Sequence[str], inner: str) -> bool:
    """Does data choose what the block reads in each iteration of the last of `outer`, and `inner` run along it?"""
    block = find_block(s.func, name)
    if not outer or s.loop(inner).extent * block.store.value.dtype.bytes < _LEAST_LINES * LINE_BYTES:
        return False
    return any(_is_row(ld, block, Var(outer[-1]), Var(inner)) for ld in loads(block.store.value))


def schedule_chosen_rows(
    s: Draft, outer: Sequence[str], inner: str, lanes: int, nbytes: int, *, is_shared: bool
) -> None:
    """Vectors along `inner`, a line at a time; the rows of a part one after another."""
    per_line = LINE_BYTES // (lanes * nbytes)
    if per_line > 1 and s.loop(inner).extent % (per_line * lanes) == 0:
        _, line, lane = s.apply(Split(inner, (None, per_line, lanes))).names
        s.apply(Unroll(line))
    else:
        lane = s.apply(Split(inner, (None, lanes))).names[1]
    s.apply(Vectorize(lane))
    rows = outer[-1]
    size = part_size(s.loop(rows).extent)
    if is_shared and size > 1:
        part, rows = s.apply(Split(rows, (None, size))).names
        parallel_prefix(s, (*outer[:-1], part))
    elif is_shared:
        parallel_prefix(s, tuple(outer))
        return
    s.apply(Annotate(rows, PREFETCH, 1))


def _is_row(ld: Load, block: Block, row: Var, inner: Var) -> bool:
    values = {it.var: b for it, b in zip(block.iters, block.bindings, strict=True)}
    *before, last = (substitute(i, values) for i in ld.indices)
    chosen = [i for i in before if loads(i)]
    return (
        any(row in free_vars(i) for i in chosen)
        and not any(inner in free_vars(i) for i in before)
        and not loads(last)
        and inner in free_vars(last)
    )
