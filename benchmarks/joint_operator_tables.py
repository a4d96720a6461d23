"""What was found by tuning single operators in three ways, as tables: pure functions of stored results."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.results import table
from benchmarks.suite_results import OURS, PEAK, PEER_ERROR, geometric_mean
from benchmarks.suite_tables import ratio_text
from tilewright.support.turns import Ratio, median_of_rounds

STATED, CHOSEN, JOINT = WAYS = ("stated", "chosen", "joint")
COMPUTE_BOUND = (
    10.0  # operations for each byte of inputs, weights and outputs, given: about what cores do in the time
)
#                       in which memory brings a byte, with all of them at work

SHOWS = """What it gains to tune the structure of an operator (layouts, algorithms, what is computed together) jointly
with its loops, over tuning loops alone."""

METHOD = """Each operator is a model of one node, float32, with random constant weights. It is tuned three times for
{budget}, from an empty database: *stated* tunes loops alone, with images as the model states them (channels first) and
the algorithm as it is written; *chosen* tunes loops alone in the structure that the compiler chooses by itself; *joint*
tunes structure and loops together (`tilewright tune`). In all of them constant weights are packed as a kernel likes
them. Then the three programs, the untuned one, {peers} and a loop of multiply-adds on registers take turns, each in a
process of its own. Ratios are those of times: *stated / joint* is how many times longer *stated* takes than *joint*,
*peer / joint* how many times longer the quickest of the others takes; both with a 95 % interval over rounds.
*of peak* is what *joint* does of the multiply-adds as they are written in the time in which the loop does as many:
Winograd's algorithm does fewer, and may be above 1. The mean of these is over operators with at least {bound:g}
operations for each byte of inputs, weights and outputs, which memory does not bound."""

Cells = Mapping[str, Mapping[str, Any]]


def ratio(cells: Cells, slow: str, quick: str) -> Ratio | None:
    """How many times longer one takes than the other, round by round; None if one of them has no right result."""
    if not (_is_right(cells, slow) and _is_right(cells, quick)):
        return None
    pairs = zip(cells[slow]["round_medians_ms"], cells[quick]["round_medians_ms"], strict=False)
    return median_of_rounds([a / b for a, b in pairs])


def _is_right(cells: Cells, engine: str) -> bool:
    cell = cells.get(engine, {})
    return "median_ms" in cell and cell.get("rel_err", 0.0) <= PEER_ERROR


def best_peer(cells: Cells) -> str | None:
    """The quickest engine that is not ours."""
    others = [e for e in cells if e not in (*WAYS, OURS, PEAK) and _is_right(cells, e)]
    return min(others, key=lambda e: cells[e]["median_ms"], default=None)


def of_peak(cells: Cells, flops: int, peak_flops: float, threads: int, engine: str = JOINT) -> float:
    """The rate over that of multiply-adds; not a number if one of them is missing."""
    if not (_is_right(cells, engine) and PEAK in cells):
        return math.nan
    rate = flops / cells[engine]["median_ms"]
    return rate / (threads * peak_flops / cells[PEAK]["median_ms"])


def page_table(
    found: Mapping[str, Mapping[str, Any]],
    flops: Callable[[str], int],
    intensity: Callable[[str], float],
    peak_flops: float,
    threads: int,
) -> str:
    """`found` has `cells` by operator, and `tuned` by way. Means and worst cases are the last rows."""
    rows: list[list[str]] = []
    stated: dict[str, float] = {}
    chosen: dict[str, float] = {}
    untuned: dict[str, float] = {}
    peers: dict[str, float] = {}
    shares: dict[str, float] = {}
    for name, result in found.items():
        cells = result.get("cells")
        if not cells:
            continue
        peer = best_peer(cells)
        share = of_peak(cells, flops(name), peak_flops, threads)
        if intensity(name) >= COMPUTE_BOUND and share == share:
            shares[name] = share
        ratios = [ratio(cells, other, JOINT) for other in (STATED, CHOSEN, OURS)]
        against = None if peer is None else ratio(cells, peer, JOINT)
        for into, one in zip((stated, chosen, untuned, peers), (*ratios, against), strict=True):
            if one is not None:
                into[name] = one.value
        rows.append(
            [
                name,
                f"{cells[JOINT]['median_ms']:.3f}" if _is_right(cells, JOINT) else "wrong",
                *map(ratio_text, ratios),
                f"{share:.2f}" if share == share else "",
                f"{ratio_text(against)} {peer}" if peer else "",
                _trials(result["tuned"]),
                _structure(result["tuned"]),
            ]
        )
    summaries = [
        ["geometric mean", "", *(_mean(r) for r in (stated, chosen, untuned, shares, peers)), "", ""],
        ["worst", "", *(_worst(r) for r in (stated, chosen, untuned, shares, peers)), "", ""],
    ]
    columns = (
        *("operator", "joint ms", "stated / joint", "chosen / joint", "untuned / joint", "of peak"),
        *("peer / joint", "trials: stated, chosen, joint", "structure of joint"),
    )
    return table(columns, [*rows, *summaries] if rows else rows)


def _mean(values: Mapping[str, float]) -> str:
    return f"**{geometric_mean(values.values()):.2f}**" if values else ""


def _worst(values: Mapping[str, float]) -> str:
    if not values:
        return ""
    name = min(values, key=lambda n: values[n])
    return f"{values[name]:.2f} ({name})"


def _trials(tuned: Mapping[str, Any]) -> str:
    return ", ".join(str(tuned[w]["trials"]) if w in tuned else "-" for w in WAYS)


def _structure(tuned: Mapping[str, Any]) -> str:
    """What the joint tuning has decided, if it is not what the compiler decides."""
    trace = tuned.get(JOINT, {}).get("trace", "")
    own = tuned.get(JOINT, {}).get("own", "")
    if not trace:
        return "untuned stays"
    changed = [s for s in ("algorithms", "joins", "layouts") if section(trace, s) != section(own, s)]
    return f"other {', '.join(changed)}" if changed else "the compiler's"


def section(trace: str, name: str) -> Sequence[str]:
    """The lines of a section of a trace."""
    found: list[str] = []
    is_inside = False
    for line in trace.splitlines():
        if line.startswith("["):
            is_inside = line == f"[{name}]"
        elif is_inside:
            found.append(line)
    return sorted(found)
