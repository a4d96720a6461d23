"""The page of results of networks: tables and bar charts, from times in several engines."""

from collections.abc import Mapping

from benchmarks.results import table
from benchmarks.suite_results import (
    OUR_ERROR,
    OURS,
    PEER_ERROR,
    Results,
    Row,
    against,
    best_peer,
    counts,
    geometric_mean,
    split_batch,
)
from benchmarks.suite_tables import (
    engines_of,
    error_text,
    failures_text,
    mean_text,
    ratio_text,
    threads_text,
)
from benchmarks.svg import bar_chart
from tilewright.support.turns import Ratio

METHOD = f"""float32, random weights, untuned: no cache, no database, no kernel timed. Each engine runs in a process of
its own, pinned to as many cores as threads; all are loaded, and then take turns. Times are medians in milliseconds;
in brackets: that time over ours, above 1 is slower than ours. *best / ours* is that of the quickest other engine, with
its 95 % bootstrap interval over rounds. A result of ours counts if its error is at most {OUR_ERROR:g} of the largest
output, one of the others at {PEER_ERROR:g} (marked † beyond). `inductor` is PyTorch's, with frozen weights;
`xla` is JAX's."""


def shows(results: Results) -> str:
    """The geometric means of single inputs, in a sentence."""
    alone = {name: found for name, found in results.items() if split_batch(name)[1] == 1}
    means: list[str] = []
    for threads in sorted({t for found in alone.values() for t in found}):
        ratios = [_best_ratio(found[threads]) for found in alone.values() if threads in found]
        mean = geometric_mean(r.value for r in ratios if r is not None)
        means.append(f"{mean:.2f} times ({threads_text(threads).lower()})")
    text = " and ".join(means)
    return f"Untuned, {len(alone)} networks run at {text} the speed of the best other engine for each."


def comparison(rows: Mapping[str, Row]) -> str:
    """A table with a line for each network, and the geometric means of the ratios."""
    engines = engines_of(rows.values())
    peers = [e for e in engines if e != OURS]
    lines = [[name, *(_cell_text(row, e) for e in engines), *_best_text(row)] for name, row in rows.items()]
    means = [_mean([against(row, e) for row in rows.values()]) for e in peers]
    best = _mean([_best_ratio(row) for row in rows.values()])
    lines.append(["**geometric mean**", *([""] if OURS in engines else []), *means, "", best])
    return table(["network", *engines, "best", "best / ours"], lines)


def _cell_text(row: Row, engine: str) -> str:
    if engine not in row or not row[engine].is_there:
        return "fails" if engine in row else ""
    ratio = against(row, engine) if engine != OURS else None
    mark = "" if counts(row[engine], engine) else "†"
    return f"{_ms(row[engine].median)}{mark}" + (f" ({ratio.value:.2f})" if ratio is not None else "")


def _ms(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _best_ratio(row: Row) -> Ratio | None:
    best = best_peer(row)
    return None if best is None else against(row, best)


def _best_text(row: Row) -> tuple[str, str]:
    return best_peer(row) or "", ratio_text(_best_ratio(row))


def _mean(ratios: list[Ratio | None]) -> str:
    there = [r.value for r in ratios if r is not None]
    return f"{mean_text(there)} ({len(there)})" if there else ""


def scaling(results: Results, few: int, many: int) -> str:
    """How much quicker each engine is with more threads."""
    rows = {n: (r[few], r[many]) for n, r in results.items() if few in r and many in r}
    engines = engines_of(row for pair in rows.values() for row in pair)
    lines: list[list[str]] = []
    gains: dict[str, list[float]] = {e: [] for e in engines}
    for name, (one, several) in rows.items():
        line = [name]
        for e in engines:
            if all(e in row and row[e].is_there for row in (one, several)):
                gains[e].append(one[e].median / several[e].median)
                line.append(f"{gains[e][-1]:.2f}")
            else:
                line.append("")
        lines.append(line)
    return table(["network", *engines], [*lines, ["**geometric mean**", *map(mean_text, gains.values())]])


def chart(rows: Mapping[str, Row], threads: int) -> str:
    """Bars: the time of each other engine over ours."""
    peers = [e for e in engines_of(rows.values()) if e != OURS]
    ratios = {name: {e: against(row, e) for e in peers} for name, row in rows.items()}
    groups = {
        name: {e: r.value for e, r in found.items() if r is not None and r.value > 0}
        for name, found in ratios.items()
    }
    title = f"Time of other engines over ours, {threads_text(threads).lower()}"
    return bar_chart(title, "times ours", groups, line=1.0)


def pages(results: Results) -> tuple[list[str], dict[str, str]]:
    """The parts of the page, and the charts by file name."""
    single = {n: r for n, r in results.items() if split_batch(n)[1] == 1}
    batched = {n: r for n, r in results.items() if split_batch(n)[1] > 1}
    thread_counts = sorted({t for r in results.values() for t in r})
    parts: list[str] = []
    charts: dict[str, str] = {}
    for threads in thread_counts:
        rows = {n: r[threads] for n, r in single.items() if threads in r}
        if rows:
            file = f"networks-{threads}.svg"
            charts[file] = chart(rows, threads)
            title = threads_text(threads)
            parts += [f"## {title}", comparison(rows), f"![{title}]({file})"]
    if len(thread_counts) > 1:
        few, many = thread_counts[0], thread_counts[-1]
        parts += [
            f"## {many} threads over {few}",
            "The time with fewer threads over the time with more.",
            scaling(single, few, many),
        ]
    for threads in thread_counts:
        rows = {n: r[threads] for n, r in batched.items() if threads in r}
        if rows:
            parts += [f"## Batches, {threads_text(threads).lower()}", comparison(rows)]
    return [*parts, *error_text((results,)), *failures_text((results,))], charts
