"""One model measured: every phase on the way to a running engine, then steady state, alone or in turns with others.
`tilewright bench`, the demo and the benchmarks of whole models measure through here.

Each engine has a process of its own, ours too. All are loaded before the first turn, so that none runs on a quieter
machine than the others. An engine that is not installed, or cannot run the model, is reported and left out; only ours
must work.
"""

import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.cli.catalogue import OURS, PEERS, Peer, find_peers, interpreter
from tilewright.cli.defaults import TIMEOUT
from tilewright.cli.difference import compare_outputs, worst
from tilewright.cli.engine_process import EngineFailure, EngineProcess
from tilewright.cli.guest.job import read_raw_array
from tilewright.cli.machine import check_cores
from tilewright.cli.options import PROGRAM
from tilewright.ops.accuracy import Accuracy
from tilewright.placement.options import NATIVE, PluginOptions
from tilewright.runtime.machine import default_threads
from tilewright.support.errors import InternalError, UserError
from tilewright.support.progress import OnProgress
from tilewright.support.turns import Ratio, Series, speedup, take_turns

NO_SHAPES: Mapping[str, tuple[int, ...]] = {}
NO_DIMS: Mapping[str, Sequence[int]] = {}
NO_FILES: Mapping[str, str] = {}
NO_PYTHONS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Absent:
    """Why an engine has no figures, and what to do about it."""

    why: str
    hint: str | None = None

    def __str__(self) -> str:
        return self.why if self.hint is None else f"{self.why}; {self.hint}"


@dataclass(frozen=True, slots=True)
class Measured:
    """An engine's figures. `error` is against the reference's results, and None for the reference itself; infinite if
    they do not even have the same shapes.
    """

    version: str
    start_up: dict[str, float]  # seconds of each phase, in order
    series: Series
    peak_mb: float  # of its process, libraries included
    error: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "start_up_seconds": self.start_up,
            **self.series.as_json(),
            "peak_mb": self.peak_mb,
            "error": self.error if self.error != float("inf") else None,
        }


@dataclass(frozen=True, slots=True)
class Plugins:
    """Those that may run parts of our program, and who runs what: the plugin and version of each region, by key; None
    if that is not known before the program runs.
    """

    names: tuple[str, ...]
    policy: str
    regions: dict[str, tuple[str, str]] | None

    def as_json(self) -> dict[str, Any]:
        rows = [
            {"region": key, "plugin": name, "version": version}
            for key, (name, version) in (self.regions or {}).items()
        ]
        return {"names": self.names, "policy": self.policy, "regions": None if self.regions is None else rows}


@dataclass(frozen=True, slots=True)
class Report:
    """What was found for one model, number of threads, and `sizes` of open dimensions if there are such. `reference` is
    the engine that results are compared with; `plugins` is None if ours is native code alone; `note` is what there is
    to say of ours.
    """

    model: str
    threads: int
    cores: tuple[int, ...]
    engines: dict[str, Measured]
    absent: dict[str, Absent] = field(default_factory=dict[str, Absent])
    reference: str | None = None
    plugins: Plugins | None = None
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    note: str | None = None

    @property
    def ours(self) -> Measured:
        return self.engines[OURS.name]

    @property
    def error(self) -> float | None:
        """Of ours; None if there was nothing to compare with."""
        return self.ours.error

    @property
    def speedup(self) -> dict[str, Ratio]:
        """By engine: how many times longer it takes than we do."""
        return {
            name: speedup(self.ours.series, found.series)
            for name, found in self.engines.items()
            if name != OURS.name
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "sizes": self.sizes,
            "note": self.note,
            "cores": self.cores,
            "reference": self.reference,
            "error": self.ours.as_json()["error"],
            "plugins": None if self.plugins is None else self.plugins.as_json(),
            "engines": {name: found.as_json() for name, found in self.engines.items()},
            "speedup": {name: ratio.as_json() for name, ratio in self.speedup.items()},
            "absent": {name: {"why": a.why, "hint": a.hint} for name, a in self.absent.items()},
        }


def measure(model: Path, **options: Any) -> Report:
    """Time a model at the only sizes that there are; options are those of `measure_at`."""
    (found,) = measure_at(model, [{}], **options)
    return found


def measure_at(
    model: Path,
    sizes: Sequence[Mapping[str, int]],
    *,
    dims: Mapping[str, Sequence[int]] = NO_DIMS,
    shapes: Mapping[str, tuple[int, ...]] = NO_SHAPES,
    files: Mapping[str, str] = NO_FILES,
    seed: int = 0,
    threads: int | None = None,
    target: str = "native",
    accuracy: Accuracy | None = None,
    plugin_options: PluginOptions = NATIVE,
    against: Sequence[str] = (),
    pythons: Mapping[str, str] = NO_PYTHONS,
    rounds: int = 7,
    seconds: float = 0.5,
    timeout: float = TIMEOUT,
    progress: OnProgress | None = None,
    catalogue: Mapping[str, Peer] = PEERS,
) -> list[Report]:
    """Time `model` with each engine pinned to as many cores as threads; ours with the plugins of `plugin_options`. Ours
    is one program for all sizes in the ranges of `dims`; all engines are loaded once, and timed at each of `sizes`.
    """
    threads = threads or default_threads()
    available = sorted(os.sched_getaffinity(0))
    check_cores(threads)
    _check_readable(model, against)
    peers = list(find_peers(against, catalogue).values())
    _check_engines(pythons, {OURS.name, *catalogue, *(p.name for p in peers)})
    homes = {p.name: interpreter(p.name, pythons) for p in (OURS, *peers)}
    options = {
        "shapes": shapes,
        "dims": dims,
        "files": {n: os.path.abspath(f) for n, f in files.items()},
        "seed": seed,
        "target": target,
        "accuracy": None if accuracy is None else str(accuracy),
    }
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-bench-")))
        contest = _Contest(
            model, threads, tuple(available[-threads:]), available, homes, timeout, scratch, stack
        )
        own_options = {**options, "plugin_options": _as_options(plugin_options, scratch)}
        contest.enter_ours({**own_options, "sizes": sizes[0]}, progress)
        for number, peer in enumerate(peers):
            if progress is not None:
                progress("load", number, len(peers))
            contest.enter(peer, options)
        reports = [contest.run(rounds, seconds, progress)]
        for other in sizes[1:]:
            contest.bind({**own_options, "sizes": other}, peers)
            reports.append(contest.run(rounds, seconds, progress))
        return [replace(r, sizes=at) for r, at in zip(reports, sizes, strict=True)]


def _as_options(plugin_options: PluginOptions, folder: Path) -> dict[str, Any]:
    """As another process can receive them; samples are files there."""
    samples: list[str] = []
    for number, sample in enumerate(plugin_options.calibration):
        samples.append(str(folder / f"sample_{number}.npz"))
        np.savez(samples[-1], allow_pickle=False, **sample)
    return {
        "plugins": plugin_options.plugins,
        "policy": plugin_options.policy.value,
        "strict": plugin_options.strict,
        "samples": samples,
    }


def _plugins(report: Mapping[str, Any] | None) -> Plugins | None:
    """As our process reports them."""
    if report is None:
        return None
    regions: list[tuple[str, str, str]] | None = report["regions"]
    placed = None if regions is None else {key: (name, version) for key, name, version in regions}
    return Plugins(tuple(report["names"]), report["policy"], placed)


def _check_engines(pythons: Mapping[str, str], known: set[str]) -> None:
    for name in pythons:
        if name not in known:
            raise UserError(
                f"{name!r}, which an interpreter is given for, is none of {', '.join(sorted(known))}",
                hint="name it in --against too",
            )


def _check_readable(model: Path, against: Sequence[str]) -> None:
    if model.suffix == PROGRAM and against:
        raise UserError(
            "other engines cannot read a .tw program", where=str(model), hint="give the .onnx file"
        )


@dataclass(slots=True)
class _Contest:
    """The engines of one measurement, from their start to their end (which is the stack's)."""

    model: Path
    threads: int
    cores: tuple[int, ...]
    all_cores: Sequence[int]
    pythons: Mapping[str, str]
    timeout: float
    scratch: Path
    stack: ExitStack
    feeds: list[tuple[str, str]] | None = None
    outputs: tuple[str, ...] = ()
    processes: dict[str, EngineProcess] = field(default_factory=dict[str, EngineProcess])
    loaded: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    results: dict[str, dict[str, NDArray[Any]]] = field(default_factory=dict[str, dict[str, NDArray[Any]]])
    absent: dict[str, Absent] = field(default_factory=dict[str, Absent])

    def enter_ours(self, options: Mapping[str, Any], progress: OnProgress | None) -> None:
        """Ours comes first: it makes up the inputs and names the outputs."""
        try:
            answer = self._load(OURS, options, progress)
        except EngineFailure as e:
            raise _ours_failed(e) from e
        self.feeds, self.outputs = answer["feeds"], tuple(answer["outputs"])
        self._keep(OURS.name, answer)

    def bind(self, options: Mapping[str, Any], peers: Sequence[Peer]) -> None:
        """Other inputs, for all that are loaded: ours makes them up."""
        self.feeds = None
        for peer in (OURS, *(p for p in peers if p.name in self.loaded)):
            try:
                answer = self.processes[peer.name].ask({"do": "bind", **self._job(peer, options)})
            except EngineFailure as e:
                if peer is OURS:
                    raise _ours_failed(e) from e
                self.absent[peer.name] = Absent(f"cannot run the model: {e.first_line}")
                del self.loaded[peer.name]
                continue
            if peer is OURS:
                self.feeds = answer["feeds"]
            phases = {**self.loaded[peer.name]["phases"], **answer["phases"]}
            self._keep(peer.name, {**answer, "phases": phases})

    def enter(self, peer: Peer, options: Mapping[str, Any]) -> None:
        try:
            self._keep(peer.name, self._load(peer, options, None))
        except EngineFailure as e:
            if e.missing is not None:
                self.absent[peer.name] = Absent(f"{e.missing} is not installed", peer.hint)
            else:
                self.absent[peer.name] = Absent(f"cannot run the model: {e.first_line}")

    def run(self, rounds: int, seconds: float, progress: OnProgress | None) -> Report:
        def turn(name: str) -> Sequence[float]:
            try:
                answer = self.processes[name].ask({"do": "turn", "seconds": seconds})
            except EngineFailure as e:
                if name == OURS.name:
                    raise _ours_failed(e) from e
                self.absent[name] = Absent(f"failed while it was timed: {e.first_line}")
                return ()
            self.loaded[name]["peak_mb"] = answer["peak_mb"]
            return answer["times"]

        def go_on(done: int, found: dict[str, Series]) -> Collection[str]:
            if progress is not None:
                progress("measure", done, rounds)
            return found

        series = take_turns({name: partial(turn, name) for name in self.loaded}, rounds, go_on=go_on)
        reference = _reference([n for n in series if n != OURS.name])
        engines: dict[str, Measured] = {}
        for name, found in series.items():
            at = self.loaded[name]
            error = None if reference in (None, name) else self._error(name, reference)
            engines[name] = Measured(at["version"], at["phases"], found, at["peak_mb"], error)
        plugins = _plugins(self.loaded[OURS.name]["plugins"])
        note: str | None = self.loaded[OURS.name].get("note")
        return Report(
            *(str(self.model), self.threads, self.cores, engines, dict(self.absent), reference, plugins),
            note=note,
        )

    def _load(self, peer: Peer, options: Mapping[str, Any], progress: OnProgress | None) -> dict[str, Any]:
        folder = self.scratch / peer.name
        folder.mkdir()
        python = self.pythons[peer.name]
        process = EngineProcess(peer, python, self.threads, self.cores, folder, self.timeout)
        self.processes[peer.name] = self.stack.enter_context(process)
        return process.ask({"do": "load", **self._job(peer, options)}, progress)

    def _job(self, peer: Peer, options: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "model": os.path.abspath(self.model),
            "threads": self.threads,
            "folder": str(self.scratch / peer.name),
            "shared": str(self.scratch),
            "packages": peer.packages,
            "feeds": self.feeds,
            "outputs": self.outputs,
            "cores": list(self.all_cores),
            "options": options,
        }

    def _keep(self, name: str, answer: dict[str, Any]) -> None:
        kinds: list[str | None] = answer["results"]
        if len(kinds) != len(self.outputs):
            raise EngineFailure(f"gave {len(kinds)} results, and the model has {len(self.outputs)}")
        folder = self.scratch / name
        self.results[name] = {
            output: read_raw_array(str(folder / f"output_{n}.npy"), kind)
            for n, (output, kind) in enumerate(zip(self.outputs, kinds, strict=True))
            if kind is not None
        }
        self.loaded[name] = answer

    def _error(self, name: str, reference: str) -> float:
        """Sequences, maps and empty optionals are left out; `tilewright compare` sees them."""
        got, wanted = self.results[name], self.results[reference]
        both = {n: v for n, v in wanted.items() if n in got}
        return worst(compare_outputs({n: in_shape(got[n], v) for n, v in both.items()}, both))


def _reference(names: Sequence[str]) -> str | None:
    """ONNX Runtime, which most people trust; without it the first that there is."""
    return "ort" if "ort" in names else next(iter(names), None)


def in_shape(got: NDArray[Any], wanted: NDArray[Any]) -> NDArray[Any]:
    """Some engines leave out dimensions of one."""
    same = [n for n in got.shape if n != 1] == [n for n in wanted.shape if n != 1]
    return got.reshape(wanted.shape) if same else got


def _ours_failed(e: EngineFailure) -> Exception:
    """As if it had happened in this process."""
    if e.is_users_fault:
        return UserError(e.answer["message"], where=e.answer["where"], hint=e.answer["hint"])
    return InternalError(e.answer.get("trace") or str(e))
