"""Where the time of networks goes: contractions, and the kernels around them that memory bounds.

    python -m benchmarks.kernel_kinds m.onnx            # one thread, the networks of the suite unless given
    python -m benchmarks.kernel_kinds --kernels 10      # and the slowest kernels that are no contraction

The share of time in kernels without a contraction is what fusion can win; a contraction with its prologue and epilogue
counts as a contraction.
"""

from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.fingerprint import bench_home
from benchmarks.networks import NETWORKS
from benchmarks.results import table
from tilewright.cli.feeds import make_feeds
from tilewright.cli.profile import KernelProfile, Profile, profile
from tilewright.driver.decisions import Kernel
from tilewright.stages import Stages, stages
from tilewright.target.target import native

_CONTRACTION = "contraction"
_KINDS: tuple[str, ...] = (_CONTRACTION, "reduction", "elementwise", "copy", "fill")


def kind_of(kernel: KernelProfile) -> str:
    """The kind of work in one word; the profile has it with the name of an algorithm and a tile around it."""
    words = kernel.algorithm.replace(":", " ").split()
    return next((k for k in _KINDS if k in words), "unknown")


def families(found: Stages) -> dict[str, str]:
    """The family of the Func of each kernel, by the name of the kernel."""
    decided = [k for k in found.trace.sections["kernels"] if isinstance(k, Kernel)]
    of_func = {call: k.family for k in decided for call in k.calls}
    return {k.name: of_func.get(c.func.name, "") for c in found.compiled for k in c.kernels}


def shares(made: Profile) -> dict[str, float]:
    """Of the time in kernels, by kind."""
    total = dict.fromkeys(_KINDS, 0.0)
    for k in made.kernels:
        kind = kind_of(k)
        total[kind] = total.get(kind, 0.0) + made.share(k)
    return total


def slowest(made: Profile, family: dict[str, str], count: int) -> Sequence[Sequence[str]]:
    """Rows of a table: kernels that are no contraction."""
    found = [k for k in made.kernels if kind_of(k) != _CONTRACTION]
    return [
        [
            k.name,
            family.get(k.name, ""),
            kind_of(k),
            str(k.calls),
            f"{k.seconds * 1e6:.1f}",
            f"{made.share(k):.1%}",
            f"{(k.byte_rate or 0) / 1e9:.0f}",
        ]
        for k in found[:count]
    ]


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=2.0, show_default=True, help="Of each network.")
@click.option("--kernels", default=0, help="Also list as many kernels of each network.")
def main(files: tuple[Path, ...], threads: int, seconds: float, kernels: int) -> None:
    """Profile FILES (ONNX; the networks of the suite in $BENCH_HOME unless given)."""
    suite = (bench_home() / "models" / f"{n}.onnx" for n in NETWORKS)
    rows: list[list[str]] = []
    for path in list(files) or [p for p in suite if p.exists()]:
        found = stages(path)
        feeds = make_feeds(found.artifact.manifest.inputs, {}, 0)
        made = profile(found.artifact, feeds, target=native(), threads=threads, seconds=seconds, stages=found)
        by_kind = shares(made)
        memory_bound = 1 - by_kind[_CONTRACTION]
        rows.append(
            [
                path.stem,
                f"{made.total * 1e3:.2f}",
                str(sum(k.calls for k in made.kernels)),
                f"{memory_bound:.1%}",
                *(f"{by_kind[k]:.1%}" for k in _KINDS[1:]),
            ]
        )
        if kernels:
            columns = ("kernel", "family", "kind", "calls", "us", "share", "GB/s")
            click.echo(f"\n{path.stem}\n\n{table(columns, slowest(made, families(found), kernels))}\n")
    columns = ("network", "ms", "calls", "without a contraction", *_KINDS[1:])
    click.echo(table(columns, rows))


if __name__ == "__main__":
    main()
