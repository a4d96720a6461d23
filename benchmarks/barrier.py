"""What the runtime itself costs: a call from Python, waking the team, and the barrier between kernels."""

import statistics
import time
from collections.abc import Callable

import click
import numpy as np

from benchmarks.interleave import interleave
from benchmarks.results import table, write
from tilewright.codegen.driver import driver_ir
from tilewright.codegen.objects import LLVM_VERSION, compile_object
from tilewright.runtime.machine import check_threads, default_threads
from tilewright.runtime.session import Session
from tilewright.support.affinity import pinned
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
from tilewright.target.target import native

CALLS = 500  # of a timed batch: the clock costs as much as a tenth of a call
KERNELS = 1000  # of a program that is all barriers

METHOD = """Programs of kernels that do nothing, {threads} threads, pinned. *call*: `Bound.run` of one kernel of one
part; *run*: `Session.run` of it with one input and one output; *team call*: `Bound.run` of one kernel with a part for
each thread, while the workers still spin; *team call, asleep*: the same after they have gone to sleep; *kernel* and
*kernel and barrier*: one of {kernels} in a program. Kinds take turns in {rounds} rounds; medians, noise is the spread
of the rounds."""

NOTHING = """target triple = "{triple}"
define void @nothing(ptr %args, i64 %part) {{
  ret void
}}
"""


def program(parts: int, *, kernels: int = 1, barrier: bool = True) -> Artifact:
    target = native()
    x, y = TensorSpec("x", "float32", (16,)), TensorSpec("y", "float32", (16,))
    features = tuple(sorted(target.features))
    manifest = Manifest(FORMAT_VERSION, "", LLVM_VERSION, {}, "", target.triple, features, (x,), (y,))
    slots = (Slot(Place.INPUT, 0), Slot(Place.OUTPUT, 0))
    calls = (KernelCall("nothing", parts, slots, barrier),) * kernels
    kernel = compile_object(NOTHING.format(triple=target.triple), target)
    driver = compile_object(driver_ir(target), target)
    return Artifact(manifest, driver, (kernel,), (), 0, (Segment(calls),))


def batch(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            call()

    return run


def asleep_seconds(call: Callable[[], object], samples: int = 50) -> float:
    """The call once the workers have been idle for long enough to sleep."""
    times: list[float] = []
    for _ in range(samples):
        time.sleep(0.002)
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@click.command()
@click.option("--threads", type=int, help="Threads of the team; one for each core unless given.")
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1))
def main(threads: int | None, rounds: int) -> None:
    """Measure calls and barriers; writes docs/results/barrier.md."""
    workers = default_threads() if threads is None else check_threads(threads)
    feeds = {"x": np.zeros(16, np.float32)}
    with pinned(min(workers, default_threads())):
        one = Session(program(1), workers)
        team = Session(program(workers), workers).bind(feeds)
        kernels = Session(program(workers, kernels=KERNELS, barrier=False), workers).bind(feeds)
        barriers = Session(program(workers, kernels=KERNELS), workers).bind(feeds)
        # what is timed, and how many of what we ask for are in it
        kinds: dict[str, tuple[Callable[[], object], int]] = {
            "call": (batch(one.bind(feeds).run), CALLS),
            "run": (batch(lambda: one.run(feeds)), CALLS),
            "team call": (batch(team.run), CALLS),
            "kernel": (kernels.run, KERNELS),
            "kernel and barrier": (barriers.run, KERNELS),
        }
        measured = interleave({k: f for k, (f, _) in kinds.items()}, rounds=rounds, seconds=0.05)
        asleep = asleep_seconds(team.run)
    rows = [
        [kind, f"{series.median / kinds[kind][1] * 1e6:.3f}", f"{100 * series.spread:.0f} %"]
        for kind, series in measured.items()
    ]
    rows.append(["team call, asleep", f"{asleep * 1e6:.1f}", ""])
    text = table(("", "µs", "noise"), rows)
    click.echo(text)
    method = METHOD.format(threads=workers, kernels=KERNELS, rounds=rounds)
    took = {kind: cost for kind, cost, _ in rows}
    shows = (
        f"A barrier and the kernel before it take {took['kernel and barrier']} µs, a call of a bound program "
        f"{took['call']} µs, with an awake team {took['team call']} µs; a team that sleeps takes "
        f"{took['team call, asleep']} µs."
    )
    click.echo(f"written to {write('barrier', 'What the runtime costs', shows, method, text)}")


if __name__ == "__main__":
    main()
