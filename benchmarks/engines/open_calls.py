"""Engines that are called with inputs of changing sizes, for `benchmarks.open_shapes`.

They take commands besides those of `tilewright.cli.guest`, whose `do` is a method here:

    calls    [[sizes, is_timed], …]  -> the seconds of calls that are timed; inputs are made before
    results  sizes or null           -> how many arrays are in the job's folder: of a call, or of what was computed last
    begin    sizes, is_kept          -> a cache of made-up keys and values, which tokens are appended to
    tokens   count, is_kept          -> the seconds of each

An engine that keeps a cache itself, instead of taking and giving it, does so where `is_kept`. All answers have the
memory in use and how many programs were compiled so far. Inputs are the same in every process: they follow from the
sizes.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.engines.openvino import OpenVino
from benchmarks.engines.ort_session import open_session

if TYPE_CHECKING:
    from tilewright.cli.guest.job import EngineJob, Progress

Array = NDArray[Any]
Sizes = dict[str, int]


def feeds_at(inputs: list[dict[str, Any]], sizes: Sizes) -> dict[str, Array]:
    """Arrays for inputs that are given as name, dtype, shape (numbers and names of dimensions) and how they are filled:
    with `words`, `ones`, `zeros` or `normal` numbers.
    """
    rng = np.random.default_rng(list(sizes.values()))
    return {i["name"]: _filled(rng, i, _shape(i["shape"], sizes)) for i in inputs}


def _shape(given: list[int | str], sizes: Sizes) -> tuple[int, ...]:
    return tuple(sizes[n] if isinstance(n, str) else n for n in given)


def _filled(rng: np.random.Generator, given: dict[str, Any], shape: tuple[int, ...]) -> Array:
    match given["fill"]:
        case "words":
            return rng.integers(3, 1000, shape).astype(given["dtype"])
        case "ones":
            return np.ones(shape, given["dtype"])
        case "zeros":
            return np.zeros(shape, given["dtype"])
        case _:
            return rng.standard_normal(shape, np.float32).astype(given["dtype"])


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class Text:
    """What is generated: sizes of the next call, of which `past` and `total` grow, and what its cache is."""

    sizes: Sizes
    cache: dict[str, Any]


class OpenCalls:
    """What all of them share. `call` gets arrays by name, and gives those of the outputs in their order; what it gives
    for an output may be handed to the next call as it is.
    """

    compiled = 0
    outputs: tuple[str, ...] = ()

    def __init__(self, job: EngineJob) -> None:
        self._job = job
        self._inputs: list[dict[str, Any]] = job.options["inputs"]
        self._cached: list[str] = [i["name"] for i in self._inputs if i.get("is_cache")]
        self._made: dict[tuple[int, ...], dict[str, Array]] = {}
        self._texts: dict[bool, Text] = {}
        self._last: list[Any] = []

    def call(self, feeds: dict[str, Any]) -> list[Any]:
        raise NotImplementedError

    def as_array(self, value: Any) -> Array:
        return np.asarray(value)

    # ------------------------------------------------------------------------------------------- as every engine

    def make_feeds(self, options: dict[str, Any]) -> dict[str, Array]:
        return self.feeds(options["first"])

    def bind(self, feeds: dict[str, Array]) -> None:
        self._bound = feeds

    def run(self) -> None:
        self._last = self.call(self._bound)

    def results(self) -> list[Array]:
        return [self.as_array(v) for v in self._last]

    # --------------------------------------------------------------------------------------------- commands of ours

    def answer(self, do: str, command: dict[str, Any]) -> dict[str, Any]:
        method = {"calls": self.calls, "results": self.store, "begin": self.begin, "tokens": self.tokens}[do]
        return {**method(**command), "resident_mb": resident_mb(), "compiled": self.compiled}

    def feeds(self, sizes: Sizes) -> dict[str, Array]:
        key = tuple(sizes.values())
        if key not in self._made:
            self._made[key] = feeds_at(self._inputs, sizes)
        return self._made[key]

    def calls(self, calls: list[tuple[Sizes, bool]]) -> dict[str, Any]:
        times: list[float] = []
        clock = time.perf_counter
        for sizes, is_timed in calls:
            feeds = self.feeds(sizes)
            start = clock()
            self.call(feeds)
            if is_timed:
                times.append(clock() - start)
        return {"times": times}

    def store(self, sizes: Sizes | None) -> dict[str, Any]:
        if sizes is not None:
            self._last = self.call(self.feeds(sizes))
        for n, value in enumerate(self.results()):
            np.save(self._job.result(n), value, allow_pickle=False)
        return {"count": len(self._last)}

    def begin(self, sizes: Sizes, is_kept: bool) -> dict[str, Any]:
        feeds = self.feeds(sizes)
        self._texts[is_kept] = Text(dict(sizes), {n: feeds[n] for n in self._cached})
        return {}

    def step(self, text: Text, feeds: dict[str, Array]) -> list[Any]:
        """One token more; the outputs after the first are the longer cache."""
        found = self.call({**feeds, **text.cache})
        text.cache = dict(zip(self._cached, found[1:], strict=True))
        return found

    def tokens(self, count: int, is_kept: bool) -> dict[str, Any]:
        times: list[float] = []
        own = [i for i in self._inputs if not i.get("is_cache")]
        text = self._texts[is_kept]
        clock = time.perf_counter
        for _ in range(count):
            feeds = feeds_at(own, text.sizes)
            start = clock()
            self._last = self.step(text, feeds)
            times.append(clock() - start)
            text.sizes = {n: v + (n in ("past", "total")) for n, v in text.sizes.items()}
        return {"times": times}


class OnnxRuntimeCalls(OpenCalls):
    """Inputs and outputs are bound in each call, so that nothing is copied."""

    def __init__(self, job: EngineJob, progress: Progress) -> None:
        super().__init__(job)
        onnxruntime, self._session = open_session(job)
        self.version = onnxruntime.__version__
        self._names = [o.name for o in self._session.get_outputs()]

    def call(self, feeds: dict[str, Any]) -> list[Any]:
        binding = self._session.io_binding()
        for name, value in feeds.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, value)
            else:  # an output of another call
                binding.bind_ortvalue_input(name, value)
        for name in self._names:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        return list(binding.get_outputs())

    def as_array(self, value: Any) -> Array:
        return value.numpy()


class OpenVinoCalls(OpenCalls):
    """As `benchmarks.engines.openvino` sets it up; neither inputs nor outputs are copied. Two requests take turns, so
    that one reads what the other wrote. A cache that is kept is a state of a model that is made of this one.
    """

    def __init__(self, job: EngineJob, progress: Progress) -> None:
        super().__init__(job)
        self._progress = progress
        engine = OpenVino(job, progress)
        self.version = engine.version
        self._requests = [engine.request, engine.another_request()]
        self._stateful: Any = None

    def call(self, feeds: dict[str, Any]) -> list[Any]:
        self._requests.reverse()
        return list(self._requests[0].infer(feeds, share_inputs=True, share_outputs=True).values())

    def begin(self, sizes: Sizes, is_kept: bool) -> dict[str, Any]:
        super().begin(sizes, is_kept)
        if is_kept:
            self._stateful = OpenVino(self._job, self._progress, self._cached).request
            text = self._texts[True]
            for state in self._stateful.query_state():
                (name,) = [n for n in self._cached if state.name.startswith(n)]
                state.state = type(state.state)(text.cache[name])
            text.cache = {}
        return {}

    def step(self, text: Text, feeds: dict[str, Array]) -> list[Any]:
        if text is self._texts.get(True):
            return list(self._stateful.infer(feeds, share_inputs=True, share_outputs=True).values())
        return super().step(text, feeds)
