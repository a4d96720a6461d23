"""Ours as an engine among others: it runs in a process of its own, behind the methods that `guest.engines` lists."""

import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tilewright.api import load
from tilewright.cli.feeds import make_feeds
from tilewright.cli.guest.job import Job
from tilewright.cli.options import PROGRAM
from tilewright.cli.output import OnProgress
from tilewright.compiler import compile as compile_model
from tilewright.dynamic import DynamicSession
from tilewright.runtime.session import Session
from tilewright.support.errors import MultipleProgramsError
from tilewright.version import __version__


class OwnEngine:
    """Compiles with every core that the job allows, and without a cache, which would hide the compiler; loads and runs
    on the cores of its process. `phases` has the seconds of each.
    """

    version = __version__

    def __init__(self, job: Job, progress: OnProgress) -> None:
        self.phases: dict[str, float] = {}
        self._options = job.options
        shapes = {name: tuple(shape) for name, shape in job.options["shapes"].items()}
        target: str = job.options["target"]
        accuracy: str | None = job.options["accuracy"]
        model = Path(job.model)
        compiled = None
        if model.suffix != PROGRAM:
            # What becomes several programs is compiled when they are first run.
            with (
                _on_cores(job.cores),
                _without_cache(),
                self._timed("compile"),
                suppress(MultipleProgramsError),
            ):
                compiled = compile_model(
                    model, shapes=shapes, target=target, accuracy=accuracy, progress=progress
                )
        with self._timed("load"):
            self._session: Session | DynamicSession = (
                load(model, shapes=shapes, threads=job.threads, target=target, accuracy=accuracy)
                if compiled is None
                else compiled.session(job.threads)
            )
        self.outputs = [o.name for o in self._session.outputs]

    def make_feeds(self) -> dict[str, NDArray[Any]]:
        return make_feeds(self._session.inputs, self._options["files"], self._options["seed"])

    def bind(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Where the host has a part in the model, a run takes the arrays every time."""
        session = self._session
        if isinstance(session, DynamicSession):
            session.run(feeds)  # so that it is known whether the host has a part
            if session.staged is not None:
                self._run: Callable[[], Mapping[str, Any]] = partial(session.run, feeds)
                return
        self._run = session.bind(feeds).run

    def run(self) -> None:
        self._results = self._run()

    def results(self) -> list[Any]:
        return list(self._results.values())

    @contextmanager
    def _timed(self, phase: str) -> Generator[None]:
        start = time.perf_counter()
        yield
        self.phases[phase] = time.perf_counter() - start


@contextmanager
def _on_cores(cores: list[int]) -> Generator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _without_cache() -> Generator[None]:
    before = os.environ.get("TILEWRIGHT_CACHE")
    os.environ["TILEWRIGHT_CACHE"] = "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TILEWRIGHT_CACHE"]
        else:
            os.environ["TILEWRIGHT_CACHE"] = before
