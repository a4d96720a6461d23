"""Who runs what, measured: docs/results/plugins.md.

Networks as native code, with each plugin alone and with placement by measurement (`--networks`, unless something else
is asked for); what a plugin costs that takes nothing (`--zero-claim`); and a model of which a plugin is quicker at one
part and native code at the other (`--composed`). The exit status is 1 if a promise is broken.
"""

import datetime
import os
import shlex
import sys
import tempfile
from pathlib import Path

import click

from benchmarks.networks import NETWORKS
from benchmarks.placement_composed import measure_composed, measure_part
from benchmarks.placement_measure import Nothing, option_sets, race
from benchmarks.placement_parts import PARTS
from benchmarks.placement_results import NATIVE, Results, Row
from benchmarks.placement_tables import METHOD, SHOWS, pages
from benchmarks.results import ROOT, current_commit, write
from examples.models import mlp, resnet18
from tilewright.cli.machine import check_cores
from tilewright.cli.output import note
from tilewright.placement.options import NATIVE as NO_PLUGINS
from tilewright.placement.options import PluginOptions
from tilewright.plugins.registry import find_plugins, register_plugin
from tilewright.runtime.machine import default_threads
from tilewright.support.policy import Policy


def suite_networks() -> list[Path]:
    """Those of the suite that there are."""
    home = os.environ.get("BENCH_HOME")
    return [p for n in NETWORKS if home and (p := Path(home) / "models" / f"{n}.onnx").exists()]


def small_networks(folder: Path) -> list[Path]:
    """In which a call costs much, and in which it does not."""
    made = {"mlp": mlp(), "resnet18": resnet18()}
    for name, model in made.items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    return [folder / f"{name}.onnx" for name in made]


def nothing_option_sets(threads: int) -> dict[str, PluginOptions]:
    """No plugin, and one that takes nothing."""
    taken = {
        p.value: PluginOptions((Nothing.name,), p, threads=threads) for p in (Policy.GREEDY, Policy.MEASURED)
    }
    return {NATIVE: NO_PLUGINS, **taken}


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--plugin", "plugins", multiple=True, default=("onnxruntime",), show_default=True, help="May be repeated."
)
@click.option(
    "--networks", "has_networks", is_flag=True, help="FILES, or the networks of the suite in $BENCH_HOME."
)
@click.option(
    "--zero-claim",
    "has_nothing",
    is_flag=True,
    help="FILES, or two of the examples, with a plugin that takes nothing.",
)
@click.option("--composed", "has_composed", is_flag=True, help="A model of two parts.")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(list(PARTS)),
    help="To choose from; may be repeated [all].",
)
@click.option("--threads", type=click.IntRange(1), help="[default: cores this process may use]")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(2))
@click.option("--seconds", default=0.3, show_default=True, type=click.FloatRange(0), help="Of each turn.")
@click.option(
    "--json",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep what was measured in this file; what is there already stays, and is on the page too.",
)
@click.option("--save/--no-save", default=True, show_default=True, help="Write docs/results/plugins.md.")
def main(
    files: tuple[Path, ...],
    plugins: tuple[str, ...],
    has_networks: bool,
    has_nothing: bool,
    has_composed: bool,
    parts: tuple[str, ...],
    threads: int | None,
    rounds: int,
    seconds: float,
    path: Path | None,
    save: bool,
) -> None:
    """Measure who runs FILES (ONNX), and whether placement keeps its promises."""
    threads = threads or default_threads()
    check_cores(threads)
    results = Results.read(path) if path is not None and path.exists() else Results()
    results.threads = threads
    results.plugins |= {p.name: p.version for p in find_plugins(plugins)}

    def keep(part: str) -> None:
        results.origins[part] = _origin()
        if path is not None:
            results.write(path)

    def measured(name: str, row: Row) -> Row:
        shown = {n: f"{p.median:.2f} ms" if p.rounds else p.failure for n, p in row.programs.items()}
        note(f"{name}: {', '.join(f'{n} {text}' for n, text in shown.items())}")
        return row

    def compete(model: Path, among: dict[str, PluginOptions], compiles: int = 1) -> Row:
        row = race(model, among, threads=threads, rounds=rounds, seconds=seconds, compiles=compiles)
        return measured(model.stem, row)

    with tempfile.TemporaryDirectory() as folder:
        if has_networks or not (has_nothing or has_composed):
            for model in files or suite_networks():
                results.networks[model.stem] = compete(model, option_sets(plugins, threads))
                keep("networks")
        if has_nothing:
            register_plugin(Nothing())
            for model in files or small_networks(Path(folder)):
                results.claims_nothing[model.stem] = compete(model, nothing_option_sets(threads), compiles=2)
                keep("claims_nothing")
    if has_composed:
        for name in parts or PARTS:
            results.parts[name] = measured(name, measure_part(name, plugins, threads))
            keep("composed")
        results.composed = [c for c in results.composed if c.plugin not in plugins]
        for plugin in plugins:
            found = measure_composed(results.parts, plugin, threads=threads, rounds=rounds, seconds=seconds)
            if found is None:
                note(f"{plugin}: no two parts differ enough")
            else:
                measured(f"{found.theirs}, {found.ours}", found.row)
                results.composed.append(found)
            keep("composed")
    shown = pages(results)
    click.echo("\n\n".join(shown))
    if save:
        written = write("plugins", "Plugins, and who runs what", SHOWS, METHOD, *shown)
        click.echo(f"\nwritten to {written.relative_to(ROOT)}")
    sys.exit(1 if broken_promises(results) else 0)


def broken_promises(results: Results) -> list[str]:
    rows = [*results.networks.items(), *((c.plugin, c) for c in results.composed)]
    return [f"{name}: {text}" for name, row in rows for text in row.broken_promises]


def _origin() -> str:
    """Of a part of the page, which may have been measured by itself."""
    arguments = shlex.join(Path(a).name if a.startswith("/") else a for a in sys.argv[1:])
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    return f"`python -m benchmarks.placement {arguments}`, commit {current_commit()}, {today}."


if __name__ == "__main__":
    main()
