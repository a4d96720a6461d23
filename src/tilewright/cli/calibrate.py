"""Measuring what differs between CPUs, in a few seconds (`tilewright doctor --calibrate`).

Loops are those of `cli/peak.py`, and programs of kernels that do nothing. Of loops the quickest run counts: whatever
else the machine does makes a run slower, never quicker. Of meetings the median counts: the quickest are those to which
nobody came, as one thread had done all parts before the others were there. Bandwidths are measured for one core, two, …
up to all; of many cores for some numbers, with those between on a line.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tilewright.cli.peak import best_seconds, clock_loop, fma_loop, read_loop
from tilewright.codegen.driver import driver_ir
from tilewright.codegen.objects import LLVM_VERSION, compile_object
from tilewright.runtime.session import Session
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
from tilewright.target.figures import Figures
from tilewright.target.target import Target

_SECONDS = 0.25  # for a figure, if nobody says
_LONGEST, _ALL = (
    1.0,
    15.0,
)  # seconds for a figure, and for all: the longer, the likelier is a moment without others
_RUN_BYTES = 200_000_000  # that a run reads at least, so that starting it on all threads does not count
_LEAST_MEMORY, _MOST_MEMORY = 16 << 20, 512 << 20  # bytes of a thread, and of all
_EVERY = 4  # threads up to which each number is measured
_LEAST_MEETING = 1e-8  # seconds
_CALLS = 200  # in a batch: reading the clock takes as long as a tenth of a call

_NOTHING = """target triple = "{triple}"
define void @nothing(ptr %args, i64 %part) {{
  ret void
}}
"""


def calibrate(target: Target, threads: int, tell: Callable[[str], None] = lambda what: None) -> Figures:
    """The figures of this host, for teams of up to `threads` threads. Takes no longer than 20 seconds."""
    counts = _counts(threads)
    seconds = min(_LONGEST, _ALL / (6 + 3 * len(counts)))
    tell("clock and ports")
    clock, fma, chain = clock_loop(target), fma_loop(target), fma_loop(target, chains=1)
    l1 = read_loop(target, target.machine.l1_bytes // 2, passes=2000)
    lanes = target.lanes(4)
    hertz = clock.cycles / best_seconds(clock.run, seconds)
    fma_rate = fma.flops / (2 * lanes) / best_seconds(fma.run, seconds)
    load_rate = l1.nbytes / target.vector_bytes / best_seconds(l1.run, seconds)
    latency = hertz * best_seconds(chain.run, seconds) / (chain.flops / (2 * lanes))
    rates: dict[str, tuple[float, ...]] = {}
    for level, sizes in _sizes(target, counts).items():
        tell(f"reads from {level}")
        measured = [read_rate(target, size, n, seconds) for n, size in zip(counts, sizes, strict=True)]
        rates[level] = _filled(counts, measured, threads)
    tell("meetings")
    meeting = target.machine.meeting_seconds if threads == 1 else meeting_seconds(target, threads, seconds)
    return Figures(
        hertz=_rounded(hertz),
        fma_per_cycle=_ports(fma_rate / hertz),
        loads_per_cycle=_ports(load_rate / hertz),
        fma_latency=max(1.0, float(round(latency))),
        l2_rate=rates["L2"][0],
        l3_rates=rates["L3"],
        memory_rates=rates["memory"],
        meeting_seconds=_rounded(meeting),
    )


def read_rate(target: Target, nbytes: int, threads: int, seconds: float = _SECONDS) -> float:
    """Bytes a second that `threads` threads read together, each from a buffer of its own."""
    passes = max(1, _RUN_BYTES // nbytes)
    loops = [read_loop(target, nbytes, passes) for _ in range(threads)]
    if threads == 1:  # a pool's hand-over would count
        return loops[0].nbytes / best_seconds(loops[0].run, seconds)
    with ThreadPoolExecutor(threads) as pool:

        def together() -> None:
            for done in [pool.submit(loop.run) for loop in loops]:
                done.result()

        return sum(loop.nbytes for loop in loops) / best_seconds(together, seconds)


def meeting_seconds(target: Target, threads: int, seconds: float = _SECONDS) -> float:
    """What a call of a kernel takes longer that has a part for each thread than one that has a single part."""
    feeds = {"x": np.zeros(16, np.float32)}
    with Session(_program(target, 1), 1) as one, Session(_program(target, threads), threads) as team:
        alone, shared = one.bind(feeds), team.bind(feeds)
        alone_batch, shared_batch = (_median_batch(bound.run, seconds) for bound in (alone, shared))
    return max((shared_batch - alone_batch) / _CALLS, _LEAST_MEETING)


def _median_batch(run: Callable[[], object], seconds: float) -> float:
    """Seconds of a batch of calls."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(_CALLS):
            run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _program(target: Target, parts: int) -> Artifact:
    x, y = TensorSpec("x", "float32", (16,)), TensorSpec("y", "float32", (16,))
    features = tuple(sorted(target.features))
    manifest = Manifest(FORMAT_VERSION, "", LLVM_VERSION, {}, "", target.triple, features, (x,), (y,))
    calls = (KernelCall("nothing", parts, (Slot(Place.INPUT, 0), Slot(Place.OUTPUT, 0)), True),)
    kernel = compile_object(_NOTHING.format(triple=target.triple), target)
    return Artifact(manifest, compile_object(driver_ir(target), target), (kernel,), (), 0, (Segment(calls),))


def _counts(threads: int) -> list[int]:
    """The numbers of threads that are measured: few of them, if there are many."""
    doubled = [2**n for n in range(threads.bit_length())]
    return sorted({n for n in (*range(1, _EVERY + 1), *doubled, threads) if n <= threads})


def _sizes(target: Target, counts: Sequence[int]) -> dict[str, list[int]]:
    """Bytes of the buffer of each thread, by where it must fit."""
    m = target.machine
    return {
        "L2": [m.l2_bytes // 2 for _ in counts],
        "L3": [max(2 * m.l2_bytes, m.l3_bytes // (2 * max(n, 2))) for n in counts],
        "memory": [max(min(4 * m.l3_bytes, _MOST_MEMORY) // n, _LEAST_MEMORY) for n in counts],
    }


def _filled(counts: Sequence[int], rates: Sequence[float], threads: int) -> tuple[float, ...]:
    """For every number of threads. More never get less: if it looks so, somebody else was busy."""
    grown = np.maximum.accumulate(rates)
    return tuple(_rounded(float(r)) for r in np.interp(np.arange(1, threads + 1), counts, grown))


def _ports(per_cycle: float) -> float:
    """Vectors a cycle as a number of ports: an integer, or one half where a CPU takes a vector in two halves."""
    return max(0.5, round(2 * per_cycle) / 2)


def _rounded(value: float) -> float:
    """To three digits: the rest is noise."""
    return float(f"{value:.3g}")
