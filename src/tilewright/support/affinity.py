"""Which cores this process may use."""

import os
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def pinned(threads: int) -> Generator[tuple[int, ...]]:
    """Confine this process to as many cores as threads, so that engines compared in it have equal means."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)[-threads:]
    os.sched_setaffinity(0, cores)
    try:
        yield tuple(cores)
    finally:
        os.sched_setaffinity(0, before)
