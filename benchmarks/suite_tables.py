"""What the pages of networks and of operators have in common: names, numbers and lists as text."""

from collections.abc import Iterable

from benchmarks.catalogue import ENGINES
from benchmarks.suite_results import OURS, Results, Row, geometric_mean
from tilewright.support.turns import Ratio


def threads_text(threads: int) -> str:
    return {1: "One thread", 2: "Two threads"}.get(threads, f"{threads} threads")


def engines_of(rows: Iterable[Row]) -> list[str]:
    """Ours first, then those of the catalogue in its order, then others by name."""
    seen = {e for row in rows for e in row}
    order = [OURS, *ENGINES]
    return sorted(seen, key=lambda e: (order.index(e) if e in order else len(order), e))


def ratio_text(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def mean_text(values: Iterable[float]) -> str:
    found = list(values)
    return f"**{geometric_mean(found):.2f}**" if found else ""


def error_text(results: Iterable[Results]) -> list[str]:
    """How wrong we are at most; nothing if we are nowhere."""
    rows = [row for found in results for by_threads in found.values() for row in by_threads.values()]
    errors = [row[OURS].error for row in rows if OURS in row and row[OURS].is_there]
    return [f"The largest error of ours is {max(errors):.1e} of the largest output."] if errors else []


def failures_text(results: Iterable[Results]) -> list[str]:
    """A section, if anything has failed."""
    lines = [
        f"- {name}, {threads} thread(s), {engine}: {cell.failure}"
        for found in results
        for name, by_threads in found.items()
        for threads, row in by_threads.items()
        for engine, cell in row.items()
        if not cell.is_there
    ]
    return ["## What failed", "\n".join(lines)] if lines else []


def versions_text(results: Iterable[Results]) -> str:
    versions = {
        engine: cell.version
        for found in results
        for by_threads in found.values()
        for row in by_threads.values()
        for engine, cell in row.items()
        if cell.version
    }
    return f"Engines: {', '.join(f'{e} {v}' for e, v in sorted(versions.items()))}."
