"""`tilewright report`: a page about a model, its program and a run of it.

The model is compiled, profiled and described (`cli/report_facts.py`), which makes the data of a report
(`report/data.py`); the page is drawn from these data alone, so that what was kept of an earlier run can be shown again.
"""

import datetime
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from tilewright.cli.catalogue import OURS
from tilewright.cli.defaults import TOLERANCE
from tilewright.cli.dims import DimOption, ranges_of, sizes_of
from tilewright.cli.feeds import make_program_feeds, read_sample
from tilewright.cli.machine import check_cores, machine
from tilewright.cli.measure import measure_at
from tilewright.cli.options import PROGRAM
from tilewright.cli.output import milliseconds, note, print_json, progress_bar
from tilewright.cli.part_times import part_times
from tilewright.cli.profile import Profile, profile
from tilewright.cli.report_facts import ReportFacts, facts_of
from tilewright.cli.report_tuning import tuning_curves
from tilewright.cli.status import ExitStatus
from tilewright.cli.summary import summary_of
from tilewright.compiler import compile_graph
from tilewright.graph.graph import Graph
from tilewright.ops.accuracy import Accuracy
from tilewright.placement.native_region import native_or_plugin
from tilewright.placement.options import PluginOptions
from tilewright.report.chrome_trace import chrome_trace as chrome_events
from tilewright.report.comparison import compare_runs
from tilewright.report.data import (
    CallFacts,
    EngineFacts,
    KernelFacts,
    MachineFacts,
    ModelFacts,
    ReportData,
    RunFacts,
    TensorFacts,
    TuningCurve,
    load_report,
)
from tilewright.report.page import render_page
from tilewright.runtime.cache import default_cache
from tilewright.runtime.file import load_artifact as read_program
from tilewright.runtime.machine import default_threads
from tilewright.search.database import default_database
from tilewright.stages import Stages, stages
from tilewright.support.artifact import Artifact
from tilewright.support.errors import UserError
from tilewright.support.progress import OnProgress
from tilewright.target.names import resolve_target
from tilewright.target.target import native

SAVED = ".json"  # what the name of a report's data ends in
_ROUNDS = 5  # of turns of engines


@dataclass(frozen=True, slots=True)
class _Run:
    """How the model is compiled and run."""

    options: Mapping[str, Any]
    plugin_options: PluginOptions
    files: Mapping[str, str]
    seed: int
    seconds: float
    threads: int
    sizes: Mapping[str, int]


def report(
    model: Path,
    output: Path | None,
    data: Path | None,
    chrome_trace: Path | None,
    compare: Path | None,
    against: tuple[str, ...],
    seconds: float,
    threads: int | None,
    files: dict[str, str],
    seed: int,
    shapes: dict[str, tuple[int, ...]],
    dims: dict[str, DimOption],
    target: str,
    accuracy: Accuracy | None,
    check_indices: bool | None,
    plugins: tuple[str, ...],
    policy: str,
    strict: bool,
    calibration: tuple[str, ...],
    as_json: bool,
) -> int:
    before = None if compare is None else load_report(compare)
    if model.suffix == SAVED:
        made = load_report(model)
    else:
        options = {
            "shapes": shapes,
            "target": target,
            "accuracy": accuracy,
            "check_indices": check_indices,
            "dims": ranges_of(dims),
        }
        (sizes,) = sizes_of(dims)
        threads = threads or default_threads()
        check_cores(threads)
        samples = map(read_sample, calibration)
        plugin_options = PluginOptions.of(plugins, policy, strict, threads, samples)
        run = _Run(options, plugin_options, files, seed, seconds, threads, sizes)
        with progress_bar() as progress:
            made = collect(model, run, progress)
            if against:
                made = replace(made, engines=_engines(model, run, dims, against, made, progress))
    if output is None and not (as_json or data or chrome_trace):
        output = Path(f"{model.stem}.html")
    if chrome_trace is not None:
        if not made.timeline.spans:
            note("There is no record of threads: the trace has no events.")
        _write(chrome_trace, json.dumps(chrome_events(made)))
    if data is not None:
        _write(data, json.dumps(made.as_json(), ensure_ascii=False))
    if output is not None:
        _write(output, render_page(made, before))
    if as_json:
        compared = None if before is None else asdict(compare_runs(before, made))
        print_json({**made.as_json(), "comparison": compared} if compared else made.as_json())
    else:
        _tell(made, before, output)
    ours = next((e.error for e in made.engines if e.name == OURS.name), None)
    if ours is not None and ours > TOLERANCE:
        note(f"our results differ from another engine's: relative error {ours:.3g}, allowed {TOLERANCE:.3g}")
        return ExitStatus.MISMATCH
    return ExitStatus.OK


def _engines(
    model: Path,
    run: _Run,
    dims: Mapping[str, DimOption],
    against: tuple[str, ...],
    made: ReportData,
    progress: OnProgress | None,
) -> tuple[EngineFacts, ...]:
    """Ours and others in turns, ours first; what cannot run is named."""
    (found,) = measure_at(
        model,
        [dict(made.run.sizes)],
        dims=ranges_of(dims),
        shapes=run.options["shapes"],
        files=run.files,
        seed=run.seed,
        threads=run.threads,
        target=run.options["target"],
        accuracy=run.options["accuracy"],
        plugin_options=run.plugin_options,
        against=against,
        rounds=_ROUNDS,
        seconds=max(0.05, run.seconds / 2),
        progress=progress,
    )
    ratios = found.speedup
    timed: list[EngineFacts] = []
    for name, e in found.engines.items():
        ratio, interval = ratios.get(name), e.series.interval
        timed.append(
            EngineFacts(
                *(name, e.version, e.series.median, interval.low, interval.high, e.error),
                None if ratio is None else (ratio.value, ratio.low, ratio.high),
            )
        )
    absent = [EngineFacts(name, "", 0.0, 0.0, 0.0, None, None, str(a)) for name, a in found.absent.items()]
    return (*timed, *absent)


def collect(model: Path, run: _Run, progress: OnProgress | None = None) -> ReportData:
    """Compile the model (a compiled program is taken as it is), run it, and say what there is to say."""
    tell: OnProgress = (lambda what, done, total: None) if progress is None else progress
    is_compiled = model.suffix == PROGRAM
    tell("compile", 0, 1)
    found = (
        None
        if is_compiled
        else stages(model, **run.options, sizes=run.sizes, plugin_options=run.plugin_options)
    )
    artifact = read_program(model) if found is None else found.artifact
    if found is None:
        artifact = artifact.at({**{d.name: d.most for d in artifact.manifest.dims}, **run.sizes})
    feeds, sizes = make_program_feeds(artifact.manifest, run.files, run.seed, run.sizes)
    is_whole = all(sizes[d.name] == d.most for d in artifact.manifest.dims)
    tell("compile", 1, 1)
    tell("run", 0, 1)
    externals = native_or_plugin(artifact, run.threads, _compiled_here, strict=run.plugin_options.strict)
    timed = profile(
        *(artifact, feeds),
        target=native(),
        threads=run.threads,
        seconds=run.seconds,
        sizes=sizes,
        externals=externals,
    )
    tell("run", 1, 1)
    lived = part_times(
        artifact, feeds, target=native(), threads=run.threads, sizes=sizes, externals=externals
    )
    if found is None:
        facts = _program_facts(timed)
    else:
        facts = facts_of(found, timed, sizes, timed.external, is_whole=is_whole, progress=progress)
        if not is_whole:
            facts.missing.append("Operations and bytes are known at the largest sizes only.")
        if found.hosts:
            facts.missing.append(
                f"Only what comes before {found.hosts[0].step.node.op_type} on the host was timed:"
                f" {len(found.hosts)} nodes of the host and {found.later} nodes after them were not, as their types"
                " depend on data."
            )
    return ReportData(
        _model_facts(model, artifact, found),
        MachineFacts(machine().summary(), timed.limits.flop_rate, timed.limits.byte_rate),
        _run_facts(timed, facts, sizes),
        *(facts.kernels, facts.boxes, facts.nodes, facts.calls, facts.arena),
        lived,
        () if found is None else tuple(_curves(found, facts, run.threads)),
        missing=tuple(facts.missing),
        texts=facts.texts,
    )


def _curves(found: Stages, facts: ReportFacts, threads: int) -> list[TuningCurve]:
    database = default_database()
    try:
        return tuning_curves(found, facts.boxes, threads, database)
    finally:
        database.close()


def _compiled_here(graph: Graph, accuracy: Accuracy) -> Artifact:
    return compile_graph(resolve_target("native"), graph, accuracy, default_cache()).artifact


def _program_facts(timed: Profile) -> ReportFacts:
    """Of a compiled program times are known, and nothing of what it computes."""
    names = list(dict.fromkeys(c.kernel for c in timed.calls))
    kernels = [
        KernelFacts(
            name,
            *("", "", (), ""),
            next(k.parts for k in timed.kernels if k.name == name),
            sum(c.count for c in timed.calls if c.kernel == name),
            sum(c.seconds for c in timed.calls if c.kernel == name),
            *(None, None, "", (), ()),
        )
        for name in names
        if any(k.name == name for k in timed.kernels)
    ]
    at = {k.name: n for n, k in enumerate(kernels)}
    calls = [CallFacts(at[c.kernel], None, c.count, c.seconds) for c in timed.calls if c.kernel in at]
    missing = (
        "A compiled program holds machine code only: of its graph, nodes, layouts, arithmetic and memory plan nothing"
        " is known. `tilewright report` of the .onnx file shows them."
    )
    return ReportFacts(tuple(kernels), calls=tuple(calls), missing=[missing])


def _model_facts(model: Path, artifact: Artifact, found: Stages | None) -> ModelFacts:
    summary = summary_of(artifact, {})
    sides = [
        tuple(TensorFacts(s["name"], s["dtype"], "x".join(s["sizes"]) or "scalar") for s in summary[side])
        for side in ("inputs", "outputs")
    ]
    operators: Counter[str] = Counter()
    if found is not None and found.imported is not None:
        graph = found.imported
        for n in graph.nodes:
            origin = graph.origins.get(n)
            operators[type(n.op).__name__ if origin is None else origin.op_type] += 1
        operators.update(h.step.node.op_type for h in found.hosts)
    return ModelFacts(
        model.name,
        model.suffix.removeprefix(".").lower() or "onnx",
        sides[0],
        sides[1],
        tuple(operators.most_common()),
        artifact.weights_bytes,
        artifact.arena_bytes,
        artifact.code_bytes,
        str(summary["accuracy"]),
        tuple(summary["features"]),
        0 if found is None else found.tuned,
        artifact.manifest.compiler_version,
    )


def _run_facts(timed: Profile, facts: ReportFacts, sizes: Mapping[str, int]) -> RunFacts:
    inside = sum(c.seconds for c in timed.calls) + sum(timed.external.values())
    return RunFacts(
        datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        *(timed.threads, timed.cores, timed.runs, timed.total, timed.best),
        *(inside, facts.attributed, timed.on_core, timed.is_disturbed),
        tuple(sizes.items()),
    )


# ------------------------------------------------------------------------------------------------------------- output


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise UserError(f"cannot write {path.name}: {e.strerror or e}", where=str(path)) from e


def _tell(made: ReportData, before: ReportData | None, output: Path | None) -> None:
    run = made.run
    click.echo(
        f"{made.model.name}: {milliseconds(run.seconds)} a run with {run.threads} thread(s),"
        f" {milliseconds(run.kernel_seconds)} of it in {len(made.kernels)} kernels"
    )
    for k in sorted(made.kernels, key=lambda k: -k.seconds)[:5]:
        click.echo(f"  {made.share(k.seconds):5.1%}  {k.name}")
    if made.nodes:
        click.echo(f"{made.attributed:.1%} of the time in kernels belongs to nodes of the model")
    if before is not None:
        compared = compare_runs(before, made)
        click.echo(
            f"{compared.ratio:.2f} times as fast as {compared.title} ({milliseconds(compared.before_seconds)})"
        )
    for e in made.engines:
        if e.speedup is not None:
            ratio, low, high = e.speedup
            click.echo(f"{ratio:.2f} times as fast as {e.name} {e.version} [{low:.2f}, {high:.2f}]")
        elif e.note:
            note(f"{e.name}: {e.note}")
    if run.is_disturbed:
        note("Other programs took the cores meanwhile: times are too long.")
    if output is not None:
        click.echo(f"page: {output}")
