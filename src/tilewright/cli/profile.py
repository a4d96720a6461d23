"""Where the time of a run goes: every kernel timed by itself, and held against the limits of the machine.

How kernels are timed is in `profiling/call_times.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from tilewright.cli.peak import Limits, measure_limits
from tilewright.cost.traffic import must_move
from tilewright.driver.kernels import Compiled, NativeKernel
from tilewright.ir.expr import Binary, BinaryOp, Fma, Load, Scope, Unary
from tilewright.ir.expr import walk as walk_expr
from tilewright.profiling.call_times import CallTime, kernel_calls, patient_workers, time_calls
from tilewright.profiling.flops import count_flops
from tilewright.stages import Stages
from tilewright.support.affinity import pinned
from tilewright.support.artifact import Artifact, KernelCall, Place, program_at
from tilewright.target.target import Target
from tilewright.tir.passes.split_phases import with_joined_fills
from tilewright.tir.stmt import Alloc, Block, Emit, Seq, Stmt, Store, blocks, walk_stmts

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
            times = time_calls(artifact, feeds, threads, seconds, externals, sizes)
        limits = before.best(measure_limits(target, threads))
    calls = {c.kernel: c for c in kernel_calls(artifact.program)}
    about = {} if stages is None else _origins(stages)
    kernels = [_described(name, n, t, calls[name], about.get(name)) for name, (n, t) in times.kernels.items()]
    kernels.sort(key=lambda k: -k.seconds)
    return Profile(
        *(threads, cores, len(times.totals), median(times.totals), min(times.totals), times.on_core, limits),
        tuple(kernels),
        tuple(times.calls),
        times.external,
    )


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
