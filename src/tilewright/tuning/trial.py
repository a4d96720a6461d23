"""The process in which candidates run while they are timed: `python -m tilewright.tuning.trial`.

A candidate is native code that nobody has run before: it may be wrong, crash, never end or ask for too much memory.
So it runs here, under a limit of address space, and whoever started this process watches the clock and may end it at
any time. Only the runtime is imported: a new process is ready soon.

Packets come through standard input and are answered one by one. The first sets up an experiment: the tensors, their
seeds and what the outputs should be. Each of the others brings the object code and the call table of a candidate.
A candidate is run exactly as a compiled program is, with warm caches: it has run once before it is timed.
"""

import contextlib
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique
from functools import partial
from math import ceil, prod
from typing import Any

import numpy as np

from tilewright.runtime.dtypes import numpy_dtype
from tilewright.runtime.loader import Code
from tilewright.runtime.memory import Constants, empty_aligned
from tilewright.runtime.program import ExecutionPlan, RunContext
from tilewright.runtime.team import Team
from tilewright.support.answering import answer_requests
from tilewright.support.arrays import Array
from tilewright.support.artifact import (
    FORMAT_VERSION,
    Artifact,
    KernelCall,
    Manifest,
    Place,
    Segment,
    Slot,
    TensorSpec,
)
from tilewright.support.errors import UserError
from tilewright.support.frames import pack
from tilewright.support.sizes import SizeExpr
from tilewright.support.turns import take_turns

SHORT = 1e-3  # seconds: shorter runs are repeated for as long, and their mean is the sample
MAX_REPEATS = 1000
ROUNDING_BORDER = 1e-3  # of the integers made from floats, which may fall to the other side of a half


@unique
class TrialStatus(Enum):
    """How the trial of a candidate ended."""

    OK = "ok"
    BUILD_ERROR = "build_error"  # a step refused, or code could not be made
    RUN_ERROR = "run_error"  # a signal, or the runtime refused the code
    TIMEOUT = "timeout"
    OOM = "oom"
    WRONG_RESULT = "wrong_result"
    KILLED = "killed"  # by somebody else


@dataclass(frozen=True, slots=True)
class TrialSizes:
    """A run of a candidate: `read` are inputs that are sizes of open dimensions, with their values, and `outputs` the
    shapes of what is in use of the outputs.
    """

    read: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """What candidates are run on. `tolerance` is relative to the largest magnitude of an output. A candidate runs at
    each of `sizes`, and its time is the geometric mean; without open dimensions there are none.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    driver: bytes
    threads: int
    tolerance: float
    memory_bytes: int  # that a candidate may use
    seed: int = 0
    sizes: tuple[TrialSizes, ...] = ()

    def packet(self, expected: Sequence[bytes]) -> bytes:
        """`expected` are the bytes of the outputs at all sizes, or nothing if they are not known yet."""
        head = {
            "inputs": [[s.name, s.dtype, s.shape] for s in self.inputs],
            "outputs": [[s.name, s.dtype, s.shape] for s in self.outputs],
            "threads": self.threads,
            "tolerance": self.tolerance,
            "memory_bytes": self.memory_bytes,
            "sizes": [[s.read, s.outputs] for s in self.sizes],
            "seed": self.seed,
        }
        return pack({"do": "prepare", "experiment": head}, (self.driver, *expected))


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A program for the experiment: `early` calls read only constants and run once, `calls` are timed. `parts`: for
    each of its sizes, how many parts of the calls in which that depends on them run.
    """

    objects: tuple[bytes, ...]
    early: tuple[KernelCall, ...]
    calls: tuple[KernelCall, ...]
    made: tuple[TensorSpec, ...]  # the constants that the early calls make
    arena_bytes: int
    parts: tuple[tuple[int, ...], ...] = ()

    def head(self) -> dict[str, Any]:
        """All but the objects, as JSON."""
        return {
            "objects": len(self.objects),
            "early": [_call_head(c) for c in self.early],
            "calls": [_call_head(c) for c in self.calls],
            "made": [[s.name, s.dtype, s.shape] for s in self.made],
            "arena_bytes": self.arena_bytes,
            "parts": self.parts,
        }

    @staticmethod
    def of(head: dict[str, Any], blobs: Sequence[bytes]) -> "Candidate":
        return Candidate(
            tuple(blobs),
            tuple(map(_call_of, head["early"])),
            tuple(map(_call_of, head["calls"])),
            tuple(map(_spec_of, head["made"])),
            head["arena_bytes"],
            tuple(map(tuple, head["parts"])),
        )


def _call_head(c: KernelCall) -> list[Any]:
    return [c.kernel, c.parts, [[s.place.value, s.at] for s in c.args], c.steps, bool(c.in_use)]


def _call_of(row: list[Any]) -> KernelCall:
    name, parts, args, steps, is_open = row
    slots = tuple(Slot(Place(place), at) for place, at in args)
    # Which parts are in use was found out where the candidate was made.
    return KernelCall(name, parts, slots, steps=steps, in_use=(SizeExpr.of(parts),) if is_open else ())


def _spec_of(row: list[Any]) -> TensorSpec:
    name, dtype, shape = row
    return TensorSpec(name, dtype, tuple(shape))


def random_input(spec: TensorSpec, seed: int) -> Array:
    """Floats of a normal distribution; integers that are small, so that sums of products do not overflow."""
    rng = np.random.default_rng(seed)
    dtype = numpy_dtype(spec.dtype)
    if dtype == np.bool_:
        return rng.random(spec.shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -8, 8, spec.shape).astype(dtype)
    return rng.standard_normal(spec.shape, np.float32).astype(dtype)


def find_difference(got: Array, want: Array, tolerance: float) -> str:
    """What is wrong with an output; empty if nothing is."""
    if got.dtype.kind in "iub":
        differing = int(np.count_nonzero(got != want))
        # A tolerance above zero means that floats went into it.
        allowed = int(got.size * ROUNDING_BORDER) if tolerance else 0
        return f"{differing} of {got.size} elements differ" if differing > allowed else ""
    a, b = (x if x.dtype == np.float64 else x.astype(np.float32, copy=False) for x in (got, want))
    with np.errstate(invalid="ignore", over="ignore"):
        if np.abs(a - b).max(initial=0.0) <= tolerance * np.abs(b).max(initial=0.0) < np.inf:
            return ""  # NaN on either side does not compare
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)) or not np.array_equal(
        a[~finite], b[~finite], equal_nan=True
    ):
        return "NaN or infinity where there should be none, or none where there should be"
    if not finite.all():
        a, b = a[finite], b[finite]
    scale = float(np.abs(b).max(initial=0.0))
    error = float(np.abs(a - b).max(initial=0.0))
    if error > tolerance * scale:
        return f"an error of {error:.3g} at a largest magnitude of {scale:.3g}: {error / (scale or 1):.2g} relative"
    return ""


class Bench:
    """An experiment set up: its arrays and its team."""

    def __init__(self, head: dict[str, Any], blobs: Sequence[bytes]) -> None:
        self.inputs = tuple(map(_spec_of, head["inputs"]))
        self.outputs = tuple(map(_spec_of, head["outputs"]))
        driver, *expected = blobs
        self.driver = driver
        self.tolerance: float = head["tolerance"]
        self.team = Team(Code([driver], name="driver"), head["threads"])
        if head["threads"] > 1:
            self.team.start()
        self.sizes = tuple(
            TrialSizes(tuple(map(tuple, read)), tuple(map(tuple, shapes))) for read, shapes in head["sizes"]
        ) or (TrialSizes((), tuple(s.shape for s in self.outputs)),)
        feeds = [_aligned(random_input(s, head["seed"] + n)) for n, s in enumerate(self.inputs)]
        self.feeds = [_with_sizes(feeds, at) for at in self.sizes]
        self.results = [empty_aligned(s.shape, numpy_dtype(s.dtype)) for s in self.outputs]
        known = [
            np.frombuffer(blob, numpy_dtype(s.dtype)).reshape(s.shape)
            for s, blob in zip(self.outputs * len(self.sizes), expected, strict=False)
        ]
        many = len(self.outputs)
        self.expected = [known[n * many : (n + 1) * many] for n in range(len(self.sizes))]

    def load(self, candidate: Candidate) -> list[RunContext]:
        """Ready to run at each of the sizes: what its early calls make is there."""
        code = Code(candidate.objects)
        constants = Constants([np.zeros(s.shape, numpy_dtype(s.dtype)) for s in candidate.made])
        if candidate.early:
            self._context(candidate, candidate.early, code, constants, self.feeds[0]).run()
        found: list[RunContext] = []
        for n, feeds in enumerate(self.feeds):
            context = self._context(candidate, candidate.calls, code, constants, feeds)
            if candidate.parts:
                context.use(frozenset(), candidate.parts[n])
            found.append(context)
        return found

    def _context(
        self,
        candidate: Candidate,
        calls: tuple[KernelCall, ...],
        code: Code,
        constants: Constants,
        feeds: list[Array],
    ) -> RunContext:
        manifest = Manifest(FORMAT_VERSION, "", "", {}, "", "", (), self.inputs, self.outputs)
        artifact = Artifact(
            manifest, self.driver, candidate.objects, (), candidate.arena_bytes, (Segment(calls),)
        )
        context = RunContext(ExecutionPlan(artifact, code, constants, {}, self.team))
        context.attach(feeds, self.results)
        return context

    def first_run(self, contexts: Sequence[RunContext]) -> tuple[list[float], str, list[bytes]]:
        """How long it took at each of the sizes, what is wrong with the outputs, and these."""
        seconds: list[float] = []
        made: list[bytes] = []
        for at, context, expected in zip(self.sizes, contexts, self.expected, strict=True):
            for array in self.results:  # what is not written shows: NaN, or -1
                array.view(np.uint8).reshape(-1)[...] = 255 if array.dtype != np.bool_ else 0
            seconds.append(_seconds(context, 1))
            for spec, shape, got, want in zip(self.outputs, at.outputs, self.results, expected, strict=False):
                used = tuple(map(slice, shape))
                wrong = find_difference(got[used], want[used], self.tolerance)
                if wrong:
                    return seconds, f"{spec.name}: {wrong}", made
            made += [a.tobytes() for a in self.results]
        return seconds, "", made


def _with_sizes(feeds: Sequence[Array], at: TrialSizes) -> list[Array]:
    found = list(feeds)
    for n, value in at.read:
        found[n] = np.array([value], np.int64)
    return found


def _aligned(array: Array) -> Array:
    out = empty_aligned(array.shape, array.dtype)
    out[...] = array
    return out


def _seconds(context: RunContext, repeats: int) -> float:
    clock, run = time.perf_counter, context.run
    start = clock()
    for _ in range(repeats):
        run()
    return (clock() - start) / repeats


def _mean_seconds(contexts: Sequence[RunContext], repeats: Sequence[int]) -> float:
    """The geometric mean over the sizes."""
    return _mean([_seconds(c, n) for c, n in zip(contexts, repeats, strict=True)])


def _mean(seconds: Sequence[float]) -> float:
    return seconds[0] if len(seconds) == 1 else prod(max(s, 1e-9) for s in seconds) ** (1 / len(seconds))


def _repeats(seconds: float) -> int:
    return max(1, min(MAX_REPEATS, ceil(SHORT / max(seconds, 1e-9))))


def _time(bench: Bench, head: dict[str, Any], candidate: Candidate) -> dict[str, Any]:
    contexts = bench.load(candidate)
    first, wrong, _ = bench.first_run(contexts)
    if wrong:
        return {"status": TrialStatus.WRONG_RESULT.value, "message": wrong}
    if _mean(first) > head["slow"]:  # no winner: its time need not be known better
        return {"status": TrialStatus.OK.value, "seconds": [_mean(first)]}
    repeats = list(map(_repeats, first))
    samples = [_mean_seconds(contexts, repeats) for _ in range(head["runs"])]
    return {"status": TrialStatus.OK.value, "seconds": samples}


def _compare(bench: Bench, head: dict[str, Any], blobs: Sequence[bytes]) -> dict[str, Any]:
    """All candidates in turns: of each the samples of each round."""
    contexts: list[list[RunContext]] = []
    repeats: list[list[int]] = []
    at = 0
    for one in head["candidates"]:
        loaded = bench.load(Candidate.of(one, blobs[at : at + one["objects"]]))
        at += one["objects"]
        first, wrong, _ = bench.first_run(loaded)
        if wrong:
            return {"status": TrialStatus.WRONG_RESULT.value, "message": wrong}
        contexts.append(loaded)
        repeats.append(list(map(_repeats, first)))

    def turn(loaded: list[RunContext], repeats: list[int]) -> list[float]:
        for context in loaded:
            context.run()  # the others have evicted what it had in the caches
        return [_mean_seconds(loaded, repeats) for _ in range(head["runs"])]

    turns = {n: partial(turn, *one) for n, one in enumerate(zip(contexts, repeats, strict=True))}
    found = take_turns(turns, head["rounds"], pause=0.0)  # all have one team
    return {"status": TrialStatus.OK.value, "rounds": [found[n].rounds for n in turns]}


def _answer(bench: Bench, head: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    results: list[bytes] = []
    try:
        match head["do"]:
            case "time":
                said = _time(bench, head, Candidate.of(head["candidate"], blobs))
            case "compare":
                said = _compare(bench, head, blobs)
            case _:  # "outputs": whoever asks has nothing to compare them with yet
                seconds, _, results = bench.first_run(bench.load(Candidate.of(head["candidate"], blobs)))
                said = {"status": TrialStatus.OK.value, "seconds": [_mean(seconds)]}
    except MemoryError as e:
        said = {"status": TrialStatus.OOM.value, "message": str(e) or "no memory"}
    except UserError as e:
        status = (
            TrialStatus.OOM if isinstance(e.__cause__, OSError | OverflowError) else TrialStatus.RUN_ERROR
        )
        said = {"status": status.value, "message": e.message}
    return pack(said, results)


def _limit_memory(nbytes: int) -> None:
    """On top of what this process has mapped already."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (mapped + nbytes, hard))


class TrialServer:
    def __init__(self) -> None:
        self._bench: Bench | None = None

    def answer(self, head: Any, blobs: list[bytes]) -> bytes:
        if head["do"] == "prepare":
            try:
                self._bench = None  # what the last experiment had is free before the next is set up
                self._bench = Bench(head["experiment"], blobs)
                _limit_memory(head["experiment"]["memory_bytes"])
                return pack({"status": TrialStatus.OK.value})
            except MemoryError:
                return pack({"status": TrialStatus.OOM.value, "message": "no memory for the tensors"})
        if self._bench is None:
            return pack({"status": TrialStatus.RUN_ERROR.value, "message": "there is no experiment"})
        return _answer(self._bench, head, blobs)


def tensor_bytes(specs: Sequence[TensorSpec]) -> int:
    return sum(numpy_dtype(s.dtype).itemsize * prod(s.shape) for s in specs)


if __name__ == "__main__":
    answer_requests(TrialServer().answer)
