"""What `benchmarks.open_shapes` has found, as tables."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from benchmarks.open_shape_cases import DECODERS, IMAGES, MINILM, OpenCase
from benchmarks.open_shape_measure import KEEPING, KEPT, STATIC, Found
from benchmarks.results import table
from benchmarks.suite_results import OURS, Cell, against, geometric_mean
from benchmarks.suite_tables import ratio_text, threads_text
from tilewright.support.turns import Ratio

_NAMES = {
    OURS: "open",
    STATIC: "static",
    KEPT: "open, cache in place",
    KEEPING["openvino"]: "openvino, stateful",
}
_PEERS = {"ort": "ONNX Runtime", "openvino": "OpenVINO"}
_ENGINES = (OURS, STATIC, *_PEERS)


def sections(measured: Mapping[str, Mapping[str, Found]]) -> list[str]:
    """By number of threads, what there is of texts, images and decoders."""
    parts: list[str] = []
    for threads in sorted({int(t) for by_threads in measured.values() for t in by_threads}):

        def found(case: OpenCase, threads: int = threads) -> Found:
            return measured.get(case.name, {}).get(str(threads), {})

        shown = [*_sizes(MINILM, found(MINILM)), *_random(found(MINILM)), *_memory(found(MINILM))]
        for case in IMAGES:
            shown += _sizes(case, found(case))
        shown += _decoding({c.name: found(c) for c in DECODERS if found(c)})
        parts += [f"## {threads_text(threads)}", *shown]
    return [*parts, *_versions(measured), *not_measured(measured)]


def not_measured(measured: Mapping[str, Mapping[str, Found]]) -> list[str]:
    """What a whole run has, and these results do not."""
    wanted = {
        "lengths": (MINILM, "sample"),
        "calls in random order": (MINILM, "random"),
        "memory": (MINILM, "memory"),
        **{c.name: (c, "sample") for c in IMAGES},
        **{c.name: (c, "tokens") for c in DECODERS},
    }
    missing = [
        f"{', '.join(names)} ({threads_text(threads).lower()})"
        for threads in (1, 2)
        if (
            names := [
                name
                for name, (case, part) in wanted.items()
                if not measured.get(case.name, {}).get(str(threads), {}).get(part)
            ]
        )
    ]
    return [f"Not measured: {'; '.join(missing)}."] if missing else []


def summary(measured: Mapping[str, Mapping[str, Found]]) -> list[str]:
    """What lengths show, in a sentence for each number of threads."""
    told: list[str] = []
    for threads, found in sorted(measured.get(MINILM.name, {}).items()):
        compared = {e: r for e, r in compare(rows_of(MINILM, found)).items() if r}
        texts = [
            f"takes {mean_of(r):.2f} times as long as static programs (at worst {worst_of(_values(r), True)})"
            if e == STATIC
            else f"is {mean_of(r):.2f} times as quick as {_PEERS[e]} (at worst {worst_of(_values(r), False)})"
            for e, r in compared.items()
        ]
        if texts:
            which = threads_text(int(threads)).lower()
            told.append(f"With {which}, one program for all lengths of a MiniLM {', '.join(texts)}.")
    return told


def _name(engine: str) -> str:
    return _NAMES.get(engine, engine)


# ----------------------------------------------------------------------------------------------------------- sizes


def rows_of(case: OpenCase, found: Found) -> dict[str, dict[str, Cell]]:
    """By size and engine."""
    rows: dict[str, dict[str, Cell]] = {}
    for engine, measured in found.get("sample", {}).items():
        for m in cast("list[dict[str, Any]]", measured if isinstance(measured, list) else []):
            cell = Cell(m["median_ms"], tuple(m["round_medians_ms"]), m["rel_err"])
            rows.setdefault(case.text(m["sizes"]), {})[engine] = cell
    return rows


def _sizes(case: OpenCase, found: Found) -> list[str]:
    rows = rows_of(case, found)
    if not found.get("load"):
        return []
    told = _loading(case, found)
    if not rows:
        return [f"### {case.name}", told]
    engines = [e for e in _ENGINES if any(e in row for row in rows.values())]
    compared = compare(rows)
    lines = [
        [
            size,
            *(f"{row[e].median:.3f}" if e in row else "" for e in engines),
            *(ratio_text(by_size.get(size)) for by_size in compared.values()),
        ]
        for size, row in rows.items()
    ]
    head = (_dims_text(case), *map(_name, engines), *map(_ratio_name, compared))
    means = [
        f"{_ratio_name(e)} {mean_of(by_size):.2f}, worst {worst_of(_values(by_size), e == STATIC)}"
        for e, by_size in compared.items()
        if by_size
    ]
    errors = [row[OURS].error for row in rows.values() if OURS in row]
    wrong = f" The largest error of ours is {max(errors):.1e} of the largest output." if errors else ""
    text = f"Geometric means over these sizes: {'; '.join(means)}.{wrong}" if means else ""
    return [f"### {case.name}", told, table(head, lines), *([text] if text else [])]


def compare(rows: Mapping[str, Mapping[str, Cell]]) -> dict[str, dict[str, Ratio]]:
    """By engine and size: its time over ours, but ours over that of static programs."""
    found: dict[str, dict[str, Ratio]] = {}
    if not any(OURS in row for row in rows.values()):
        return {}
    for e in (e for e in _ENGINES if e != OURS and any(e in row for row in rows.values())):
        ratios = {size: against(row, e) for size, row in rows.items() if OURS in row}
        there = {size: r for size, r in ratios.items() if r is not None and r.value > 0}
        if e == STATIC:
            there = {size: Ratio(1 / r.value, 1 / r.high, 1 / r.low) for size, r in there.items()}
        found[e] = there
    return found


def _ratio_name(engine: str) -> str:
    return f"open / {STATIC}" if engine == STATIC else f"{engine} / open"


def _values(by_size: Mapping[str, Ratio]) -> dict[str, float]:
    return {size: r.value for size, r in by_size.items()}


def mean_of(by_size: Mapping[str, Ratio]) -> float:
    return geometric_mean(r.value for r in by_size.values())


def worst_of(ratios: Mapping[str, float], is_largest: bool) -> str:
    """The value at which ours is furthest behind, and where."""
    at = (max if is_largest else min)(ratios, key=lambda size: ratios[size])
    return f"{ratios[at]:.2f}, at {at}"


def _dims_text(case: OpenCase) -> str:
    return " x ".join(n for n in case.dims if len({s[n] for s in case.sample}) > 1)


def _loading(case: OpenCase, found: Found) -> str:
    """What was loaded in how many seconds, and what did not work."""
    ranges = ", ".join(
        f"{n} {' to '.join(map(str, r[:2]))}{f' by {r[2]}' if len(r) > 2 else ''}"
        for n, r in case.dims.items()
    )
    told = [f"Ranges: {ranges}."]
    loads = {e: v for e, v in found["load"].items() if "seconds" in v and e != STATIC}
    seconds = [f"{_name(e)} {v['seconds']:.1f} s" for e, v in loads.items()]
    told += [f"Loading, which compiles: {', '.join(seconds)}."] if seconds else []
    fallback = found["load"].get(OURS, {}).get("fallback")
    if fallback:
        told.append(f"**There is no program for all sizes**, and ours was not measured: {fallback}.")
    for part, by_engine in found.items():
        for engine, value in by_engine.items() if part != "limit" else ():
            if isinstance(value, dict) and "error" in value:
                told.append(f"{_name(engine)} failed ({part}): {value['error']}.")
    return " ".join(told)


# ----------------------------------------------------------------------------------------------------- random order


def _random(found: Found) -> list[str]:
    runs = {e: v for e, v in found.get("random", {}).items() if "ms" in v}
    if OURS not in runs:
        return []
    medians = {e: medians_of(v["values"], v["ms"]) for e, v in runs.items()}
    lines: list[list[str]] = []
    for e, v in runs.items():
        ratios = {str(n): medians[e][n] / t for n, t in medians[OURS].items()}
        lines.append(
            [
                _name(e),
                f"{found['load'][e]['seconds']:.1f}",
                str(v["compiled"] - found["load"][e]["compiled"]) if e == OURS else "",
                f"{sum(v['ms']) / 1e3:.2f}",
                "" if e == OURS else f"{geometric_mean(ratios.values()):.2f}",
                "" if e == OURS else f"{worst_of(ratios, False)}",
            ]
        )
    values = runs[OURS]["values"]
    text = f"{len(values)} calls in random order, of {len(set(values))} sizes from {min(values)} to {max(values)}:"
    head = ("engine", "load, s", "compiled after", "all calls, s", "its time / open", "worst")
    return [text, table(head, lines)]


def medians_of(values: Sequence[int], times: Sequence[float]) -> dict[int, float]:
    """The median time of each size."""
    by_size: dict[int, list[float]] = {}
    for n, t in zip(values, times, strict=True):
        by_size.setdefault(n, []).append(t)
    return {n: float(np.median(t)) for n, t in sorted(by_size.items())}


def _memory(found: Found) -> list[str]:
    runs: dict[str, list[tuple[int, float]]] = {
        e: v["resident_mb"] for e, v in found.get("memory", {}).items() if "resident_mb" in v
    }
    if not runs:
        return []
    lines = [
        [_name(e), *(f"{at[calls]:.0f}" for calls in _shown_calls(at)), f"{growth(at):+.1f}"]
        for e, at in ((e, dict(r)) for e, r in runs.items())
    ]
    calls = _shown_calls(dict(next(iter(runs.values()))))
    head = ("resident, MiB", *(f"after {n} calls" for n in calls), f"growth since {calls[0]}")
    return [table(head, lines)]


def _shown_calls(at: Mapping[int, float]) -> list[int]:
    """The first, one in the middle, the last."""
    every = sorted(at)
    return list(dict.fromkeys((every[0], every[len(every) // 2], every[-1])))


def growth(at: Mapping[int, float]) -> float:
    every = sorted(at)
    return at[every[-1]] - at[every[0]]


# --------------------------------------------------------------------------------------------------------- decoding


def _decoding(found: Mapping[str, Found]) -> list[str]:
    lines: list[list[str]] = []
    told: list[str] = []
    for name, parts in found.items():
        limit: dict[str, Any] = parts.get("limit", {})
        case = next(c for c in DECODERS if c.name == name)
        told.append(f"{name}: {_loading(case, parts)}")
        for text, own in parts.get("tokens", {}).items():
            if "times" not in own:
                continue
            engine = next((n for n, called in KEEPING.items() if called == text), text)
            prompt: dict[str, Any] = parts.get("prompt", {}).get(engine, {})
            median = 1e3 * float(np.median(own["times"][2:]))
            lines.append(
                [
                    f"{name}, {_name(text)}",
                    f"{prompt['ms']:.1f}" if "ms" in prompt else "",
                    f"{1e3 / median:.1f}",
                    f"{limit['ms'] / median:.2f}" if limit else "",
                    str(own["compiled"] - own["compiled_at_2"]) if text in (OURS, KEPT) else "",
                    f"{own['resident_at_2']:.0f}",
                    f"{own['resident_mb']:.0f}",
                    f"{own['rel_err']:.0e}",
                ]
            )
        if limit:
            rate = limit["bytes"] / limit["ms"] / 1e6
            told.append(
                f"Its matrices are {limit['bytes'] / 1e6:.0f} MB, read at {rate:.1f} GB/s: {1e3 / limit['ms']:.1f} "
                "tokens/s is the limit."
            )
    if not told:
        return []
    head = (
        "decoding",
        "prompt of 128, ms",
        "tokens/s",
        "of limit",
        "compiled after token 2",
        "MiB at token 2",
        "MiB at the end",
        "error",
    )
    return ["### Decoding", " ".join(told), *([table(head, lines)] if lines else [])]


def _versions(measured: Mapping[str, Mapping[str, Found]]) -> list[str]:
    found = {
        e: v["version"]
        for by_threads in measured.values()
        for parts in by_threads.values()
        for e, v in parts.get("load", {}).items()
        if "version" in v and e != STATIC
    }
    return [f"Engines: {', '.join(f'{e} {v}' for e, v in sorted(found.items()))}."] if found else []
