"""Where the time of a run goes: every kernel timed by itself, and held against the limits of the machine.

The program is run as the runtime runs it (its driver, its team of threads, the same arena), with one difference: each
kernel call is a job of its own, and the clock is read around it. What handing over an empty job takes is subtracted.
Such runs take turns with runs of the program as it is, whose time is the total.
"""

import ctypes
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from tilewright.cli.flops import count_flops
from tilewright.cli.machine import pinned
from tilewright.cli.peak import Limits, measure_limits
from tilewright.cli.summary import kernel_calls
from tilewright.cost.traffic import must_move
from tilewright.driver.kernels import Compiled, NativeKernel
from tilewright.ir.expr import Binary, BinaryOp, Fma, Load, Scope, Unary
from tilewright.ir.expr import walk as walk_expr
from tilewright.runtime.feeds import Signature
from tilewright.runtime.loader import Code
from tilewright.runtime.memory import Constants
from tilewright.runtime.program import ExecutionPlan, RunContext
from tilewright.runtime.team import Team, shared_team
from tilewright.stages import Stages
from tilewright.support.artifact import (
    Artifact,
    ArtifactProgram,
    ExternalCall,
    KernelCall,
    Place,
    Segment,
    program_at,
)
from tilewright.support.driver_abi import CallRow, Job
from tilewright.support.program import map_program
from tilewright.target.target import Target
from tilewright.tir.passes.split_phases import with_joined_fills
from tilewright.tir.stmt import Alloc, Block, Emit, Seq, Stmt, Store, blocks, walk_stmts

MIN_RUNS = 5
_SPIN_US = "100000"  # inside a program workers do not sleep between calls: nor shall they between jobs
_EMPTY_JOBS = 200
_UNDISTURBED = 0.95


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """What one kernel does in a run, all its calls together. The work is unknown of a program without its source."""

    name: str
    calls: int
    parts: int
    seconds: float
    flops: int | None
    nbytes: int | None
    algorithm: str
    layout: str

    @property
    def flop_rate(self) -> float | None:
        """None too where the kernel is too short for its time to be seen."""
        return self.flops / self.seconds if self.flops and self.seconds else None

    @property
    def byte_rate(self) -> float | None:
        return self.nbytes / self.seconds if self.nbytes and self.seconds else None


@dataclass(frozen=True, slots=True)
class CallTime:
    """One of the calls that a program has: how often it is made in a run, and the seconds of all of these (median)."""

    kernel: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Of one program. `total` is the median of `runs` runs of the program as it is, `best` the quickest. `calls` are
    those that the program has, in its order.
    """

    threads: int
    cores: tuple[int, ...]
    runs: int
    total: float
    best: float
    on_core: float  # the share of the time in which our thread had a core; it never sleeps
    limits: Limits
    kernels: tuple[KernelProfile, ...]  # the slowest first
    calls: tuple[CallTime, ...] = ()
    external: Mapping[str, float] = field(
        default_factory=dict[str, float]
    )  # seconds of external code, by key

    @property
    def inside(self) -> float:
        return sum(k.seconds for k in self.kernels)

    @property
    def outside(self) -> float:
        """Calls, barriers, external code; below zero where the noise is larger than that."""
        return self.total - self.inside

    @property
    def is_disturbed(self) -> bool:
        """Did other programs take the cores? Then times are too long, those of short kernels least."""
        return self.on_core < _UNDISTURBED

    def share(self, kernel: KernelProfile) -> float:
        """Of the time in kernels, which may all be too short to be seen."""
        return kernel.seconds / self.inside if self.inside else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "cores": self.cores,
            "runs": self.runs,
            "total_seconds": self.total,
            "best_seconds": self.best,
            "on_core": self.on_core,
            "kernel_seconds": self.inside,
            "outside_seconds": self.outside,
            "limits": {
                "flops_per_second": self.limits.flop_rate,
                "bytes_per_second": self.limits.byte_rate,
            },
            "kernels": [self._kernel_json(k) for k in self.kernels],
        }

    def _kernel_json(self, k: KernelProfile) -> dict[str, Any]:
        return {
            "name": k.name,
            "calls": k.calls,
            "parts": k.parts,
            "seconds": k.seconds,
            "share": self.share(k),
            "flops": k.flops,
            "bytes": k.nbytes,
            "flops_per_second": k.flop_rate,
            "of_peak": None if k.flop_rate is None else k.flop_rate / self.limits.flop_rate,
            "bytes_per_second": k.byte_rate,
            "of_memory": None if k.byte_rate is None else k.byte_rate / self.limits.byte_rate,
            "algorithm": k.algorithm,
            "layout": k.layout,
        }


def profile(
    artifact: Artifact,
    feeds: Mapping[str, NDArray[Any]],
    *,
    target: Target,
    threads: int,
    seconds: float,
    stages: Stages | None = None,
    sizes: Mapping[str, int] = MappingProxyType({}),
    externals: Mapping[str, Callable[..., None]] = MappingProxyType({}),
) -> Profile:
    """Run the program for about `seconds`, on as many cores as threads; `stages` tell of each kernel what it does.
    `sizes` are those that open dimensions have in the feeds, `externals` the code of plugins by key.
    """
    if artifact.manifest.dims:
        artifact = replace(artifact, program=program_at(artifact.program, sizes))
    with pinned(threads) as cores:
        before = measure_limits(target, threads)
        with patient_workers():
            totals, found, sites, on_core, outside = _timed(
                artifact, feeds, threads, seconds, externals, sizes
            )
        limits = before.best(measure_limits(target, threads))
    calls = {c.kernel: c for c in kernel_calls(artifact.program)}
    about = {} if stages is None else _origins(stages)
    kernels = [_described(name, n, t, calls[name], about.get(name)) for name, (n, t) in found.items()]
    kernels.sort(key=lambda k: -k.seconds)
    return Profile(
        *(threads, cores, len(totals), median(totals), min(totals), on_core, limits, tuple(kernels)),
        tuple(sites),
        outside,
    )


# -------------------------------------------------------------------------------------------------------------- timing


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


def _timed(
    artifact: Artifact,
    feeds: Mapping[str, NDArray[Any]],
    threads: int,
    seconds: float,
    externals: Mapping[str, Callable[..., None]],
    sizes: Mapping[str, int],
) -> tuple[list[float], dict[str, tuple[int, float]], list[CallTime], float, dict[str, float]]:
    """The seconds of each run; of each kernel how often it is called in one, and its seconds (median); the same of each
    call of the program; the share of the time in which this thread had a core; and the seconds of external code.
    """
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
    return totals, found, sites, on_core, external


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


# --------------------------------------------------------------------------------------------------------- description


def _origins(stages: Stages) -> dict[str, tuple[NativeKernel, Compiled]]:
    return {k.name: (k, c) for c in stages.compiled for k in c.kernels}


def _described(
    name: str, count: int, seconds: float, call: KernelCall, origin: tuple[NativeKernel, Compiled] | None
) -> KernelProfile:
    if origin is None:
        return KernelProfile(name, count, call.parts, seconds, None, None, "", "")
    kernel, compiled = origin
    return KernelProfile(
        name,
        count,
        call.parts,
        seconds,
        count * count_flops(kernel.func.body),
        count * must_move(kernel.func),
        algorithm_of(kernel, compiled),
        layout_of(kernel, call),
    )


def algorithm_of(kernel: NativeKernel, compiled: Compiled) -> str:
    """The algorithm by its name, where there were several to choose from; and what this kernel of it does: a
    contraction, with the tensor intrinsics or the tile of registers that it is made of, a reduction, …
    """
    what = _kind(_nest(kernel, compiled))
    tiles = [
        *dict.fromkeys(
            _short(s.intrinsic) for s in walk_stmts(_nest(kernel, compiled)) if isinstance(s, Emit)
        )
    ]
    registers = [
        s.buffer
        for s in walk_stmts(kernel.func.body)
        if isinstance(s, Alloc) and s.buffer.scope is Scope.REGISTER and s.buffer.size > 1
    ]
    if not tiles and registers and what == "contraction":
        tiles = ["x".join(str(n) for n in max(registers, key=lambda b: b.size).shape if n > 1)]
    text = " ".join([what, *tiles])
    return f"{compiled.func.algorithm}: {text}" if compiled.func.algorithm else text


def _nest(kernel: NativeKernel, compiled: Compiled) -> Stmt:
    """The part of the scheduled Func that became this kernel; all of it where that is not one to one."""
    body = compiled.scheduled.body
    nests = with_joined_fills(body.stmts) if isinstance(body, Seq) else [body]
    names = [k.name for k in compiled.kernels]
    return nests[names.index(kernel.name)] if len(nests) == len(names) else body


def _short(intrinsic: str) -> str:
    return intrinsic.rpartition(".")[2]


def _kind(nest: Stmt) -> str:
    """In one word, by the most that any of its blocks does."""
    found = {_block_kind(b) for b in blocks(nest)}
    return next((k for k in ("contraction", "reduction", "elementwise", "copy") if k in found), "fill")


def _block_kind(block: Block) -> str:
    stores = [s for s in walk_stmts(block.body) if isinstance(s, Store)]
    parts = [e for s in stores for e in walk_expr(s.value)]
    if block.is_reduction:
        is_contraction = any(
            isinstance(e, Fma) or (isinstance(e, Binary) and e.op is BinaryOp.MUL) for e in parts
        )
        return "contraction" if is_contraction else "reduction"
    if any(isinstance(e, Unary | Binary | Fma) and e.dtype.is_float for e in parts):
        return "elementwise"
    return "copy" if any(isinstance(e, Load) for e in parts) else "fill"


def layout_of(kernel: NativeKernel, call: KernelCall) -> str:
    """The shapes in memory of the largest tensor that the kernel reads, constants aside, and of what it writes."""
    func = kernel.func
    read = [
        p
        for p, slot in zip(func.params, call.args, strict=True)
        if p not in func.outputs and slot.place is not Place.CONSTANT
    ]
    source = [max(read, key=lambda b: b.bytes)] if read else []
    result = [max(func.outputs, key=lambda b: b.bytes)] if func.outputs else []
    return " → ".join("x".join(map(str, b.shape)) or "scalar" for b in (*source, *result))
