"""Dividing work among a team whose size is not known yet."""

from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Parallel

ENOUGH_PARTS = 16  # so that any small team shares them nearly evenly
PARALLEL_WORK = 16384  # elements below which waking a team costs more than it saves
PARALLEL_STEPS = 8 * PARALLEL_WORK  # reduction steps: quicker than elements, which come from memory


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
