"""Dividing work among a team whose size is not known yet, where that pays.

What a kernel costs on one core (`cost/work.py`, or the closed form of a rule) is compared with what sharing it costs:
workers meet afterwards, and fetch what they made from each other's caches. A meeting takes a tenth of a microsecond, a
job of a team that is awake three tenths more than one without (`docs/results/barrier.md`).
"""

import re

from tilewright.cost.parallel import ENOUGH_PARTS, least_shared
from tilewright.cost.work import block_seconds
from tilewright.schedule.find import find_loop, top_level
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps.annotate import Annotate
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Parallel
from tilewright.schedule.steps.split import Split
from tilewright.target.machine import SHIPPED
from tilewright.tir.func import Func
from tilewright.tir.stmt import PREFETCH, PREFETCH_ELEMENTS, Block, For, LoopKind, blocks
from tilewright.tir.stmt import loops as loops_below

# Tiles that what is asked for is ahead of. Measured on attention of 8 heads with 8 rows, 4096 keys and 128 elements:
# where scores ask 1, 2 and 4 tiles ahead, it takes 0.83, 0.81 and 0.80 of the time, by two threads 0.85, 0.82 and 0.82.
_TILES_AHEAD = 2


def is_worth_sharing(lanes: int, *shared: Block) -> bool:
    """Should a team share what these blocks do? All of them are in each part."""
    return sum(block_seconds(b, lanes, SHIPPED) for b in shared) >= least_shared(SHIPPED)


def part_size(extent: int) -> int:
    """Iterations per part, dividing `extent`: few enough for many parts, and enough that starting one costs little."""
    if extent < 4 * ENOUGH_PARTS:
        return 1
    return max(size for size in range(1, extent // ENOUGH_PARTS + 1) if extent % size == 0)


def parallel_prefix(s: Schedule, loops: tuple[str, ...]) -> None:
    """Make the outermost of `loops` (a perfect nest) parallel, fused with the next until there are enough
    parts.
    """
    part, _ = _fused_prefix(s, loops)
    if part is not None:
        s.apply(Parallel(part))


def parallel_runs(s: Schedule, loops: tuple[str, ...]) -> str | None:
    """The same, with several iterations that follow each other in a part: the loop over these, if there is one."""
    part, parts = _fused_prefix(s, loops)
    if part is None:
        return None
    inner, size = None, part_size(parts)
    if size > 1:
        part, inner = s.apply(Split(part, (None, size))).names
    s.apply(Parallel(part))
    return inner


def _fused_prefix(s: Schedule, loops: tuple[str, ...]) -> tuple[str | None, int]:
    """The outermost loops as one, and its extent; None if that is 1."""
    taken: list[str] = []
    parts = 1
    for name in loops:
        if parts >= ENOUGH_PARTS:
            break
        taken.append(name)
        parts *= find_loop(s.func, name).extent
    if parts == 1:
        return None, 1
    return s.apply(Fuse(tuple(taken))).name if len(taken) > 1 else taken[0], parts


def ask_ahead(s: Schedule, tiles: str) -> None:
    """While a tile is computed, ask for what a later one reads, elements and vectors: in the loops of its reduction."""
    s.apply(Annotate(tiles, PREFETCH, _TILES_AHEAD))
    for n in [
        n for n in loops_below(find_loop(s.func, tiles).body) if n.kind is LoopKind.SERIAL and n.extent > 1
    ]:
        s.apply(Annotate(n.var.name, PREFETCH_ELEMENTS, 1))


def is_part(block: Block, name: str) -> bool:
    """Is it the block of this name, or what partitioned loops have made of it?"""
    return re.fullmatch(rf"{re.escape(name)}(_p\d+)*", block.name) is not None


def parts_of(func: Func, name: str) -> int:
    """How many parts there are of a block, in all nests that have some of it."""
    nests = [n for n in top_level(func) if any(is_part(b, name) for b in blocks(n))]
    return sum(n.extent if isinstance(n, For) and n.kind is LoopKind.PARALLEL else 1 for n in nests)
