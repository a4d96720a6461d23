"""Ours as engines of `benchmarks.open_shapes`: one program for all sizes, with and without state, and one for each."""

import logging
import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

import tilewright as tw
from benchmarks.engines.open_calls import OpenCalls, Sizes, Text
from tilewright.cli.guest.job import EngineJob
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.session import Session
from tilewright.sessions.dynamic import DynamicSession
from tilewright.support.progress import OnProgress
from tilewright.version import __version__

SessionLike = Session | DynamicSession | OpenSession


class _OwnCalls(OpenCalls):
    """Counts programs that are compiled, by the beginnings that the compiler tells of."""

    version = __version__

    def count(self, stage: str, done: int, total: int) -> None:
        self.compiled += stage == "import" and done == 0


class OpenEngine(_OwnCalls):
    """`dims` of the job's options are the ranges.

    Compiled into an empty cache, on all cores that the job allows; then loaded from it, because its threads belong on
    the cores of this process. `fallback` is why there is no program for all sizes, if there is none.
    """

    def __init__(self, job: EngineJob, progress: OnProgress) -> None:
        super().__init__(job)
        os.environ["TILEWRIGHT_CACHE"] = os.path.join(job.folder, "programs")

        def load() -> SessionLike:
            return tw.load(job.model, dims=job.options["dims"], threads=job.threads, progress=self.count)

        start = time.perf_counter()
        with _on_cores(job.cores), _logged("a program for each shape: ") as why:
            made = load()
        self.phases = {"load": time.perf_counter() - start}
        self.fallback = "" if isinstance(made, OpenSession) else (why or [type(made).__name__])[0]
        if not self.fallback:
            made.close()
            made = load()
        self._session = made
        self._state: Any = None

    def call(self, feeds: dict[str, Any]) -> list[Any]:
        return list(self._session.run(feeds).values())

    def answer(self, do: str, command: dict[str, Any]) -> dict[str, Any]:
        return {**super().answer(do, command), "fallback": self.fallback}

    def begin(self, sizes: Sizes, is_kept: bool) -> dict[str, Any]:
        super().begin(sizes, is_kept)
        if is_kept:
            session: Any = self._session
            self._state = session.state(self._texts[True].cache)
            self._texts[True].cache = {}
        return {}

    def step(self, text: Text, feeds: dict[str, NDArray[Any]]) -> list[Any]:
        if text is self._texts.get(True):
            return list(self._state.step(feeds).values())
        return super().step(text, feeds)


class StaticEngine(_OwnCalls):
    """A program for each of the `sizes` of the job's options, from the cache if it is there."""

    def __init__(self, job: EngineJob, progress: OnProgress) -> None:
        super().__init__(job)
        self._sessions: dict[tuple[tuple[int, ...], ...], SessionLike] = {}
        for sizes in job.options["sizes"]:
            shapes = {n: v.shape for n, v in self.feeds(sizes).items()}
            with _on_cores(job.cores):  # compiles; what is made for threads comes after
                tw.load(job.model, shapes=shapes, threads=1, progress=self.count).close()
            self._sessions[_key(self.feeds(sizes))] = tw.load(job.model, shapes=shapes, threads=job.threads)

    def call(self, feeds: dict[str, Any]) -> list[Any]:
        return list(self._sessions[_key(feeds)].run(feeds).values())


def _key(feeds: Mapping[str, NDArray[Any]]) -> tuple[tuple[int, ...], ...]:
    return tuple(v.shape for v in feeds.values())


@contextmanager
def _on_cores(cores: list[int]) -> Generator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _logged(begins: str) -> Generator[list[str]]:
    """What the logger says after these words."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith(begins):
                found.append(text.removeprefix(begins))

    logger, handler = logging.getLogger("tilewright"), Handler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
