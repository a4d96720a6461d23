"""The page of results of plugins, from what `benchmarks.placement` has measured."""

from collections.abc import Callable, Mapping

from benchmarks.placement_results import (
    ALLOWED,
    CLEARLY,
    MEASURED,
    NATIVE,
    Program,
    Results,
    Row,
)
from benchmarks.results import table
from benchmarks.suite_tables import threads_text
from tilewright.support.turns import Ratio

SHOWS = """Whether placement by measurement is as quick as the best choice, and what it costs to ask."""

METHOD = f"""float32 unless it says otherwise, random weights, untuned. All programs of a model are loaded into one
process, pinned to as many cores as threads, and take turns in rounds. Times are medians in milliseconds. A ratio is
taken round by round, with its 95 % bootstrap interval. *{NATIVE}* is native code alone; a plugin's name is that plugin
with `placement="greedy"`, which runs whatever it takes; *{MEASURED}* is `placement="measured"` with all of them."""

NETWORKS_TEXT = f"""*who* has a part in the program that measurement chose. *{MEASURED} / best* is its time over that of
the quickest of the others; the promise is that it is at most {ALLOWED} of any of them, beyond what measurements differ.
*compile* is the time from an ONNX file to that program with nothing cached, in seconds."""

NOTHING_TEXT = """A plugin that is asked about every node and takes none, against no plugin. *the same code*: objects
are equal byte by byte. *compile* is in seconds, the better of two with nothing cached; with `placement="measured"`
there is nothing to choose from."""

COMPOSED_TEXT = f"""A model of two parts in sequence, found among the operators below: of all that the plugin runs
quicker than native code, what it does so by most, and the same the other way around; both are at least {CLEARLY} times
quicker. The parts have as many layers as take about the same time. Placement by measurement has to beat both native
code alone and the plugin alone: the ratios are their times over its."""

PARTS_TEXT = """Single operators in a chain of four layers, native code against plugins, from the most to the least in
favour of the first plugin. In brackets: the time of native code over the plugin's; above 1 the plugin is quicker."""


def pages(results: Results) -> list[str]:
    """The parts of the page."""
    versions = ", ".join(f"{name} {version}" for name, version in results.plugins.items())
    out = [f"{threads_text(results.threads)}. Plugins: {versions}."]
    out += _section(results, "networks", "Networks", NETWORKS_TEXT, results.networks, networks_table)
    if results.networks:
        out += _verdict(results.networks)
    title = "A plugin that takes nothing"
    out += _section(results, "claims_nothing", title, NOTHING_TEXT, results.claims_nothing, nothing_table)
    if results.composed or results.parts:
        out += ["## A model of two parts", COMPOSED_TEXT, results.origins.get("composed", "")]
        out += [composed_table(results)] if results.composed else ["No two parts differ enough."]
    if results.parts:
        out += ["### Operators", PARTS_TEXT, parts_table(results.parts, tuple(results.plugins))]
    return [*filter(None, out), *_failures(results)]


def _section(
    results: Results,
    key: str,
    title: str,
    text: str,
    rows: Mapping[str, Row],
    show: Callable[[Mapping[str, Row], tuple[str, ...]], str],
) -> list[str]:
    if not rows:
        return []
    return [f"## {title}", text, results.origins.get(key, ""), show(rows, tuple(results.plugins))]


def networks_table(rows: Mapping[str, Row], plugins: tuple[str, ...]) -> str:
    columns = [
        "network",
        NATIVE,
        *plugins,
        MEASURED,
        "who",
        "regions",
        f"{MEASURED} / best",
        "best",
        "compile",
    ]
    lines: list[list[str]] = []
    for name, row in rows.items():
        times = [_ms(row.times.get(p)) for p in (NATIVE, *plugins, MEASURED)]
        chosen = row.times.get(MEASURED)
        if chosen is None or not row.singles:
            lines.append([name, *times, "", "", "", "", ""])
            continue
        best = row.best_single
        ratio = _ratio(row.ratio(MEASURED, best))
        mark = " **!**" if row.broken_promises else ""
        who = " + ".join(chosen.runs_it)
        lines.append(
            [name, *times, who, str(chosen.regions), ratio + mark, best, f"{chosen.compile_seconds:.0f}"]
        )
    return table(columns, lines)


def nothing_table(rows: Mapping[str, Row], plugins: tuple[str, ...]) -> str:
    policies = [name for name in next(iter(rows.values())).programs if name != NATIVE]
    columns = ["network", NATIVE, *(f"{p} / {NATIVE}" for p in policies), "the same code"]
    columns += [f"compile, {p}" for p in (NATIVE, *policies)]
    lines: list[list[str]] = []
    for name, row in rows.items():
        if not {NATIVE, *policies} <= row.times.keys():
            lines.append([name, *([""] * (len(columns) - 1))])
            continue
        same = all(row.times[p].code == row.times[NATIVE].code for p in policies)
        ratios = [_ratio(row.ratio(p, NATIVE)) for p in policies]
        seconds = [f"{row.times[p].compile_seconds:.2f}" for p in (NATIVE, *policies)]
        lines.append([name, _ms(row.times[NATIVE]), *ratios, "yes" if same else "no", *seconds])
    return table(columns, lines)


def composed_table(results: Results) -> str:
    columns = ["plugin", "its part", "our part", NATIVE, "plugin alone", MEASURED, "regions"]
    columns += [f"{NATIVE} / {MEASURED}", f"plugin / {MEASURED}"]
    lines: list[list[str]] = []
    for c in results.composed:
        times = c.row.times
        shown = [_ms(times.get(p)) for p in (NATIVE, c.plugin, MEASURED)]
        ratios = [
            _ratio(c.row.ratio(p, MEASURED)) if {p, MEASURED} <= times.keys() else ""
            for p in (NATIVE, c.plugin)
        ]
        regions = str(times[MEASURED].regions) if MEASURED in times else ""
        mark = " **!**" if c.broken_promises else ""
        lines.append([c.plugin, c.theirs, c.ours, *shown, regions, ratios[0], ratios[1] + mark])
    return table(columns, lines)


def parts_table(rows: Mapping[str, Row], plugins: tuple[str, ...]) -> str:
    def gain(row: Row, plugin: str) -> Ratio | None:
        return row.ratio(NATIVE, plugin) if {NATIVE, plugin} <= row.times.keys() else None

    def order(row: Row) -> float:
        found = [g.value for p in plugins if (g := gain(row, p)) is not None]
        return -found[0] if found else 0.0

    def cell(row: Row, plugin: str) -> str:
        found = gain(row, plugin)
        if found is None or not row.times[plugin].regions:
            return "" if found is None else "takes nothing"
        return f"{_ms(row.times[plugin])} ({found.value:.2f} [{found.low:.2f}, {found.high:.2f}])"

    lines = [
        [name, _ms(row.times.get(NATIVE)), *(cell(row, p) for p in plugins)]
        for name, row in sorted(rows.items(), key=lambda item: order(item[1]))
    ]
    return table(["operator", NATIVE, *plugins], lines)


def _verdict(rows: Mapping[str, Row]) -> list[str]:
    """What became of the promise, and how far plugins are from native code."""
    broken = [f"{name}: {text}" for name, row in rows.items() for text in row.broken_promises]
    errors = [p.error for row in rows.values() for p in row.times.values()]
    largest = max(errors, default=0.0)
    out = [
        f"The largest difference between a program and native code is {largest:.1e} of the largest output."
    ]
    if broken:
        return [*out, "Slower than promised:\n\n" + "\n".join(f"- {line}" for line in broken)]
    return [*out, f"None is slower than promised ({len(rows)} networks)."]


def _failures(results: Results) -> list[str]:
    rows = {**results.networks, **results.claims_nothing, **results.parts}
    rows |= {f"{c.theirs}, {c.ours}": c.row for c in results.composed}
    lines = [
        f"- {name}, {program}: {p.failure}"
        for name, row in rows.items()
        for program, p in row.programs.items()
        if p.failure
    ]
    return ["## What failed", "\n".join(lines)] if lines else []


def _ms(program: Program | None) -> str:
    if program is None:
        return ""
    ms = program.median
    return f"{ms:.1f}" if ms >= 100 else f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
