"""What a team makes of the time of a kernel.

Most programs do not know how many cores they will run on: they are made by one core's time, on which too few parts
weigh a little. Where a choice makes one core a little slower and several much faster, it is judged by the teams of
`TEAMS`, and bounded by what it costs one core. A program that is compiled for a number of threads (`Machine.threads`)
is made by the time that these need.
"""

from collections.abc import Iterable, Sequence
from math import ceil, sqrt

import numpy as np

from tilewright.cost.terms import Amount, Amounts, TermName, scaled, summed, with_team
from tilewright.ir.expr import Buffer
from tilewright.ir.simplify import Simplifier
from tilewright.support.arrays import FloatArray
from tilewright.target.machine import Machine

TEAMS = (2, 3, 4)  # threads of the teams that choices for an unknown number are judged by; bound
# Parts that any of these teams shares nearly evenly. Counted: four for each of the largest, so that whoever has one
# more takes a quarter longer.
ENOUGH_PARTS = 4 * max(TEAMS)
# Of the time, for each time that there are too few: less than what any other term decides. Swept
# (docs/results/constants.md).
FEW_PARTS = 0.01
_WORTH = 5.0  # meetings that a kernel must take on one core. Counted: half of that and a meeting is 0.7 of it


def least_shared(m: Machine) -> float:
    """Seconds on one core from which on a team shares a kernel."""
    return _WORTH * m.meeting_seconds


def few_parts(parts: float) -> float:
    """A factor for one core's time: parts so few cannot be balanced by whoever has time."""
    return 1.0 + FEW_PARTS * max(ENOUGH_PARTS / parts - 1.0, 0.0)


def usual_share(buffer: Buffer, dims: Iterable[int]) -> float:
    """Of all iterations along these dimensions, those that there are at a usual size, if they are open: the geometric
    mean of the ends.
    """
    share, bounds = 1.0, Simplifier({}).bounds
    for d in dims:
        size = buffer.sizes[d] if buffer.is_open(d) else None
        if size is not None:
            ends = bounds(size)
            share *= sqrt(max(ends.lo, 1) * max(ends.hi, 1)) / buffer.shape[d]
    return min(share, 1.0)


def shared_seconds(alone: float, parts: int, threads: int, m: Machine) -> float:
    """Of a kernel that takes one core so long `alone`: the time of whoever has most of its equal parts."""
    if threads == 1 or parts == 1:
        return alone
    most = ceil(parts / threads)
    return alone * few_parts(parts) * most / parts + most * m.part_seconds + m.meeting_seconds


def team_seconds(alone: float, parts: int, m: Machine) -> float:
    """What teams need on average."""
    return sum(shared_seconds(alone, parts, n, m) for n in TEAMS) / len(TEAMS)


def saved_beside(alone: Sequence[float], meanwhile: float, m: Machine) -> float:
    """What teams save on average if they share kernels of one part that take so long each, which the caller's thread
    would run one after the other. Before the next meeting, the team shares work of `meanwhile` seconds as well.
    """
    teams = TEAMS if m.threads == 1 else (m.threads,)
    total, saved = sum(alone), 0.0
    for n in teams:
        evenly_shared = (total + meanwhile) / n
        after = max(*alone, evenly_shared) + ceil(len(alone) / n) * m.part_seconds + m.meeting_seconds
        saved += max(total, evenly_shared) - after
    return saved / len(teams)


def ranked_seconds(alone: FloatArray, parts: FloatArray | float, m: Machine) -> FloatArray:
    """What candidates are ranked by that take one core the time `alone`, in `parts` parts: that time, with a little
    more for too few parts; or, if the program is for several threads, the time of the one that has most parts.
    """
    few = 1.0 + FEW_PARTS * np.maximum(ENOUGH_PARTS / np.asarray(parts, np.float64) - 1.0, 0.0)
    if m.threads == 1:
        return alone * few
    parts = np.asarray(parts, np.float64)
    most = np.ceil(parts / m.threads)
    shared = alone * few * most / parts + most * m.part_seconds + m.meeting_seconds
    return np.where((alone < least_shared(m)) | (parts <= 1), alone, shared)


def ranked_terms(alone: Amounts, parts: FloatArray | float, m: Machine) -> dict[TermName, Amount]:
    """What that is made of: the share of whoever has most parts, and what the team adds."""
    total = np.asarray(summed(alone), np.float64)
    share = scaled(alone, _largest_share(total, parts, m)) if m.threads > 1 else alone
    return with_team(share, ranked_seconds(total, parts, m))


def _largest_share(alone: FloatArray, parts: FloatArray | float, m: Machine) -> FloatArray:
    """Of the parts, those of the worker that has most."""
    parts = np.asarray(parts, np.float64)
    return np.where(
        (alone < least_shared(m)) | (parts <= 1), 1.0, np.ceil(parts / m.threads) / np.maximum(parts, 1.0)
    )


def evenly(alone: float, m: Machine) -> float:
    """Of work that is divided as one likes."""
    return alone / m.threads if alone >= least_shared(m) else alone


def even_terms(alone: Amounts, m: Machine) -> dict[TermName, Amount]:
    """What that is made of."""
    return scaled(alone, 1.0 / m.threads if summed(alone) >= least_shared(m) else 1.0)
