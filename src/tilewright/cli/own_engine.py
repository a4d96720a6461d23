"""Ours as an engine among others: it runs in a process of its own, behind the methods that
`tilewright.cli.guest` lists. A compiled program is timed without the compiler.
"""

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilewright.api import load
from tilewright.cli.feeds import make_feeds, read_sample
from tilewright.cli.guest.job import EngineJob
from tilewright.cli.options import PROGRAM
from tilewright.ops.accuracy import Accuracy
from tilewright.placement.options import NATIVE, PluginOptions
from tilewright.runtime import file
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.session import Session
from tilewright.support.artifact import RegionCode
from tilewright.support.errors import MultipleProgramsError
from tilewright.support.progress import OnProgress
from tilewright.version import __version__

if TYPE_CHECKING:
    from tilewright.compiler import CompiledModel
    from tilewright.sessions.dynamic import DynamicSession


class OwnEngine:
    """Compiles with every core that the job allows, and without a cache, which would hide the compiler; loads and runs
    on the cores of its process. `phases` has the seconds of each. Plugins run parts of the model if the job's options
    have a `plugin_options`; `plugins` says which.
    """

    version = __version__

    def __init__(self, job: EngineJob, progress: OnProgress) -> None:
        self.phases: dict[str, float] = {}
        self.note: str | None = None
        shapes = {name: tuple(shape) for name, shape in job.options.get("shapes", {}).items()}
        dims: dict[str, list[int]] = job.options.get("dims", {})
        target: str = job.options.get("target", "native")
        accuracy: str | None = job.options.get("accuracy")
        plugin_options = _plugin_options(job)
        model = Path(job.model)
        compiled: CompiledModel | None = None
        if model.suffix != PROGRAM:
            with _on_cores(job.cores), self._timed("compile"):
                try:
                    compiled = import_module("tilewright.cli.uncached").compile_uncached(
                        model, shapes, dims, target, Accuracy.of(accuracy), progress, plugin_options
                    )
                except MultipleProgramsError as e:  # they are compiled when they are first run
                    self.note = f"a program for each shape: {e.message}" if dims else None
        with self._timed("load"):
            self._session: Session | DynamicSession | OpenSession = (
                load(
                    model,
                    shapes=shapes,
                    dims=dims,
                    threads=job.threads,
                    target=target,
                    accuracy=accuracy,
                    plugins=plugin_options.plugins,
                    placement=plugin_options.policy.value,
                    strict=plugin_options.strict,
                    calibration=plugin_options.calibration,
                )
                if compiled is None
                else compiled.session(job.threads, strict=plugin_options.strict)
            )
        regions: Sequence[RegionCode] | None = None
        if compiled is not None:
            regions = compiled.artifact.regions
        elif model.suffix == PROGRAM:
            regions = file.load_artifact(model).regions
        self.plugins = _told(plugin_options, regions)
        self.outputs = [o.name for o in self._session.outputs]

    def make_feeds(self, options: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        return make_feeds(self._session.inputs, options["files"], options["seed"], options.get("sizes"))

    def bind(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Where the host has a part in the model, a run takes the arrays every time."""
        session = self._session
        if not isinstance(session, Session | OpenSession):
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


def _plugin_options(job: EngineJob) -> PluginOptions:
    """Placements are measured with as many threads as the model is run with."""
    given: dict[str, Any] | None = job.options.get("plugin_options")
    if given is None:
        return NATIVE
    samples = map(read_sample, given["samples"])
    return PluginOptions.of(given["plugins"], given["policy"], given["strict"], job.threads, samples)


def _told(plugin_options: PluginOptions, regions: Sequence[RegionCode] | None) -> dict[str, Any] | None:
    """What there is to tell of plugins; None if they have no part in it."""
    if not plugin_options.plugins and not regions:
        return None
    placed = None if regions is None else [(r.key, r.plugin, r.version) for r in regions]
    return {"names": plugin_options.plugins, "policy": plugin_options.policy.value, "regions": placed}


@contextmanager
def _on_cores(cores: list[int]) -> Generator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
