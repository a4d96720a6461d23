"""What this machine can do at best, one core or several: fused multiply-adds from registers, and reads from memory.

The loops are LLVM IR written by hand and go through our own object writer and loader, so the figures are what the code
generator could reach at most.
"""

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from tilewright.codegen.objects import compile_object
from tilewright.runtime.loader import Code
from tilewright.runtime.memory import MemoryRegion
from tilewright.target.target import Target

CHAINS = 12  # independent sums: more than latency × units, and with two operands they still fit 16 registers
LOADS = 8  # vectors read each step
CLOCKED = 24  # operations of a step that take a cycle each: more than all multiply-adds of the step together
_SHORT = 0.0005  # seconds of a loop of multiply-adds: less than a scheduler's turn
_LEAST_READ, _MOST_READ = 16 << 20, 512 << 20  # bytes: beyond caches, within reason
_BEYOND = (
    16  # times the third-level cache, which a core may have more of than is said, and which keeps a part
)


@dataclass(frozen=True, slots=True, eq=False)
class PeakLoop:
    """A run does `flops` operations, reads `nbytes` bytes, or takes `cycles`, on one core. Owns its code and data."""

    code: Code
    data: MemoryRegion
    steps: int
    flops: int = 0
    nbytes: int = 0
    cycles: int = 0

    def run(self) -> None:
        _FUNCTION(self.code.address("loop"))(self.data.address, self.steps)

    def seconds(self, repeats: int = 5) -> float:
        """The quickest of some runs: a limit is not an average."""
        best = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            self.run()
            best = min(best, time.perf_counter() - start)
        return best


_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


def fma_loop(target: Target, seconds: float = 0.002, *, chains: int = CHAINS) -> PeakLoop:
    """Multiply-adds on registers only, for about `seconds` a run, in `count` independent sums."""
    loop = _arithmetic_loop(target, seconds, chains, 0)
    return replace(loop, flops=2 * target.lanes(4) * chains * loop.steps)


def clock_loop(target: Target, seconds: float = 0.002) -> PeakLoop:
    """Operations of which each needs the last one, a cycle each, while multiply-adds keep the core busy: the only loop
    of which we know how many cycles it takes.
    """
    loop = _arithmetic_loop(target, seconds, CHAINS, CLOCKED)
    return replace(loop, cycles=CLOCKED * loop.steps)


def _arithmetic_loop(target: Target, seconds: float, chains: int, clocked: int) -> PeakLoop:
    trial_steps = 100_000
    data = MemoryRegion((CHAINS + 2) * target.vector_bytes)  # the sums, x, and what is counted
    data.array.view(np.float32)[:] = 0.5  # sums converge to 1: neither denormal nor infinite
    code = _load(_fma_ir(target.lanes(4), target.has_fma, chains, clocked), target)
    steps = max(1, int(trial_steps * seconds / PeakLoop(code, data, trial_steps).seconds()))
    return PeakLoop(code, data, steps)


def read_loop(target: Target, nbytes: int, passes: int = 1) -> PeakLoop:
    """Passes over a buffer of `nbytes`, rounded down to a power of two."""
    step_bytes = LOADS * target.vector_bytes
    steps = 1 << max(0, (nbytes // step_bytes).bit_length() - 1)
    code = _load(_read_ir(target.vector_bytes // 8, mask=steps - 1), target)
    loop = PeakLoop(
        code, MemoryRegion(steps * step_bytes), passes * steps, nbytes=passes * steps * step_bytes
    )
    loop.run()
    return loop


@dataclass(frozen=True, slots=True)
class Limits:
    """Of some cores together, a second."""

    flop_rate: float
    byte_rate: float

    def best(self, other: "Limits") -> "Limits":
        return Limits(max(self.flop_rate, other.flop_rate), max(self.byte_rate, other.byte_rate))


def measure_limits(target: Target, cores: int, seconds: float = 0.2) -> Limits:
    """What `cores` cores reach when all are busy: multiply-adds for `seconds`, then reads from memory for as long. The
    best counts, so the loops are short: some of them will be left alone by other programs.
    """
    arithmetic = fma_loop(target, _SHORT)  # registers only: one will do for all
    size = max(min(_BEYOND * target.machine.l3_bytes, _MOST_READ) // cores, _LEAST_READ)
    reads = [read_loop(target, size) for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        # Cores do not disturb each other at arithmetic: each has its own best.
        alone = [pool.submit(best_seconds, arithmetic.run, seconds) for _ in range(cores)]
        flop_rate = sum(arithmetic.flops / best.result() for best in alone)

        def read_together() -> None:
            for done in [pool.submit(loop.run) for loop in reads]:
                done.result()

        byte_rate = sum(loop.nbytes for loop in reads) / best_seconds(read_together, seconds)
    return Limits(flop_rate, byte_rate)


def best_seconds(run: Callable[[], None], seconds: float) -> float:
    """The quickest run of those that fit into `seconds`. ctypes lets go of the interpreter's lock."""
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _load(ir: str, target: Target) -> Code:
    return Code([compile_object(ir, target)], name="peak loop")


def _fma_ir(lanes: int, has_fma: bool, count: int = CHAINS, clocked: int = 0) -> str:
    """sum_i = sum_i · x + x for every chain; the sums are stored at the end, or LLVM would drop them. Beside that,
    c = (c + step) ^ step for `clocked` operations, each of which takes a cycle and needs the last one.
    """
    vector = f"<{lanes} x float>"
    chains = range(count)
    clock = "\n".join(f"  %c{n + 1} = {('add', 'xor')[n % 2]} i64 %c{n}, %step" for n in range(clocked))
    phis = "\n".join(f"  %s{c} = phi {vector} [ %start{c}, %entry ], [ %n{c}, %steps ]" for c in chains)
    if has_fma:
        ops = "\n".join(
            f"  %n{c} = call {vector} @llvm.fma.v{lanes}f32({vector} %s{c}, {vector} %x, {vector} %x)"
            for c in chains
        )
    else:
        ops = "\n".join(
            f"  %p{c} = fmul {vector} %s{c}, %x\n  %n{c} = fadd {vector} %p{c}, %x" for c in chains
        )
    places = "\n".join(f"  %at{c} = getelementptr {vector}, ptr %data, i64 {c}" for c in chains)
    starts = "\n".join(f"  %start{c} = load {vector}, ptr %at{c}, align 4" for c in chains)
    stores = "\n".join(f"  store {vector} %n{c}, ptr %at{c}, align 4" for c in chains)
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})

define void @loop(ptr %data, i64 %count) {{
entry:
  %x_at = getelementptr {vector}, ptr %data, i64 {CHAINS}
  %x = load {vector}, ptr %x_at, align 4
  %clock_at = getelementptr {vector}, ptr %data, i64 {CHAINS + 1}
  %step = load i64, ptr %clock_at, align 8
{places}
{starts}
  br label %steps
steps:
  %i = phi i64 [ 0, %entry ], [ %next, %steps ]
  %c0 = phi i64 [ %step, %entry ], [ %c{clocked}, %steps ]
{phis}
{ops}
{clock}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %steps, label %done
done:
{stores}
  store i64 %c{clocked}, ptr %clock_at, align 8
  ret void
}}
"""


def _read_ir(words: int, mask: int) -> str:
    """or_l |= data[(i & mask) · LOADS + l]; the result is stored at the end."""
    vector = f"<{words} x i64>"
    loads = range(LOADS)
    phis = "\n".join(f"  %s{k} = phi {vector} [ zeroinitializer, %entry ], [ %n{k}, %steps ]" for k in loads)
    body = "\n".join(
        f"  %at{k} = getelementptr {vector}, ptr %block, i64 {k}\n"
        f"  %v{k} = load {vector}, ptr %at{k}, align 8\n"
        f"  %n{k} = or {vector} %s{k}, %v{k}"
        for k in loads
    )
    joins = "\n".join(f"  %j{k} = or {vector} %{'n0' if k == 1 else f'j{k - 1}'}, %n{k}" for k in loads[1:])
    return f"""
define void @loop(ptr %data, i64 %count) {{
entry:
  br label %steps
steps:
  %i = phi i64 [ 0, %entry ], [ %next, %steps ]
{phis}
  %place = and i64 %i, {mask}
  %first = mul i64 %place, {LOADS}
  %block = getelementptr {vector}, ptr %data, i64 %first
{body}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %steps, label %done
done:
{joins}
  store {vector} %j{LOADS - 1}, ptr %data, align 8
  ret void
}}
"""
