"""Engines that are called with changing sizes, measured in turns: each in a process of its own, on the same cores.

What is found is JSON: of each case and number of threads the parts `load`, `sample`, `random`, `memory`, `prompt` and
`tokens`, by engine. An engine that failed has `error` there.
"""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.catalogue import ROOT
from benchmarks.open_shape_cases import OpenCase, Sizes
from benchmarks.suite_measure import suite_pythons
from benchmarks.suite_results import OURS, failure_text
from tilewright.cli.catalogue import Peer, interpreter
from tilewright.cli.difference import compare_outputs, worst
from tilewright.cli.engine_process import EngineFailure, EngineProcess
from tilewright.cli.machine import machine
from tilewright.cli.output import note
from tilewright.support.turns import take_turns

STATIC, KEPT = "static", "tilewright, kept"
KEEPING = {
    OURS: KEPT,
    "openvino": "openvino, kept",
}  # engines that keep a cache themselves, and what that is called
REFERENCE = "ort"  # whose results the others are compared with

ENGINES: Mapping[str, Peer] = {
    p.name: p
    for p in (
        Peer(OURS, "Tilewright", "benchmarks.open_engine:OpenEngine", (), "", ROOT),
        Peer(STATIC, "Tilewright, static", "benchmarks.open_engine:StaticEngine", (), "", ROOT),
        Peer(
            "ort",
            "ONNX Runtime",
            "benchmarks.engines.open_calls:OnnxRuntimeCalls",
            ("onnxruntime",),
            "",
            ROOT,
        ),
        Peer("openvino", "OpenVINO", "benchmarks.engines.open_calls:OpenVinoCalls", ("openvino",), "", ROOT),
    )
}

_TIMEOUT = 900.0  # seconds: fifteen programs are compiled in it
_WARM_CALLS = 2  # of each turn, or of each size: the other engines have evicted our caches
_TIMED_CALLS = 3  # of each size in a round
_CALLS_IN_A_TURN = 50  # in random order: half a second or so
_TOKENS_IN_A_TURN = 32
_SETTLED_CALLS = 500  # after which memory is not expected to grow

Found: TypeAlias = dict[str, dict[str, Any]]  # by part and engine
Call: TypeAlias = tuple[Sizes, bool]  # is it timed?


class OpenRace:
    """Engines that have loaded a case. Those that cannot are in `found` with their errors, and take no turns."""

    def __init__(
        self, case: OpenCase, names: Sequence[str], threads: int, folder: Path, stack: ExitStack
    ) -> None:
        self.case = case
        self.found: Found = {"load": {}}
        self._processes: dict[str, EngineProcess] = {}
        self._folders: dict[str, Path] = {}
        cores = machine().affinity
        for name in names:
            peer, python = ENGINES[name], _python(name)
            own = self._folders[name] = folder / f"{case.name}-{threads}-{name}"
            own.mkdir()
            process = EngineProcess(peer, python, threads, cores[-threads:], own, _TIMEOUT)
            self._processes[name] = stack.enter_context(process)
            options = {
                "inputs": list(case.inputs),
                "first": case.sample[0],
                "dims": dict(case.dims),
                "sizes": list(case.sample),
            }
            job: dict[str, Any] = {
                "model": str(case.model),
                "threads": threads,
                "folder": str(own),
                "shared": str(own),
                "packages": peer.packages,
                "cores": list(cores),
                "options": options,
            }
            answer = self.ask("load", name, "load", **job)
            if answer is None:
                continue
            loaded = self.found["load"][name] = {
                "seconds": answer["phases"]["load"],
                "first_run": answer["phases"]["first_run"],
                "version": answer["version"],
            }
            if name == OURS and (state := self.ask("load", name, "calls", calls=[])):
                loaded |= {"compiled": state["compiled"], "fallback": state["fallback"]}
                if state["fallback"]:  # programs for each size would be compiled in the middle of it
                    del self._processes[name]
            note(f"{case.name}, {threads} thread(s): {name} loaded in {loaded['seconds']:.1f} s")

    @property
    def running(self) -> list[str]:
        return list(self._processes)

    def drop(self, name: str) -> None:
        """It takes no further turns, and gives its memory back."""
        if name in self._processes:
            self._processes.pop(name).close()

    def ask(
        self, part: str, name: str, do: str, *, called: str = "", ends: bool = True, **command: Any
    ) -> dict[str, Any] | None:
        """None if it failed, which is found under the name or what it is `called`, and `ends` its turns."""
        try:
            return self._processes[name].ask({"do": do, **command})
        except EngineFailure as e:
            self.found.setdefault(part, {})[called or name] = {"error": failure_text(str(e))}
            if ends or not e.answer:
                del self._processes[name]
            return None

    def results(self, part: str, name: str, sizes: Sizes | None) -> list[NDArray[Any]]:
        answer = self.ask(part, name, "results", sizes=sizes)
        files = range(answer["count"]) if answer is not None else ()
        return [np.load(self._folders[name] / f"output_{n}.npy", allow_pickle=False) for n in files]


def _python(name: str) -> str:
    return sys.executable if name in (OURS, STATIC) else interpreter(name, suite_pythons([name]))


@contextmanager
def open_race(case: OpenCase, names: Sequence[str], threads: int, folder: Path) -> Generator[OpenRace]:
    with ExitStack() as stack:
        yield OpenRace(case, names, threads, folder, stack)


def difference(got: Sequence[NDArray[Any]], wanted: Sequence[NDArray[Any]]) -> float:
    """The largest, over the largest magnitude; infinite if there is nothing to compare."""
    if not got or len(got) != len(wanted):
        return float("inf")
    return worst(compare_outputs(dict(enumerate(got)), dict(enumerate(wanted))))  # pyright: ignore


# --------------------------------------------------------------------------------------------------------- sizes


def measure_sample(race: OpenRace, rounds: int, seed: int = 0) -> None:
    """All engines on the sizes of the sample. In a turn each size has some calls in a row, so that a static program
    finds its own weights in the caches, as the open one does.
    """
    sizes = list(race.case.sample)
    wanted = [race.results("sample", REFERENCE, s) for s in sizes] if REFERENCE in race.running else []
    errors: dict[str, list[float]] = {}
    for name in race.running if wanted else ():
        errors[name] = [
            difference(race.results("sample", name, s), w) for s, w in zip(sizes, wanted, strict=True)
        ]
    rng = np.random.default_rng(seed)
    orders = [_shuffled(rng, len(sizes)) for _ in range(rounds)]
    times: dict[str, list[list[list[float]]]] = {n: [[] for _ in sizes] for n in race.running}

    def turn(name: str) -> list[float]:
        order = orders[len(times[name][0])]
        calls = [(sizes[i], n >= _WARM_CALLS) for i in order for n in range(_WARM_CALLS + _TIMED_CALLS)]
        answer = race.ask("sample", name, "calls", calls=calls)
        if answer is None:
            return []
        for i, at in zip(order, range(0, len(answer["times"]), _TIMED_CALLS), strict=True):
            times[name][i].append(answer["times"][at : at + _TIMED_CALLS])
        return answer["times"]

    _turns(race, turn, rounds)
    for name in race.running:
        race.found.setdefault("sample", {})[name] = [
            {
                "sizes": s,
                "median_ms": 1e3 * float(np.median(found)),
                "round_medians_ms": [1e3 * float(np.median(r)) for r in found],
                "rel_err": errors[name][i] if name in errors else 0.0,
            }
            for i, (s, found) in enumerate(zip(sizes, times[name], strict=True))
        ]


def measure_random(race: OpenRace, calls: int, seed: int = 0) -> None:
    """Every size of the dimension that varies, in random order: the same for all engines."""
    values = random_sizes(race.case, calls, seed)
    lead: list[Call] = [(race.case.sample[0], False)] * _WARM_CALLS
    times: dict[str, list[float]] = {n: [] for n in race.running}
    last: dict[str, dict[str, Any]] = {}

    def turn(name: str) -> list[float]:
        begin = len(times[name])
        chunk = [(race.case.sizes_at(v), True) for v in values[begin : begin + _CALLS_IN_A_TURN]]
        answer = race.ask("random", name, "calls", calls=[*lead, *chunk])
        if answer is None:
            return []
        times[name] += answer["times"]
        last[name] = answer
        return answer["times"]

    _turns(race, turn, -(-calls // _CALLS_IN_A_TURN))
    for name in race.running:
        race.found.setdefault("random", {})[name] = {
            "values": values,
            "ms": [1e3 * t for t in times[name]],
            "compiled": last[name]["compiled"],
        }


def random_sizes(case: OpenCase, calls: int, seed: int = 0) -> list[int]:
    """Each size of the range about as often as any other, shuffled."""
    least, most, step = (*case.dims[case.varied], 1)[:3]
    every = list(range(least, most + 1, step))
    rng = np.random.default_rng(seed)
    times = -(-calls // len(every))
    return [every[i] for _ in range(times) for i in _shuffled(rng, len(every))][:calls]


def _shuffled(rng: np.random.Generator, count: int) -> list[int]:
    return [int(i) for i in rng.permutation(count)]


def measure_memory(race: OpenRace, calls: int, seed: int = 1) -> None:
    """Resident memory of our process while it is called with random sizes."""
    values = random_sizes(race.case, calls, seed)
    resident: list[tuple[int, float]] = []
    for begin in range(0, calls if OURS in race.running else 0, _SETTLED_CALLS):
        chunk = [(race.case.sizes_at(v), False) for v in values[begin : begin + _SETTLED_CALLS]]
        answer = race.ask("memory", OURS, "calls", calls=chunk)
        if answer is None:
            return
        resident.append((begin + len(chunk), answer["resident_mb"]))
    race.found["memory"] = {OURS: {"resident_mb": resident}} if resident else {}


# -------------------------------------------------------------------------------------------------------- tokens


def measure_tokens(race: OpenRace, tokens: int, rounds: int) -> None:
    """A prompt at once, then tokens one by one with a cache that grows: taken and given in each call, and kept."""
    one, prompt = race.case.sample
    texts = {name: (name, False) for name in race.running}
    texts |= {called: (name, True) for name, called in KEEPING.items() if name in texts}
    found: dict[str, dict[str, Any]] = {t: {"times": []} for t in texts}

    for name in list(race.running):
        calls = [(prompt, n > 0) for n in range(1 + rounds)]
        answer = race.ask("prompt", name, "calls", ends=False, calls=calls)
        if answer is not None:
            race.found.setdefault("prompt", {})[name] = {"ms": 1e3 * float(np.median(answer["times"]))}
    for text, (name, is_kept) in list(texts.items()):
        if race.ask("tokens", name, "begin", called=text, ends=False, sizes=one, is_kept=is_kept) is None:
            del texts[text]

    def turn(text: str) -> list[float]:
        name, is_kept = texts[text]
        own = found[text]
        count = min(2 if not own["times"] else _TOKENS_IN_A_TURN, tokens - len(own["times"]))
        answer = race.ask("tokens", name, "tokens", called=text, ends=False, count=count, is_kept=is_kept)
        if answer is None:
            return []
        if not own["times"]:
            own |= {"compiled_at_2": answer["compiled"], "resident_at_2": answer["resident_mb"]}
        own["times"] += answer["times"]
        own |= {"compiled": answer["compiled"], "resident_mb": answer["resident_mb"]}
        if len(own["times"]) == tokens:
            own["last"] = race.results("tokens", name, None)[:1]
        return answer["times"]

    take_turns({t: (lambda t=t: turn(t)) for t in texts}, 1 + -(-(tokens - 2) // _TOKENS_IN_A_TURN))
    wanted = found.get(REFERENCE, {}).get("last", [])
    for text in texts:
        if len(found[text]["times"]) == tokens:
            own = found[text]
            error = difference(own.pop("last"), wanted) if wanted else 0.0
            race.found.setdefault("tokens", {})[text] = {**own, "rel_err": error}


def _turns(race: OpenRace, turn: Callable[[str], Sequence[float]], rounds: int) -> None:
    take_turns({n: (lambda n=n: turn(n)) for n in race.running}, rounds)
