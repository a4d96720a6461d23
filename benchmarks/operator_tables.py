"""The page of results of single operators: a table for each kind and number of threads, untuned and tuned."""

import math
from collections.abc import Mapping, Sequence

from benchmarks.results import table
from benchmarks.suite_results import OUR_ERROR, OURS, PEER_ERROR, Results, Row, against, best_peer
from benchmarks.suite_tables import (
    error_text,
    failures_text,
    mean_text,
    ratio_text,
    threads_text,
)

SHOWS = """How single operators compare with the best other engine, and how much of the multiply-add peak they use."""

METHOD = f"""One operator as an ONNX model, float32. Each engine runs in a process of its own, pinned to as many cores
as threads; all are loaded, and then take turns. Times are medians in milliseconds. *of peak* is our rate over that of a
loop of multiply-adds on registers, which takes its turns like an engine, times the threads; a convolution counts the
operations of its definition, whatever algorithm was chosen. *best / ours* is the time of the quickest other engine over
ours, with its 95 % bootstrap interval over rounds: above 1 we are faster. A result of ours counts if its error is at
most {OUR_ERROR:g} of the largest output, one of the others at {PEER_ERROR:g}. The operands of `gemm`, `bmm` and `tbg`
come at run time, and packing them counts; weights of dense layers and convolutions are constants. Convolutions take and
give channels first. Untuned: no cache, no database, no kernel timed. Ratios of operators below a tenth of a millisecond
are mostly noise, as their intervals show."""

# By how names begin; the first that fits.
KINDS: Mapping[str, tuple[str, ...]] = {
    "GEMM": ("gemm_", "dense_"),
    "Convolutions of ResNet-50": ("c2d_stem_", "c2d_3x3", "c2d_1x1"),
    "Other dimensions, groups, dilation, transposed, depthwise, batches": ("",),
}


def kind_of(name: str) -> str:
    return next(kind for kind, starts in KINDS.items() if name.startswith(starts))


def comparison(rows: Mapping[str, Row], single: Mapping[str, Row]) -> str:
    """A line for each operator. `single` has the rows of one thread, to compare those of more with."""
    ours = [_median(row) for row in rows.values()]
    best = [best_peer(row) for row in rows.values()]
    ratios = [None if b is None else against(row, b) for b, row in zip(best, rows.values(), strict=True)]
    shares = [row[OURS].of_peak if OURS in row else math.nan for row in rows.values()]
    gains = [_median(single.get(name, {})) / ms for name, ms in zip(rows, ours, strict=True)]
    columns = {
        "operator": [*rows, "**geometric mean**"],
        "ms": [*(_number(ms, 3) or "fails" for ms in ours), ""],
        "of peak": _with_mean(shares),
        "best peer, ms": [
            *(
                "" if b is None else f"{row[b].median:.3f} ({b})"
                for b, row in zip(best, rows.values(), strict=True)
            ),
            "",
        ],
        "best / ours": [*map(ratio_text, ratios), mean_text(r.value for r in ratios if r is not None)],
        "over one thread": _with_mean(gains),
    }
    there = {title: texts for title, texts in columns.items() if any(texts)}
    return table(list(there), list(zip(*there.values(), strict=True)))


def _median(row: Row) -> float:
    """Ours; not a number if there is none."""
    return row[OURS].median if OURS in row else math.nan


def _number(value: float, digits: int = 2) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _with_mean(values: Sequence[float]) -> list[str]:
    return [*map(_number, values), mean_text(v for v in values if not math.isnan(v))]


def sections(results: Results, title: str) -> dict[str, list[str]]:
    """By kind: a heading, and a table for each number of threads."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for kind, parts in found.items():
        chosen = {name: by_threads for name, by_threads in results.items() if kind_of(name) == kind}
        single = {name: by_threads[1] for name, by_threads in chosen.items() if 1 in by_threads}
        for threads in sorted({t for by_threads in chosen.values() for t in by_threads}):
            rows = {name: by_threads[threads] for name, by_threads in chosen.items() if threads in by_threads}
            parts += [f"### {threads_text(threads)}", comparison(rows, single if threads > 1 else {})]
        if parts:
            parts.insert(0, f"## {kind} ({title})")
    return found


def pages(untuned: Results, tuned: Results) -> list[str]:
    """The parts of the page."""
    both = (untuned, tuned)
    plain, better = sections(untuned, "untuned"), sections(tuned, "tuned")
    parts = [part for kind in KINDS for part in (*plain[kind], *better[kind])]
    return [*parts, *error_text(both), *failures_text(both)]
