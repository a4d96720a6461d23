"""Where the time of a run goes: each kernel call of a program timed by itself.

The program is run as the runtime runs it (its driver, its team of threads, the same arena), with one difference: each
kernel call is a job of its own, and the clock is read around it. What handing over an empty job takes is subtracted.
Such runs take turns with runs of the program as it is, whose time is the total.
"""

import ctypes
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from tilewright.runtime.feeds import Signature
from tilewright.runtime.loader import Code
from tilewright.runtime.memory import Constants
from tilewright.runtime.program import ExecutionPlan, RunContext
from tilewright.runtime.team import Team, shared_team
from tilewright.support.artifact import Artifact, ArtifactProgram, ExternalCall, KernelCall, Segment
from tilewright.support.driver_abi import CallRow, Job
from tilewright.support.program import leaves, map_program

MIN_RUNS = 5
_SPIN_US = "100000"  # inside a program workers do not sleep between calls: nor shall they between jobs
_EMPTY_JOBS = 200


def kernel_calls(program: ArtifactProgram) -> Iterator[KernelCall]:
    """In program order; the bodies of branches and loops once."""
    return (c for step in leaves(program) if isinstance(step, Segment) for c in step.calls)


@dataclass(frozen=True, slots=True)
class CallTime:
    """One of the calls that a program has: how often it is made in a run, and the seconds of all of these (median)."""

    kernel: str
    count: int
    seconds: float


def one_by_one(program: ArtifactProgram) -> ArtifactProgram:
    """The same program with a segment for each call."""

    def single(run: list[Segment | ExternalCall]) -> Iterator[Segment | ExternalCall]:
        for step in run:
            yield from (Segment((c,)) for c in step.calls) if isinstance(step, Segment) else (step,)

    return map_program(program, single, lambda cond: cond)


class _Clock:
    """Stands between a context and the driver: what each job of a run took."""

    def __init__(self, run_job: Callable[[int], int]) -> None:
        self._run_job = run_job
        self.jobs: list[tuple[int, float]] = []

    def __call__(self, job: int) -> int:
        start = time.perf_counter()
        status = self._run_job(job)
        self.jobs.append((job, time.perf_counter() - start))
        return status


class _ExternalClock:
    """Stands in for external code: what it took in each run."""

    def __init__(self, code: Callable[..., None]) -> None:
        self._code = code
        self.now = 0.0
        self.runs: list[float] = []

    def __call__(self, *args: Any) -> None:
        start = time.perf_counter()
        self._code(*args)
        self.now += time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Of a program that was run for a while. `totals` are the seconds of each run as it is; `kernels` says of each
    kernel how often it is called in one, and its seconds (median); `calls` the same of each call of the program;
    `on_core` is the share of the time in which this thread had a core; `external` are the seconds of external code.
    """

    totals: list[float]
    kernels: dict[str, tuple[int, float]]
    calls: list[CallTime]
    on_core: float
    external: dict[str, float]


def time_calls(
    artifact: Artifact,
    feeds: Mapping[str, NDArray[Any]],
    threads: int,
    seconds: float,
    externals: Mapping[str, Callable[..., None]] = MappingProxyType({}),
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> RunTimes:
    """Run it for about `seconds`; `patient_workers` should wait for its jobs."""
    signature = Signature(artifact.manifest.inputs, artifact.manifest.written)
    inputs = signature.inputs(feeds)
    outputs = signature.outputs(None, inputs)
    team, code = shared_team(artifact.driver, threads), Code(artifact.objects)
    constants = Constants(artifact.constants)
    contexts: list[RunContext] = []
    clocks = {key: _ExternalClock(call) for key, call in externals.items()}
    for program in (artifact.program, one_by_one(artifact.program)):
        plan = ExecutionPlan(replace(artifact, program=program), code, constants, clocks, team, sized=clocks)
        if plan.is_parallel:
            team.start()
        contexts.append(RunContext(plan))
        contexts[-1].attach(inputs, outputs)
        if externals:
            contexts[-1].use(frozenset(), (), sizes)
    whole, apart = contexts
    clock = apart.run_job = _Clock(team.run_job)
    called = [c.kernel for c in kernel_calls(artifact.program)]
    names = {code.address(name): name for name in called}
    site = {address: n for n, address in enumerate(apart.jobs)}  # a job is a call here
    empty = {is_team: _empty_job_seconds(team, is_team) for is_team in (False, True)}

    totals: list[float] = []
    spent: dict[str, list[float]] = {name: [] for name in names.values()}
    counts: dict[str, int] = {}
    each: list[list[float]] = [[] for _ in called]
    made: list[int] = []
    whole.run()
    apart.run()
    begin, used = time.perf_counter(), time.thread_time()
    end = begin + seconds
    while len(totals) < MIN_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        whole.run()
        totals.append(time.perf_counter() - start)
        clock.jobs.clear()
        for outside in clocks.values():
            outside.now = 0.0
        apart.run()
        for outside in clocks.values():
            outside.runs.append(outside.now)
        once = dict.fromkeys(spent, 0.0)
        counts = dict.fromkeys(spent, 0)
        own, made = [0.0] * len(called), [0] * len(called)
        for address, taken in clock.jobs:
            job = Job.from_address(address)
            name, n = names[CallRow.from_address(job.calls).fn], site[address]
            net = max(taken - empty[job.team != 0], 0.0)
            once[name] += net
            counts[name] += 1
            own[n] += net
            made[n] += 1
        for name, t in once.items():
            spent[name].append(t)
        for n, t in enumerate(own):
            each[n].append(t)
    on_core = (time.thread_time() - used) / (time.perf_counter() - begin)
    found = {name: (counts[name], median(times)) for name, times in spent.items() if counts[name]}
    sites = [CallTime(*facts) for facts in zip(called, made, map(median, each), strict=True)]
    external = {key: median(outside.runs) for key, outside in clocks.items()}
    return RunTimes(totals, found, sites, on_core, external)


def _empty_job_seconds(team: Team, is_team: bool) -> float:
    job = Job()
    job.team = team.address if is_team and team.is_running else 0
    address = ctypes.addressof(job)
    best = float("inf")
    for _ in range(_EMPTY_JOBS):
        start = time.perf_counter()
        team.run_job(address)
        best = min(best, time.perf_counter() - start)
    return best


@contextmanager
def patient_workers() -> Generator[None]:
    """Workers that do not sleep between jobs, as they would not inside a program."""
    before = os.environ.get("TILEWRIGHT_SPIN_US")
    os.environ["TILEWRIGHT_SPIN_US"] = _SPIN_US
    try:
        yield
    finally:
        if before is None:
            del os.environ["TILEWRIGHT_SPIN_US"]
        else:
            os.environ["TILEWRIGHT_SPIN_US"] = before
