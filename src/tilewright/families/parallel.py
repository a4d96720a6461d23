"""Dividing work among a team whose size is not known yet, where that pays.

What a kernel costs on one core (`cost/work.py`, or the closed form of a rule) is compared with what sharing it costs:
workers meet afterwards, and fetch what they made from each other's caches. A meeting takes a tenth of a microsecond, a
job of a team that is awake three tenths more than one without (`docs/results/barrier.md`).
"""

import re

from tilewright.cost.parallel import ENOUGH_PARTS, least_shared
from tilewright.cost.work import block_seconds
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import top_level
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Parallel
from tilewright.target.machine import SHIPPED
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, LoopKind, blocks


def is_worth_sharing(lanes: int, *shared: Block) -> bool:
    """Should a team share what these blocks do? All of them are in each part."""
    return sum(block_seconds(b, lanes, SHIPPED) for b in shared) >= least_shared(SHIPPED)


def part_size(extent: int) -> int:
    """Iterations per part, dividing `extent`: few enough for many parts, and enough that starting one costs little."""
    if extent < 4 * ENOUGH_PARTS:
        return 1
    return max(size for size in range(1, extent // ENOUGH_PARTS + 1) if extent % size == 0)


def parallel_prefix(s: Draft, loops: tuple[str, ...]) -> None:
    """Make the outermost of `loops` (a perfect nest) parallel, fused with the next until there are enough
    parts.
    """
    taken: list[str] = []
    parts = 1
    for name in loops:
        if parts >= ENOUGH_PARTS:
            break
        taken.append(name)
        parts *= s.loop(name).extent
    if parts > 1:
        s.apply(Parallel(s.apply(Fuse(tuple(taken))).name if len(taken) > 1 else taken[0]))


def is_part(block: Block, name: str) -> bool:
    """Is it the block of this name, or what partitioned loops have made of it?"""
    return re.fullmatch(rf"{re.escape(name)}(_p\d+)*", block.name) is not None


def parts_of(func: Func, name: str) -> int:
    """How many parts there are of a block, in all nests that have some of it."""
    nests = [n for n in top_level(func) if any(is_part(b, name) for b in blocks(n))]
    return sum(n.extent if isinstance(n, For) and n.kind is LoopKind.PARALLEL else 1 for n in nests)
