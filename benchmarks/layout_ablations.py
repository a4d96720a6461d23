"""What each part of choosing layouts is worth, on whole networks: docs/results/layout-ablations.md.

    python -m benchmarks.layout_ablations resnet18.onnx mobilenetv2.onnx --threads 1

The ablations of the paper that joint tuning follows: loops alone, conversions eliminated alone, and the layout of one
operator forced on all others.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from benchmarks.results import table, write
from benchmarks.suite_results import geometric_mean
from tilewright.cli.output import note
from tilewright.driver.decisions import Decision, Group
from tilewright.driver.passes import ProgramState, layout_decisions
from tilewright.driver.trace import ProgramTrace
from tilewright.frontend.onnx.load import load_graph
from tilewright.ir.expr import Buffer
from tilewright.ops.accuracy import Accuracy
from tilewright.search.layout_terms import layout_terms
from tilewright.search.layouts import find_images
from tilewright.support.artifact import Artifact
from tilewright.support.errors import TilewrightError
from tilewright.support.turns import speedup
from tilewright.target.target import native
from tilewright.tir.stmt import blocks
from tilewright.tuning.insides import Insides
from tilewright.tuning.program_source import ProgramSource

OWN = "as chosen"
LOOPS = "loops alone"
ELIMINATED = "conversions eliminated alone"
FORWARD, BACKWARD = "forced forward", "forced backward"
WAYS = (LOOPS, ELIMINATED, FORWARD, BACKWARD)
_STATED, _LAST = "as stated", "channels last"
_TURN, _SECONDS = 0.01, 20.0  # of one turn, and of all turns of a network
_TOLERANCE = 1e-3  # of the largest output: orders of sums differ

SHOWS = """How many times longer networks take if layouts are not chosen for all of a network at once."""

METHOD = """Programs are compiled without tuning: loops are chosen by estimates, for each way by itself. They take
turns, run by run, in one process with {threads} thread(s); ratios are of times over the program as it is chosen, with
a 95 % interval. *{loops}*: all images as the model states them, and no convolutions joined, which need channels in
vectors. *{eliminated}*: layouts are chosen, and producers write what consumers read, but nothing is computed together
with what follows it: in the paper a layout that is not propagated to elementwise operators keeps them from being fused.
*{forward}* and *{backward}*: the layout that suits the first (the last) operator best by itself, for all images."""


def ablated(source: ProgramSource) -> Iterator[tuple[str, str, ProgramTrace]]:
    """The ways: their names, what they force, and the decisions that they take."""
    own = source.until("layouts", ProgramTrace()).trace
    groups, algorithms, joins = (own.sections[n] for n in ("groups", "algorithms", "joins"))
    base = ProgramTrace({"groups": groups, "algorithms": algorithms})
    yield LOOPS, _STATED, base.with_section("joins", ()).with_section("layouts", ())
    yield ELIMINATED, "", ProgramTrace({"groups": tuple(_single(groups)), "joins": ()})
    joined = base.with_section("joins", joins)
    state = source.until("joins", joined)
    for way, at in ((FORWARD, 0), (BACKWARD, -1)):
        is_last = _preferred(state, source, at)
        images = find_images(state.current) if is_last else {}
        forced = joined if is_last else base.with_section("joins", ())
        yield way, _LAST if is_last else _STATED, forced.with_section("layouts", layout_decisions(images, {}))


def _single(groups: tuple[Decision, ...]) -> Iterator[Group]:
    """Every node by itself."""
    for group in groups:
        assert isinstance(group, Group)
        yield from (Group(v, (v,)) for v in group.values)


def _preferred(state: ProgramState, source: ProgramSource, at: int) -> bool:
    """Has the first (or the last) Func whose time depends on it its channels last, if nothing else counts?"""
    module = state.current
    terms = layout_terms(module, find_images(module), source.target)
    found: list[tuple[float, float]] = []
    for func in module.funcs:
        own: set[Buffer] = {*func.params, *func.locals}
        here = [t for t in terms if own.issuperset(t.buffers)]
        if here and any(b.is_reduction for b in blocks(func.body)):
            found.append((sum(t.seconds[0][0] for t in here), sum(t.seconds[1][1] for t in here)))
    stated, last = found[at]
    return last < stated


def measured(model: Path, threads: int) -> dict[str, str]:
    """A row of the table."""
    with ProgramSource(load_graph(str(model), None), native(), Accuracy.of(None)) as source:
        programs: dict[str, Artifact] = {OWN: source.compile(ProgramTrace(), {})[1].artifact}
        forced: dict[str, str] = {}
        for way, layout, trace in ablated(source):
            try:
                programs[way], forced[way] = source.compile(trace, {})[1].artifact, layout
            except TilewrightError as e:
                note(f"{model.stem}, {way}: {e}")
    with Insides(threads) as inside:
        pilot = inside.compare([*programs.values()], rounds=3, seconds=_TURN, tolerance=_TOLERANCE)
        if isinstance(pilot, str):
            raise click.ClickException(f"{model.name}: {pilot}")
        a_round = sum(max(_TURN, s.median) for s in pilot)
        rounds = round(min(max(_SECONDS / a_round, 15), 200))
        found = inside.compare([*programs.values()], rounds=rounds, seconds=_TURN, tolerance=_TOLERANCE)
    assert not isinstance(found, str), found
    times = dict(zip(programs, found, strict=True))
    out = {"network": model.stem, OWN: f"{times[OWN].median * 1e3:.2f}"}
    for way in WAYS:
        if way not in times:
            out[way] = "-"
            continue
        ratio = speedup(times[OWN], times[way])
        suffix = f" ({forced[way]})" if forced[way] else ""
        out[way] = f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]{suffix}"
    return out


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--threads", default=1, show_default=True)
@click.option("--save/--no-save", default=True, help="Write docs/results/layout-ablations.md.")
def main(models: tuple[Path, ...], threads: int, save: bool) -> None:
    """Compile MODELS (.onnx files) in all ways, and time them in turns."""
    rows: list[dict[str, str]] = []
    for model in models:
        note(model.stem)
        rows.append(measured(model, threads))
        note(str(rows[-1]))
    means = {way: geometric_mean([float(r[way].split()[0]) for r in rows if r[way] != "-"]) for way in WAYS}
    columns = ["network", f"{OWN}, ms", *WAYS]
    body = [[r["network"], r[OWN], *(r[w] for w in WAYS)] for r in rows]
    body.append(["geometric mean", "", *(f"{means[w]:.2f}" for w in WAYS)])
    text = table(columns, body)
    note(text)
    if save:
        method = METHOD.format(
            threads=threads, loops=LOOPS, eliminated=ELIMINATED, forward=FORWARD, backward=BACKWARD
        )
        write("layout-ablations", "Ablations of layouts", SHOWS, method, text)


if __name__ == "__main__":
    main()
