"""What the families that fuse contractions win: programs with `bands` and `chain`, and without them.

    python -m benchmarks.fused_contractions                       # blocks, and networks of $BENCH_HOME; writes the page
    python -m benchmarks.fused_contractions decode_32x4096_keys bert_base --no-save
    python -m benchmarks.fused_contractions --from RESULTS.json   # what was measured before

A program without a family is another trace of the same model (`docs/traces.md`): without `bands` no Funcs are joined,
without `chain` contractions are not joined to others,
and every group of two contractions is divided into three. What follows from that is decided anew.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

import tilewright as tw
from benchmarks.fingerprint import bench_home
from benchmarks.fused_contraction_cases import BLOCKS, efficientnet_b0
from benchmarks.interleave import interleave
from benchmarks.options import PageOptions, Turns, page_options, results_option, turn_options
from benchmarks.results import table
from benchmarks.suite_results import OURS, Results, against, geometric_mean, read_results
from benchmarks.suite_tables import ratio_text, threads_text
from tilewright.cli.feeds import make_feeds
from tilewright.cli.output import note
from tilewright.driver.decisions import Group, Join, Kernel
from tilewright.driver.trace import ProgramTrace
from tilewright.graph.graph import Graph, Node
from tilewright.graph.passes.group import FusionGroup, Grouping
from tilewright.graph.passes.lower import lower_groups
from tilewright.ops.opdef import Kind
from tilewright.stages import Stages, stages
from tilewright.support.affinity import pinned

SHOWS = """Where the kernel families that fuse contractions with what is around them are worth their keep."""

METHOD = """float32, random inputs, untuned, in one process that is pinned to as many cores as threads. *with* is the
program as it is by default. *without* is the same model with another trace: without `bands` no Funcs are joined, so
each convolution is a kernel; without `chain` two MatMuls and what is between them are three kernels. Both take
turns; times are medians in milliseconds. *without / with* is how many times longer the program takes without the
family, with its 95 % interval over rounds: above 1 the family wins. *kernels* counts the calls of the family in a run,
and how many of them do fuse: `chain` may also keep its contractions apart. *difference* is the largest between
both results, over the largest output."""

FAMILIES = ("bands", "chain")
NETWORKS = (
    "mobilenetv2",
    "efficientnet_b0",
    "resnet18",
    "resnet50",
    "bert_base",
    "minilm",
    "vit_b16",
    "gpt2",
)

Sites: TypeAlias = dict[str, tuple[int, int]]  # by family: calls, and those of them that fuse


def sites(trace: ProgramTrace) -> Sites:
    """Where a program has kernels of the families."""
    found: Sites = {}
    for k in trace.sections["kernels"]:
        if isinstance(k, Kernel) and k.family in FAMILIES:
            is_fused = k.family == "bands" or bool(dict(k.knobs)["block"])
            calls, fused = found.get(k.family, (0, 0))
            found[k.family] = calls + len(k.calls), fused + len(k.calls) * is_fused
    return found


def without(family: str, found: Stages) -> ProgramTrace:
    """The trace of a program that has no such kernels. Layouts and schedules are left to the compiler."""
    given = found.trace.sections
    if family == "bands":
        return ProgramTrace({"groups": given["groups"], "algorithms": given["algorithms"], "joins": ()})
    groups = [g for g in given["groups"] if isinstance(g, Group)]
    divided = divide_chains(found.graph, groups)
    chained = {c for k in given["kernels"] if isinstance(k, Kernel) and k.family == family for c in k.calls}
    joins = tuple(
        j for j in given["joins"] if isinstance(j, Join) and f"{j.first}__{j.second}" not in chained
    )
    return ProgramTrace({"groups": divided, "algorithms": given["algorithms"], "joins": joins})


def divide_chains(graph: Graph, groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups, but those with two contractions in three: the first with its epilogue, what is between, the last."""
    made = {n.outputs[0].name: n for n in graph.nodes}
    grouping = Grouping(graph, ())
    for g in groups:
        for part in _parts([made[v] for v in g.values]):
            grouping.take(part)
    parts = grouping.finish()
    names = lower_groups(graph, parts)[1]
    return tuple(
        Group(name, tuple(n.outputs[0].name for n in p.own))
        for p, name in zip(parts, names, strict=True)
        if name and isinstance(p, FusionGroup)
    )


def _parts(nodes: Sequence[Node]) -> list[list[Node]]:
    contractions = [at for at, n in enumerate(nodes) if n.op.kind is Kind.CONTRACTION]
    if len(contractions) < 2:
        return [list(nodes)]
    begin, end = contractions[0], contractions[-1]
    between = [
        n for n in nodes[begin + 1 : end] if n.op.kind is not Kind.MOVEMENT
    ]  # views: readers repeat them
    reductions = [at for at, n in enumerate(between) if n.op.kind is Kind.REDUCTION]
    cut = reductions[0] if reductions else len(between)
    found = [[*nodes[: begin + 1], *between[:cut]], between[cut:], list(nodes[end:])]
    return [part for part in found if part]


# --------------------------------------------------------------------------------------------------------- measurement


def measure(model: Path, turns: Turns) -> dict[str, dict[str, Any]]:
    """By number of threads: cells as the suite writes them, of the program and of those without a family. Nothing if
    the program has none.
    """
    made = stages(model)
    counts = sites(made.trace)
    traces = {OURS: made.trace, **{f: without(f, made) for f in counts}}
    feeds = make_feeds(made.artifact.manifest.inputs, {}, 0)
    found: dict[str, dict[str, Any]] = {}
    for threads in turns.thread_counts if counts else ():
        with pinned(threads):
            bound = {n: tw.load(model, trace=t, threads=threads).bind(feeds) for n, t in traces.items()}
            results = {n: [np.array(v) for v in b.run().values()] for n, b in bound.items()}
            times = interleave(
                {n: b.run for n, b in bound.items()}, rounds=turns.rounds, seconds=turns.seconds
            )
        found[str(threads)] = {
            name: {
                "median_ms": series.median * 1e3,
                "round_medians_ms": [m * 1e3 for m in series.round_medians],
                "rel_err": _difference(results[OURS], results[name]),
                "version": " ".join(map(str, counts.get(name, ()))),
            }
            for name, series in times.items()
        }
    return found


def _difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest, over the largest magnitude."""
    return max(float(abs(a - b).max() / max(abs(a).max(), 1e-30)) for a, b in zip(one, other, strict=True))


def write_models(names: Sequence[str], folder: Path) -> list[Path]:
    """Those that are built here go to the folder; the others are of the suite."""
    found: list[Path] = []
    for name in names or (*NETWORKS, *BLOCKS):
        build = efficientnet_b0 if name == "efficientnet_b0" else BLOCKS.get(name)
        path = (bench_home() / "models" if build is None else folder) / f"{name}.onnx"
        if build is not None:
            path.write_bytes(build().SerializeToString())
        if path.exists():
            found.append(path)
        else:
            note(f"{name} is not in $BENCH_HOME/models, and is left out")
    return found


# --------------------------------------------------------------------------------------------------------------- pages


def section(results: Results, threads: int) -> list[str]:
    parts = [f"## {threads_text(threads)}"]
    for title, chosen in (("Networks", NETWORKS), ("Blocks", tuple(BLOCKS))):
        lines: list[list[str]] = []
        means: list[str] = []
        for family in FAMILIES:
            ratios: list[float] = []
            for name in chosen:
                row = results.get(name, {}).get(threads, {})
                ratio = against(row, family)
                if ratio is None:
                    continue
                ratios.append(ratio.value)
                cell = row[family]
                lines.append(
                    [
                        name,
                        family,
                        " of ".join(reversed(cell.version.split())),
                        f"{row[OURS].median:.3f}",
                        f"{cell.median:.3f}",
                        ratio_text(ratio),
                        f"{cell.error:.0e}",
                    ]
                )
            if ratios:
                means.append(f"{family} {geometric_mean(ratios):.2f} ({len(ratios)})")
        if lines:
            head = (title.lower(), "family", "kernels", "with", "without", "without / with", "difference")
            parts += [table(head, lines), f"Geometric means, and of how many: {', '.join(means)}."]
    return parts


def shown(results: Results, counts: Sequence[int]) -> str:
    """What the page leads with."""
    found: list[str] = []
    for title, chosen in (("blocks", tuple(BLOCKS)), ("networks", NETWORKS)):
        for family in FAMILIES:
            means: list[str] = []
            for t in counts:
                rows = [results.get(name, {}).get(t, {}) for name in chosen]
                ratios = [r.value for row in rows if (r := against(row, family)) is not None]
                means += [f"{geometric_mean(ratios):.2f}"] if ratios else []
            found += [f"{title} {' and '.join(means)} times without `{family}`"] if means else []
    threads = " and ".join(map(str, counts))
    return f"{SHOWS} On the geometric mean, with {threads} threads, {'; '.join(found)} as long as with it."


def without_any(sources: Sequence[Path]) -> list[str]:
    """What was looked at, and has nothing to compare: the families were not taken."""
    stored = [json.loads(path.read_text(encoding="utf-8")) for path in sources]
    names = [name for found in stored for name, by_threads in found.items() if not by_threads]
    return [f"No kernel of either family is in: {', '.join(names)}."] if names else []


@click.command()
@click.argument("names", nargs=-1, type=click.Choice((*NETWORKS, *BLOCKS)), metavar="[NAME]...")
@results_option("--from", "sources", "Render these results instead of measuring; may be repeated.")
@turn_options(rounds=9, seconds=0.2)
@page_options("fused-contractions")
def main(names: tuple[str, ...], sources: tuple[Path, ...], turns: Turns, page: PageOptions) -> None:
    """Measure the blocks and networks of these NAMES (all unless given), or render --from."""
    os.environ["TILEWRIGHT_DB"] = "off"
    measured_at = page.measured_at(bool(sources))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not sources:
            measured: dict[str, Any] = {}
            for path in write_models(names, folder):
                measured[path.stem] = measure(path, turns)
                note(f"{path.stem}: {', '.join(measured[path.stem]) or 'no such kernel'}")
            sources = (page.stored(measured, folder / "fused-contractions.json"),)
        results = read_results(sources)
        unfused = without_any(sources)
    counts = sorted({t for found in results.values() for t in found})
    parts = [part for t in counts for part in section(results, t)] + unfused
    title = "Fused contractions: with and without the families"
    page.publish("fused-contractions", title, shown(results, counts), METHOD, parts, measured_at)


if __name__ == "__main__":
    main()
