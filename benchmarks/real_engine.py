"""Ours as an engine of `benchmarks.real`: as an application uses it, through `tilewright.load` and its cache.

The first process that loads a file compiles it, on all cores that the job allows; then it is loaded from the cache,
because threads belong on the cores of the process. Where a program depends on feeds, it is compiled when they come.
"""

import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from numpy.typing import NDArray

import tilewright as tw
from tilewright.cli.guest.job import EngineJob
from tilewright.sessions.dynamic import DynamicSession
from tilewright.support.progress import OnProgress
from tilewright.version import __version__


class RealEngine:
    """`phases` are in seconds: `compile` is that of the first load, which finds the program if it was compiled before,
    and `load` that of the second.
    """

    version = __version__

    def __init__(self, job: EngineJob, progress: OnProgress) -> None:
        self.phases: dict[str, float] = {}
        with self._timed("compile"), _on_cores(job.cores):
            tw.load(job.model, threads=1).close()
        with self._timed("load"):
            self._session = tw.load(job.model, threads=job.threads)

    def bind(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Where the host has a part in the model, a run takes the arrays every time."""
        session = self._session
        if isinstance(session, DynamicSession):
            with self._timed("compile", more=True):  # on our cores: its threads are made here, too
                session.run(feeds)
            if session.staged is not None:
                self._run: Callable[[], Mapping[str, Any]] = partial(session.run, feeds)
                return
        self._run = session.bind(feeds).run

    def run(self) -> None:
        self._results = self._run()

    def results(self) -> list[Any]:
        return list(self._results.values())

    @contextmanager
    def _timed(self, phase: str, *, more: bool = False) -> Generator[None]:
        start = time.perf_counter()
        yield
        before = self.phases.get(phase, 0.0) if more else 0.0
        self.phases[phase] = before + time.perf_counter() - start


@contextmanager
def _on_cores(cores: list[int]) -> Generator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
