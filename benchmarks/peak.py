"""The limits of this machine: float32 arithmetic and memory reads, as one core and as all cores reach them."""

import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import click

from benchmarks.interleave import interleave
from benchmarks.results import table, write
from tilewright.cli.machine import machine
from tilewright.cli.peak import PeakLoop, fma_loop, read_loop
from tilewright.target.target import native

METHOD = """Loops of hand-written LLVM IR through our own object writer and loader. Arithmetic: twelve
independent chains of fused multiply-adds on registers. Reads: passes over a buffer. Best rate, and the
median of {rounds} rounds; with several cores, each runs a loop of its own and the slowest counts."""


def together(loops: list[PeakLoop], pool: ThreadPoolExecutor) -> Callable[[], None]:
    """Runs all loops at once, each on a thread of its own (ctypes lets go of the interpreter's lock)."""

    def run() -> None:
        for done in [pool.submit(loop.run) for loop in loops]:
            done.result()

    # a single loop needs no pool, whose hand-over would count
    return run if len(loops) > 1 else loops[0].run


@click.command()
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1))
def main(rounds: int) -> None:
    """Measure arithmetic and memory speed; writes docs/results/peak.md."""
    target = native()
    large = 4 * target.machine.l3_bytes
    sizes = {"L2": target.machine.l2_bytes // 2, "L3": target.machine.l3_bytes // 4, "memory": large}
    rows: list[list[str]] = []
    for cores in range(1, len(machine().affinity) + 1):
        kinds = {"arithmetic": [fma_loop(target, seconds=0.02)] * cores}  # registers only: one will do
        kinds |= {
            f"reads from {name}": [read_loop(target, n, passes=4 * large // n) for _ in range(cores)]
            for name, n in sizes.items()
        }
        with ThreadPoolExecutor(cores) as pool:
            engines = {kind: together(loops, pool) for kind, loops in kinds.items()}
            measured = interleave(engines, rounds=rounds, seconds=0.02)
        for kind, series in measured.items():
            work = sum(loop.flops or loop.nbytes for loop in kinds[kind]) / 1e9
            unit = "GFLOP/s" if kind == "arithmetic" else "GB/s"
            best, usual = work / min(map(min, series.rounds)), work / statistics.median(series.round_medians)
            rows.append([f"{kind}, {cores} core(s)", f"{best:.1f} {unit}", f"{usual:.1f} {unit}"])
    text = table(("", "best", "median"), rows)
    click.echo(text)
    best = {row[0]: row[1] for row in rows}
    shows = (
        f"One core does {best['arithmetic, 1 core(s)']} of multiply-adds and reads "
        f"{best['reads from memory, 1 core(s)']} from memory."
    )
    path = write("peak", "The limits of the machine", shows, METHOD.format(rounds=rounds), text)
    click.echo(f"written to {path}")


if __name__ == "__main__":
    main()
