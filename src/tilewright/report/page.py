"""The page of a report: one HTML file that needs nothing else.

Drawings and the first screen are text of the page; tables and details are filled in by its script from a compressed
copy of the data. A page is at most `MOST_BYTES`: what would be too much loses texts, those of the quickest kernels
first, and says so. Names come from models and are hostile: the template escapes them, and the script only ever sets
text.
"""

import base64
import json
import math
import zlib
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tilewright.report.charts import (
    busy_shares,
    memory_svg,
    peak_of,
    roofline_svg,
    slowest,
    threads_svg,
    tuning_svg,
)
from tilewright.report.comparison import compare_runs
from tilewright.report.data import KernelFacts, ReportData
from tilewright.report.graph_drawing import MOST_BOXES, boxes_svg, categories, colour
from tilewright.report.units import count_text, digits, seconds_text, share_text, size_text

MOST_BYTES = 2_000_000
_MOST_BARS, _MOST_CURVES = 11, 12
_TEXTS = ("assembly", "scheduled", "lowered", "steps")


def render_page(report: ReportData, before: ReportData | None = None) -> str:
    """With the difference to a run `before`, if there is one."""
    page = _rendered(report, before)
    too_much = len(page.encode()) - MOST_BYTES
    if too_much <= 0:
        return page
    allowed = len(packed(report)) - too_much - 1000  # for the note
    kept, smaller = len(report.kernels), report
    while kept and len(packed(smaller)) > allowed:
        kept = kept * 2 // 3
        smaller = _with_texts_of(report, kept)
    return _rendered(smaller, before)


def _rendered(report: ReportData, before: ReportData | None) -> str:
    environment = Environment(
        loader=PackageLoader("tilewright.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "seconds": seconds_text,
        "size": size_text,
        "share": share_text,
        "count": count_text,
        "digits": digits,
    }
    environment.filters.update(filters)
    template = environment.get_template("page.html.j2")
    loader = environment.loader
    assert loader is not None
    style, script = (loader.get_source(environment, name)[0] for name in ("page.css", "page.js"))
    kinds = categories(report)
    return template.render(
        r=report,
        comparison=None if before is None else compare_runs(before, report),
        style=style,
        script=script,
        data=packed(report),
        graph=boxes_svg(report) if report.boxes else "",
        most_boxes=MOST_BOXES,
        kinds={kind: [(v, colour(values, v)) for v in values] for kind, values in kinds.items()},
        roofline=roofline_svg(report),
        slowest=slowest(report),
        memory=memory_svg(report),
        memory_peak=peak_of(report.arena),
        threads=threads_svg(report),
        busy=busy_shares(report),
        curves=[(c, tuning_svg(c)) for c in report.tuning[:_MOST_CURVES]],
        slowest_engine=max((e.high for e in report.engines), default=0.0),
        bars=_bars(report),
        facts=_facts(report),
    )


def packed(report: ReportData) -> str:
    """What the script needs, as the base64 text of compressed JSON."""
    data: dict[str, Any] = {
        "kernels": [asdict(k) for k in report.kernels],
        "boxes": [asdict(b) for b in report.boxes],
        "nodes": [asdict(n) for n in report.nodes],
        "calls": [asdict(c) for c in report.calls],
        "texts": report.texts,
        "peak": report.machine.flop_rate,
        "memory": report.machine.byte_rate,
        "total": report.run.kernel_seconds,
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _with_texts_of(report: ReportData, count: int) -> ReportData:
    """The report with the texts of the slowest kernels only."""
    at_least = sorted((k.seconds for k in report.kernels), reverse=True)[count - 1] if count else math.inf
    texts: dict[str, int] = {}

    def numbered(k: KernelFacts) -> KernelFacts:
        own: dict[str, int | None] = {}
        for name in _TEXTS:
            at: int | None = getattr(k, name) if k.seconds >= at_least else None
            own[name] = None if at is None else texts.setdefault(report.texts[at], len(texts))
        return replace(k, **own)  # pyright: ignore[reportArgumentType]

    kernels = tuple(map(numbered, report.kernels))
    note = (
        f"To keep the page below {MOST_BYTES // 1_000_000} MB, programs are shown of the {count} slowest kernels only;"
        " `tilewright inspect` prints all."
    )
    return replace(report, kernels=kernels, texts=tuple(texts), missing=(*report.missing, note))


def _bars(report: ReportData) -> list[tuple[str, str, float, int | None]]:
    """Where the time goes, at a glance: nodes of the model, or kernels where there is no model; name, what it is,
    seconds and the box to open.
    """
    rows: list[tuple[str, str, float, int | None]] = [
        (n.name, n.op, n.seconds, n.box) for n in report.nodes if n.seconds
    ]
    if not report.nodes:
        rows = [(k.name, f"{k.calls} calls", k.seconds, None) for k in report.kernels]
    rows.sort(key=lambda row: -row[2])
    shown, others = rows[:_MOST_BARS], rows[_MOST_BARS:]
    if others:
        what = "nodes" if report.nodes else "kernels"
        shown.append((f"{len(others):,} other {what}", "", sum(row[2] for row in others), None))
    return shown


def _facts(report: ReportData) -> Iterable[tuple[str, str]]:
    """How it was made and measured."""
    run, model = report.run, report.model
    yield "machine", report.machine.summary
    yield "threads", f"{run.threads}, pinned to cores {', '.join(map(str, run.cores))}"
    yield "measured", f"{run.date} (UTC), {run.runs:,} runs"
    if run.sizes:
        yield "open dimensions", ", ".join(f"{name} = {size:,}" for name, size in run.sizes)
    yield "accuracy", model.accuracy
    yield "instruction set", ", ".join(model.features) or "no special features"
    if model.tuned_kernels:
        yield "tuned", f"{model.tuned_kernels:,} kernels, from the database"
    yield "compiler", f"Tilewright {model.compiler_version}"
