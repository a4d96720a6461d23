"""Programs of one model that differ in who runs what, compiled and timed in turns, in this process."""

import gc
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import ModelProto

from benchmarks.interleave import interleave
from benchmarks.placement_results import MEASURED, NATIVE, Program, Row
from benchmarks.suite_measure import stored_inputs
from benchmarks.suite_results import failure_text
from tilewright.cli.difference import compare_outputs, worst
from tilewright.cli.feeds import make_feeds
from tilewright.compiler import CompiledModel, compile_for
from tilewright.graph.external import Answer, No, Plugin, Region, RunRegion, Unit
from tilewright.ops.accuracy import Accuracy
from tilewright.placement.options import NATIVE as NO_PLUGINS
from tilewright.placement.options import PluginOptions
from tilewright.runtime.cache import default_cache
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.session import Session
from tilewright.support.affinity import pinned
from tilewright.support.arrays import Array
from tilewright.support.artifact import Artifact
from tilewright.support.policy import Policy
from tilewright.target.names import resolve_target


class Nothing(Plugin):
    """Is asked about everything, and takes nothing."""

    name = "nothing"
    version = "1"

    def supports(self, unit: Unit) -> Answer:
        return No("it takes nothing")

    def compile(self, region: Region, constants: Mapping[str, Array]) -> bytes:
        raise AssertionError("it has no region")

    def load(self, blob: bytes, constants: Mapping[str, Array], threads: int) -> RunRegion:
        raise AssertionError("it has no region")


def option_sets(plugins: tuple[str, ...], threads: int) -> dict[str, PluginOptions]:
    """Native code, each plugin alone, and all of them by measurement. That is compiled first, with nothing cached."""
    return {
        MEASURED: PluginOptions(plugins, Policy.MEASURED, threads=threads),
        NATIVE: NO_PLUGINS,
        **{name: PluginOptions((name,), Policy.GREEDY, threads=threads) for name in plugins},
    }


def race(
    model: Path | ModelProto,
    option_sets: Mapping[str, PluginOptions],
    *,
    threads: int,
    rounds: int,
    seconds: float,
    compiles: int = 1,
) -> Row:
    """A program for each set of options, all timed in turns on the same inputs. One that cannot be made has a failure.

    Programs share their kernels, so that only the first is compiled from nothing; with several `compiles`, each is that
    often, and the quickest counts.
    """
    found: dict[str, Program] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(_own_folder())
        made: dict[str, tuple[CompiledModel, float]] = {}
        for name, plugin_options in list(option_sets.items()) * compiles:
            try:
                with _own_folder() if compiles > 1 else nullcontext():
                    compiled, taken = _compiled(model, plugin_options)
            except Exception as e:  # a model that cannot be compiled is a result, and not a good one
                found[name] = Program(failure=failure_text(f"{type(e).__name__}: {e}"))
                continue
            made[name] = (compiled, min(taken, made[name][1]) if name in made else taken)
        stack.enter_context(pinned(threads))
        sessions = {name: stack.enter_context(c.session(threads)) for name, (c, _) in made.items()}
        if sessions:
            feeds = _feeds(model, next(iter(sessions.values())), folder)
            runs: dict[str, Callable[[], Mapping[str, NDArray[Any]]]] = {
                name: session.bind(feeds).run for name, session in sessions.items()
            }
            results = {name: {n: a.copy() for n, a in run().items()} for name, run in runs.items()}
            series = interleave(runs, rounds=rounds, seconds=seconds)
            reference = results.get(NATIVE, next(iter(results.values())))
            for name, (c, taken) in made.items():
                found[name] = Program(
                    tuple(1e3 * s for s in series[name].round_medians),
                    _who(c.artifact),
                    len(c.artifact.regions),
                    taken,
                    worst(compare_outputs(results[name], reference)),
                    _digest(c.artifact),
                )
    gc.collect()  # sessions of others hold gigabytes
    return Row({name: found[name] for name in option_sets})


def _compiled(model: Path | ModelProto, plugin_options: PluginOptions) -> tuple[CompiledModel, float]:
    """The program, and the seconds that it took."""
    start = time.perf_counter()
    target, bound = resolve_target("native"), Accuracy.of(None)
    made = compile_for(target, model, "", None, bound, default_cache(), plugin_options=plugin_options)
    return made, time.perf_counter() - start


def _digest(artifact: Artifact) -> str:
    h = hashlib.sha256()
    for code in (*artifact.objects, *(r.blob for r in artifact.regions)):
        h.update(hashlib.sha256(code).digest())
    return h.hexdigest()[:16]


def _who(artifact: Artifact) -> tuple[str, ...]:
    """Native code has a part if any of it is called."""
    plugins = tuple(dict.fromkeys(r.plugin for r in artifact.regions))
    return ((NATIVE,) if artifact.objects or not plugins else ()) + plugins


def _feeds(model: Path | ModelProto, session: Session | OpenSession, folder: Path) -> dict[str, NDArray[Any]]:
    return make_feeds(session.inputs, stored_inputs(model, folder) if isinstance(model, Path) else {})


@contextmanager
def _own_folder() -> Generator[Path]:
    """A cache and a database for one model: nothing that was measured or tuned before counts, and programs of the same
    model share their kernels.
    """
    before = {name: os.environ.get(name) for name in ("TILEWRIGHT_CACHE", "TILEWRIGHT_DB")}
    with tempfile.TemporaryDirectory(prefix="tilewright-placement-") as name:
        os.environ["TILEWRIGHT_CACHE"] = str(Path(name) / "cache")
        os.environ["TILEWRIGHT_DB"] = str(Path(name) / "tuning.db")
        try:
            yield Path(name)
        finally:
            for variable, value in before.items():
                if value is None:
                    del os.environ[variable]
                else:
                    os.environ[variable] = value
