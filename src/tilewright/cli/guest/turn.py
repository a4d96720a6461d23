"""One turn of an engine: run after run, each timed by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

WARM_UP_RUNS = 2  # of each turn: the other engines have evicted our caches, and our workers sleep
MIN_RUNS = 3  # of each turn, however slow


def take_turn(run: Callable[[], object], seconds: float) -> tuple[float, ...]:
    """The seconds of each run, for about `seconds`."""
    for _ in range(WARM_UP_RUNS):
        run()
    found: list[float] = []
    clock = time.perf_counter
    end = clock() + seconds
    while len(found) < MIN_RUNS or clock() < end:
        start = clock()
        run()
        found.append(clock() - start)
    return tuple(found)
