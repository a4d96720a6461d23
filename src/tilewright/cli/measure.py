"""One model measured: every phase on the way to a running session, then steady state, alone or in turns with another
engine. `tilewright bench`, the demo and the benchmarks all measure through here.
"""

import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.api import load
from tilewright.cli.difference import compare, worst
from tilewright.cli.feeds import make_feeds
from tilewright.cli.machine import pinned
from tilewright.cli.options import PROGRAM
from tilewright.cli.output import OnProgress
from tilewright.cli.peers import OnnxRuntime
from tilewright.cli.timing import Ratio, Series, interleave, speedup
from tilewright.compiler import compile as compile_model
from tilewright.dynamic import DynamicSession
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.machine import default_threads
from tilewright.runtime.session import Session
from tilewright.support.errors import MultipleProgramsError, UserError

OURS = "tilewright"
NO_SHAPES: Mapping[str, tuple[int, ...]] = {}
NO_FILES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Report:
    """`start_up` has the seconds of each phase, in order; `error` and `speedup` exist if there was another engine."""

    model: str
    threads: int
    cores: tuple[int, ...]
    start_up: dict[str, float]
    engines: dict[str, Series]
    error: float | None = None

    @property
    def ours(self) -> Series:
        return self.engines[OURS]

    @property
    def speedup(self) -> dict[str, Ratio]:
        """By engine: how many times longer it takes than we do."""
        return {name: speedup(self.ours, series) for name, series in self.engines.items() if name != OURS}

    def as_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "threads": self.threads,
            "cores": self.cores,
            "start_up_seconds": self.start_up,
            "engines": {name: series.as_json() for name, series in self.engines.items()},
            "speedup": {name: ratio.as_json() for name, ratio in self.speedup.items()},
            "error": self.error,
        }


def measure(
    model: Path,
    *,
    shapes: Mapping[str, tuple[int, ...]] = NO_SHAPES,
    files: Mapping[str, str] = NO_FILES,
    seed: int = 0,
    threads: int | None = None,
    target: str = "native",
    accuracy: Accuracy | None = None,
    against_ort: bool = False,
    rounds: int = 7,
    seconds: float = 0.5,
    progress: OnProgress | None = None,
) -> Report:
    """Compile (with every core, and without a cache, which would hide the compiler), load and run, pinned to as many
    cores as threads.
    """
    threads = threads or default_threads()
    is_program = model.suffix == PROGRAM
    if is_program and against_ort:
        raise UserError(
            "other engines cannot read a .tw program", where=str(model), hint="give the .onnx file"
        )
    available = len(os.sched_getaffinity(0))
    if threads > available:
        raise UserError(
            f"{threads} threads on {available} usable core(s) would time how they share, not the model",
            hint=f"measure with at most {available}",
        )
    start_up: dict[str, float] = {}
    compiled = None
    if not is_program:
        # What becomes several programs is compiled when they are first run.
        with _without_cache(), _timed(start_up, "compile"), suppress(MultipleProgramsError):
            compiled = compile_model(
                model, shapes=shapes, target=target, accuracy=accuracy, progress=progress
            )
    with pinned(threads) as cores:
        with _timed(start_up, "load"):
            session = (
                load(model, shapes=shapes, threads=threads, target=target, accuracy=accuracy)
                if compiled is None
                else compiled.session(threads)
            )
        feeds = make_feeds(session.inputs, files, seed)
        with _timed(start_up, "first_run"):
            session.run(feeds)
        engines: dict[str, Callable[[], object]] = {OURS: _runner(session, feeds)}
        error: float | None = None
        if against_ort:
            peer = OnnxRuntime(str(model), threads)
            error = worst(compare(session.run(feeds), peer(feeds)))
            engines[peer.name] = peer.bind(feeds)

        def on_round(done: int) -> None:
            if progress is not None:
                progress("measure", done, rounds)

        series = interleave(engines, rounds=rounds, seconds=seconds, on_round=on_round)
    return Report(str(model), threads, cores, start_up, series, error)


def _runner(session: Session | DynamicSession, feeds: Mapping[str, Any]) -> Callable[[], object]:
    """A run with the arrays bound; where the host has a part in it, it takes them every time."""
    if isinstance(session, Session) or session.staged is None:
        return session.bind(feeds).run
    return partial(session.run, feeds)


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


@contextmanager
def _timed(into: dict[str, float], phase: str) -> Generator[None]:
    start = time.perf_counter()
    yield
    into[phase] = time.perf_counter() - start
