"""The process of one engine: it takes a JSON command a line, and gives JSON answers a line.

    {"do": "load", …fields of EngineJob…} -> versions, seconds of each phase, how many outputs are in the folder
    {"do": "bind", …fields of EngineJob…} -> the same for other inputs, without loading the model again
    {"do": "turn", "seconds": 0.5}        -> the seconds of each run
    {"do": …}                             -> what the engine's own method `answer` gives, if it has one

While it works it may answer {"progress": [stage, done, total]} any number of times. What went wrong is an answer too;
only a crash ends the process. Arrays go through .npy files in the job's folder, without pickle.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from .job import EngineJob
from .turn import take_turn

_TRACE = 4000  # characters of a traceback that are reported


class EngineServer:
    """Holds the engine between commands."""

    def __init__(self, source: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self._source, self._tell = source, tell
        self._engine: Any = None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        try:
            do: str = command.pop("do")
            if do == "load":
                return self._load(EngineJob(**command))
            if do == "bind":
                return self._bound(EngineJob(**command), {})
            if do == "turn":
                return {"times": take_turn(self._engine.run, command["seconds"]), "peak_mb": _peak_mb()}
            return self._engine.answer(do, command)
        except Exception as error:
            return _failure(error)

    def _load(self, job: EngineJob) -> dict[str, Any]:
        for package in job.packages:
            import_module(package)
        module, _, name = self._source.partition(":")
        make = getattr(import_module(module), name)
        start = time.perf_counter()
        self._engine = engine = make(job, self._progress)
        phases: dict[str, float] = getattr(engine, "phases", None) or {"load": time.perf_counter() - start}
        return self._bound(job, phases)

    def _bound(self, job: EngineJob, phases: dict[str, float]) -> dict[str, Any]:
        """The inputs of the job are those of the runs to come."""
        engine = self._engine
        feeds: dict[str, Any] = job.read_feeds() if job.feeds is not None else engine.make_feeds(job.options)
        engine.bind(feeds)
        start = time.perf_counter()
        engine.run()
        phases["first_run"] = time.perf_counter() - start
        answer: dict[str, Any] = {"phases": phases, "version": str(engine.version), "peak_mb": _peak_mb()}
        answer["plugins"] = getattr(engine, "plugins", None)
        answer["note"] = getattr(engine, "note", None)
        if job.feeds is None:
            answer["feeds"] = job.write_feeds(feeds)
            answer["outputs"] = list(engine.outputs)
        answer["results"] = [_write(job, n, value) for n, value in enumerate(engine.results())]
        return answer

    def _progress(self, stage: str, done: int, total: int) -> None:
        self._tell({"progress": [stage, done, total]})


def _write(job: EngineJob, number: int, value: Any) -> str | None:
    """The type of a result, whose array is in the folder now; None for what is no array."""
    if not isinstance(value, np.ndarray):
        return None
    array = cast("NDArray[Any]", value)
    if array.dtype.kind == "O":  # strings
        array = array.astype(str)
    np.save(job.result(number), array, allow_pickle=False)
    return array.dtype.name


def _failure(error: Exception) -> dict[str, Any]:
    """All that another process needs to tell of an error; a missing package is named."""
    text = str(error).strip() or type(error).__name__
    answer: dict[str, Any] = {
        "error": text,
        "types": [c.__name__ for c in type(error).__mro__],
        "trace": "".join(traceback.format_exception(error))[-_TRACE:],
    }
    for key in ("message", "where", "hint"):
        answer[key] = getattr(error, key, None)
    # A hint of ours that has other words on the command line, which is where this one is read.
    answer["hint"] = getattr(answer["hint"], "command", answer["hint"])
    if isinstance(error, ModuleNotFoundError):
        answer["missing"] = error.name
    return answer


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(commands: TextIO, answers: TextIO, source: str) -> None:
    def tell(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    server = EngineServer(source, tell)
    for line in commands:
        tell(server.answer(json.loads(line)))


def main() -> None:
    """Arguments: the engine's source (module:class), and the cores to stay on, which hold for every thread to come."""
    source, cores = sys.argv[1:3]
    os.sched_setaffinity(0, [int(c) for c in cores.split(",")])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints must not mix with the answers
    serve(sys.stdin, answers, source)
