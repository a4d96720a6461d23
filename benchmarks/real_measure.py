"""Published networks measured: each engine in a process of its own, on the same cores, in turns.

What one run of a network with a number of threads finds is JSON:

    {"engines": {"ort": {"version", "phases", "seconds", "rounds", "error"} or {"failed", "is_missing"}, …}, …}

`seconds` is the median of all timed calls, `rounds` has those of each round, `error` is against ONNX Runtime's results.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.catalogue import ENGINES, ROOT
from benchmarks.options import Turns
from benchmarks.real_files import bench_home, input_dtypes, output_names, write_fixed
from benchmarks.real_models import PublishedModel, Sizes
from benchmarks.suite_measure import suite_pythons
from benchmarks.suite_results import OURS, failure_text
from tilewright.cli.catalogue import Peer, interpreter
from tilewright.cli.difference import compare_outputs, worst
from tilewright.cli.engine_process import EngineFailure, EngineProcess
from tilewright.cli.guest.job import read_raw_array
from tilewright.cli.machine import machine
from tilewright.cli.measure import in_shape
from tilewright.support.turns import Series, take_turns

REFERENCE = "ort"
OWN = Peer(OURS, "Tilewright", "benchmarks.real_engine:RealEngine", (), "", ROOT)
_PLACES = ("Exception from", "Check '", "FrontEnd API failed")  # lines in which OpenVINO says where it was
_TIMEOUT = 300.0  # seconds of a step: a converter that hangs is a failure


def engine_python(name: str) -> str:
    """That of `BENCH_PYTHON_<ENGINE>`, of the environment below `$BENCH_HOME`, or ours."""
    if name == OURS:
        return sys.executable
    own = bench_home() / name / "bin" / "python"
    return interpreter(name, {**({name: str(own)} if own.exists() else {}), **suite_pythons([name])})


class RealRace:
    """Engines that have loaded a file. What they say of it is in `found`, by engine."""

    def __init__(
        self,
        file: Path,
        names: Sequence[str],
        threads: int,
        work: Path,
        stack: ExitStack,
        others: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        """`work` keeps what engines convert from one run to the next. `others` are names of ours with other files."""
        self.found: dict[str, dict[str, Any]] = {}
        self._file, self._threads, self._work, self._others = file, threads, work, others
        self._outputs = output_names(file)
        self._processes: dict[str, EngineProcess] = {}
        self._stack = stack
        self._names = names

    def load(self, feeds: Mapping[str, Any]) -> None:
        self._write(feeds)
        for name in self._names:
            peer = self._peer(name)
            folder = self._work / name
            folder.mkdir(parents=True, exist_ok=True)
            cores = machine().affinity
            python = engine_python(OURS if peer is OWN else name)
            process = EngineProcess(peer, python, self._threads, cores[-self._threads :], folder, _TIMEOUT)
            self._processes[name] = self._stack.enter_context(process)
            self._ask(name, "load")

    def _peer(self, name: str) -> Peer:
        return OWN if name == OURS or name in self._others else ENGINES[name]

    def bind(self, feeds: Mapping[str, Any]) -> dict[str, float]:
        """Other inputs for all that run; the seconds that each needed for them, and for a first call."""
        self._write(feeds)
        seconds: dict[str, float] = {}
        for name in list(self._processes):
            start = time.perf_counter()
            self._ask(name, "bind")
            seconds[name] = time.perf_counter() - start
        return seconds

    def time(self, turns: Turns) -> None:
        """Results are compared before the first turn."""
        for name in self._processes:
            self.found[name]["error"] = self._error(name)
        for name, series in self._take_turns(turns).items():
            if "failed" not in self.found[name]:
                self.found[name] |= {"seconds": series.median, "rounds": list(series.round_medians)}

    def _take_turns(self, turns: Turns) -> dict[str, Series]:
        def turn(name: str) -> Sequence[float]:
            try:
                return self._processes[name].ask({"do": "turn", "seconds": turns.seconds})["times"]
            except EngineFailure as e:
                self._fail(name, e)
                return ()

        return take_turns({name: partial(turn, name) for name in self._processes}, turns.rounds)

    def _write(self, feeds: Mapping[str, Any]) -> None:
        self._work.mkdir(parents=True, exist_ok=True)
        self._feeds = [(name, value.dtype.name) for name, value in feeds.items()]
        for n, value in enumerate(feeds.values()):
            np.save(self._work / f"input_{n}.npy", value, allow_pickle=False)

    def _ask(self, name: str, do: str) -> None:
        peer = self._peer(name)
        job: dict[str, Any] = {
            "model": str(self._others.get(name, self._file)),
            "threads": self._threads,
            "folder": str(self._work / name),
            "shared": str(self._work),
            "packages": peer.packages,
            "feeds": self._feeds,
            "outputs": self._outputs,
            "cores": list(machine().affinity),
        }
        try:
            answer = self._processes[name].ask({"do": do, **job})
        except EngineFailure as e:
            self._fail(name, e)
            return
        before: dict[str, float] = self.found.get(name, {}).get("phases", {})
        self.found[name] = {
            "version": answer["version"],
            "phases": {**before, **answer["phases"]},
            "kinds": answer["results"],
        }

    def _fail(self, name: str, why: EngineFailure) -> None:
        self._processes.pop(name).close()
        missing = why.missing
        text = f"{missing} is not installed" if missing else failure_text(_telling(str(why)))
        self.found[name] = {"failed": text, "is_missing": missing is not None}

    def _error(self, name: str) -> float | None:
        """None without results to compare with; infinite is a thousand, as JSON has no infinity."""
        if name == REFERENCE or REFERENCE not in self._processes:
            return None
        got, wanted = self.results(name), self.results(REFERENCE)
        if len(got) != len(wanted):
            return 1e3
        pairs = {n: in_shape(got[n], v) for n, v in wanted.items()}
        return min(worst(compare_outputs(pairs, wanted)), 1e3)

    def has(self, name: str) -> bool:
        """Does the engine run, so far?"""
        return name in self._processes

    def results(self, name: str) -> dict[str, Any]:
        kinds: list[str | None] = self.found[name]["kinds"]
        return {
            output: read_raw_array(str(self._work / name / f"output_{n}.npy"), kind)
            for n, (output, kind) in enumerate(zip(self._outputs, kinds, strict=False))
            if kind is not None
        }


def _telling(text: str) -> str:
    """Without the lines in which OpenVINO says where its own sources are."""
    lines = [line for line in text.splitlines() if not line.startswith(_PLACES)]
    return "\n".join(lines) or text


def measure_once(
    model: PublishedModel, file: Path, names: Sequence[str], threads: int, turns: Turns, work: Path
) -> dict[str, Any]:
    """One run at the first sizes."""
    is_fresh = not work.exists()
    work.mkdir(parents=True, exist_ok=True)
    given = work / f"{model.name}.onnx"
    if model.fixed:
        write_fixed(model, file, model.sizes[0], given)
    else:
        given.write_bytes(file.read_bytes())
    with ExitStack() as stack:
        race = RealRace(given, names, threads, work, stack)
        race.load(model.feeds(model.sizes[0], input_dtypes(file)))
        race.time(turns)
        return {"engines": _told(race.found), "is_fresh": is_fresh, "load": os.getloadavg()[0]}


def measure_open(
    model: PublishedModel, file: Path, names: Sequence[str], threads: int, turns: Turns, work: Path
) -> list[dict[str, Any]]:
    """The file as it was published at one size after the other, and then again: by then, each engine knows them. What
    the second pass finds, with the seconds that preparing took in both.
    """
    dtypes = input_dtypes(file)
    with ExitStack() as stack:
        race = RealRace(file, names, threads, work, stack)
        race.load(model.feeds(model.sizes[0], dtypes))
        spent: dict[str, list[float]] = {
            n: [sum(f.get("phases", {}).values())] for n, f in race.found.items()
        }
        found: list[dict[str, Any]] = []
        for number, sizes in enumerate((*model.sizes[1:], *model.sizes)):
            for name, seconds in race.bind(model.feeds(sizes, dtypes)).items():
                spent[name].append(seconds)
            if number >= len(model.sizes) - 1:
                race.time(turns)
                found.append({"sizes": dict(sizes), "engines": _told(race.found)})
        for at in found:
            for name, cell in at["engines"].items():
                cell["spent"] = spent[name]
        return found


def _told(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {k: v for k, v in cell.items() if k != "kinds"} for name, cell in found.items()}


def sizes_text(sizes: Sizes) -> str:
    return ", ".join(f"{name} {n}" for name, n in sizes.items())
