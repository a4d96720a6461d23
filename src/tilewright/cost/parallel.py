"""What a team makes of the time of a kernel.

A program does not know how many cores it will run on. Where a choice makes one core a little slower and several much
faster, it is judged by the teams of `TEAMS`, and bounded by what it costs one core.
"""

from math import ceil

ENOUGH_PARTS = 16  # so that any small team shares them nearly evenly
MEETING_SECONDS = 0.3e-6
LEAST_SHARED = 1.5e-6  # seconds on one core: two are done in little more than half of that
TEAMS = (2, 3, 4)
PART_SECONDS = 0.03e-6  # to claim a part, and until its operands stream
_FEW_PARTS = 0.01  # of the time, for each time that there are too few


def few_parts(parts: float) -> float:
    """A factor for one core's time: parts so few cannot be balanced by whoever has time."""
    return 1.0 + _FEW_PARTS * max(ENOUGH_PARTS / parts - 1.0, 0.0)


def shared_seconds(alone: float, parts: int, threads: int) -> float:
    """Of a kernel that takes one core so long `alone`: the time of whoever has most of its equal parts."""
    if threads == 1 or parts == 1:
        return alone
    most = ceil(parts / threads)
    return alone * few_parts(parts) * most / parts + most * PART_SECONDS + MEETING_SECONDS


def team_seconds(alone: float, parts: int) -> float:
    """What teams need on average."""
    return sum(shared_seconds(alone, parts, n) for n in TEAMS) / len(TEAMS)
