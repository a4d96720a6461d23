"""Memory-bound groups of operators against other engines and against memory itself: docs/results/memory-bound.md.

python -m benchmarks.memory_bound                       # all groups of `memory_bound_cases`
python -m benchmarks.memory_bound softmax_1024x1024 --no-save
python -m benchmarks.memory_bound --from RESULTS.json   # what was measured before
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.catalogue import ENGINES
from benchmarks.memory_bound_cases import CASES
from benchmarks.options import PageOptions, Turns, page_options, results_option, turn_options
from benchmarks.results import table
from benchmarks.stream_engine import STREAMS
from benchmarks.suite_measure import measure_all
from benchmarks.suite_results import (
    OURS,
    Cell,
    Results,
    Row,
    against,
    best_peer,
    geometric_mean,
    read_results,
)
from benchmarks.suite_tables import (
    engines_of,
    error_text,
    failures_text,
    ratio_text,
    threads_text,
    versions_text,
)

SHOWS = """How close memory-bound groups come to the speed of memory, and to the best other engine."""

METHOD = """float32, random inputs, untuned. Each engine runs in a process of its own, pinned to as many cores as
threads; all take turns. Times are medians in milliseconds; in brackets: that time over ours, above 1 is slower than
ours. *best / ours* is that of the quickest other engine, with its 95 % interval over rounds. *limit / ours*: a loop
that reads and writes as many bytes in the same mix (`benchmarks/stream_engine.py`), which takes its turns like an
engine, over ours: 1 is the speed of memory, or of the cache that the data fits. GB/s counts inputs and outputs
once."""

_PEERS = "ort,openvino,torch,inductor,xla"
_NEAR_LIMIT = 0.85  # of the limit: where the best peer has that, there is little to win


def judged(results: Results) -> Results:
    """Errors without what the reference itself may be wrong by."""

    def cell(name: str, found: Cell) -> Cell:
        ours = None if found.ours is None else cell(name, found.ours)
        error = max(0.0, found.error - CASES[name].reference_error)
        return replace(found, error=error, ours=ours)

    return {
        name: {t: {e: cell(name, c) for e, c in row.items()} for t, row in by_threads.items()}
        for name, by_threads in results.items()
    }


def is_at_limit(row: Row) -> bool:
    """Is the best of the others about as quick as memory?"""
    best, limit = best_peer(_without_limit(row)), row.get(STREAMS.name)
    return best is not None and limit is not None and limit.median / row[best].median >= _NEAR_LIMIT


def section(results: Results, threads: int) -> list[str]:
    rows = {name: _without_limit(found[threads]) for name, found in results.items() if threads in found}
    whole = {name: found[threads] for name, found in results.items() if threads in found}
    engines = [e for e in engines_of(rows.values()) if e != OURS]
    lines: list[list[str]] = []
    for kind in dict.fromkeys(c.kind for c in CASES.values()):
        lines += [
            _line(n, whole[n], rows[n], engines) for n, c in CASES.items() if c.kind == kind and n in rows
        ]
    head = ("group", "ours", *engines, "best / ours", "limit / ours", "GB/s")
    return [
        f"## {threads_text(threads)}",
        table(head, lines),
        _means({n: (rows[n], is_at_limit(whole[n])) for n in rows}, engines),
    ]


def _without_limit(row: Row) -> Row:
    return {e: c for e, c in row.items() if e != STREAMS.name}


def _line(name: str, whole: Row, row: Row, engines: Sequence[str]) -> list[str]:
    case, ours = CASES[name], row.get(OURS)
    if ours is None or not ours.is_there:
        return [name, "fails", *[""] * (len(engines) + 3)]
    cells = [
        f"{row[e].median:.3f} ({r.value:.2f})" if (r := against(row, e)) is not None else "" for e in engines
    ]
    best, limit = best_peer(row), whole.get(STREAMS.name)
    near = f"{limit.median / ours.median:.2f}" if limit is not None and limit.is_there else ""
    rate = (case.read_bytes + case.written_bytes) / ours.median / 1e6
    return [
        name,
        f"{ours.median:.3f}",
        *cells,
        ratio_text(against(row, best)) if best else "",
        near,
        f"{rate:.1f}",
    ]


def _means(rows: dict[str, tuple[Row, bool]], engines: Sequence[str]) -> str:
    def mean(chosen: Sequence[Row], engine: str | None = None) -> str:
        found = [
            r for row in chosen if (e := engine or best_peer(row)) and (r := against(row, e)) is not None
        ]
        return f"{geometric_mean(r.value for r in found):.2f} ({len(found)})" if found else "none"

    near = [row for row, is_near in rows.values() if is_near]
    far = [row for row, is_near in rows.values() if not is_near]
    each = ", ".join(f"{e} {mean([row for row, _ in rows.values()], e)}" for e in engines)
    return (
        f"Geometric means, and of how many: best / ours {mean(far)} where the best other engine is below"
        f" {_NEAR_LIMIT} of the limit, {mean(near)} where it is not. {each}."
    )


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)), metavar="[NAME]...")
@results_option("--from", "sources", "Render these results instead of measuring; may be repeated.")
@click.option("--against", "peers", default=_PEERS, show_default=True, help="Engines to compare with.")
@turn_options(rounds=9, seconds=0.05)
@page_options("memory-bound")
def main(
    names: tuple[str, ...],
    sources: tuple[Path, ...],
    peers: str,
    turns: Turns,
    page: PageOptions,
) -> None:
    """Measure the groups of these NAMES (all unless given), or render --from."""
    measured_at = page.measured_at(bool(sources))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not sources:
            models: list[Path] = []
            for case in names or CASES:
                models.append(folder / f"{case}.onnx")
                models[-1].write_bytes(CASES[case].build().SerializeToString())
            catalogue = {**ENGINES, STREAMS.name: STREAMS}
            engines = [*peers.split(","), STREAMS.name]
            measured = measure_all(models, engines, turns, folder, catalogue)
            sources = (page.stored(measured, folder / "memory-bound.json"),)
        results = judged(read_results(sources))
    counts = sorted({t for found in results.values() for t in found})
    parts = [part for t in counts for part in section(results, t)]
    parts += [versions_text((results,)), *error_text((results,)), *failures_text((results,))]
    title = "Memory-bound groups against other engines and memory"
    page.publish("memory-bound", title, SHOWS, METHOD, parts, measured_at)


if __name__ == "__main__":
    main()
