"""What tuning gains on whole networks: tuned and untuned programs in turns, and how soon it was found."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from benchmarks.results import FOLDER, table, write
from benchmarks.svg import step_chart
from tilewright.cli.output import note

SHOWS = """What tuning a network as a whole gains over the program that is compiled without it."""

METHOD = """Each network is tuned by `tilewright tune MODEL --budget {budget} --threads N` with an empty database.
*tuned over untuned* is the ratio of whole programs in turns (25 rounds, 95 % bootstrap interval over rounds), taken by
the tuner at its end; where it is no gain beyond doubt the untuned program stays, and the ratio is of what was not kept.
*structures* are the estimated times of a run (the sum of all sites, best schedules as measured in passing) of the
structures that were tried, over the compiler's own. The curve is the estimated time of a run over the untuned one's,
as measured in passing."""


def tuned(model: Path, budget: str, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tilewright", "tune", str(model), "--json"]
        command += ["--budget", budget, "--threads", str(threads), "--db", f"{folder}/tuning.db"]
        env = {**os.environ, "TILEWRIGHT_CACHE": f"{folder}/cache"}
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=env)
    return json.loads(done.stdout)


def row(name: str, threads: int, found: dict[str, Any]) -> list[str]:
    program = found["program"]
    ratio = program["speedup"]
    seconds = {s["why"]: s["seconds"] for s in program["structures"]}
    own = seconds.get("as compiled", 0.0)
    others = [f"{why} {own / s:.2f}" for why, s in seconds.items() if why != "as compiled" and s]
    better = sum(t["choice"] is not None for t in found["tasks"])
    return [
        name,
        str(threads),
        f"{program['untuned_seconds'] * 1e3:.3f}",
        "nothing found"
        if ratio is None
        else f"{ratio['value']:.3f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        "yes" if program["is_kept"] else "no",
        f"{better} of {len(found['tasks'])}",
        str(found["trials"]),
        f"{found['trials'] / found['elapsed_seconds']:.1f}",
        "; ".join(others) or "none",
    ]


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--budget", default="10m", show_default=True, help="For each network and number of threads.")
@click.option("--threads", "counts", default="1,2", show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), help="A file with results, which is added to.")
@click.option(
    "--save/--no-save", default=True, show_default=True, help="Write docs/results/tuned-networks.md."
)
def main(models: tuple[Path, ...], budget: str, counts: str, keep: Path | None, save: bool) -> None:
    """Tune MODELS (.onnx files)."""
    found: dict[str, dict[str, Any]] = {}
    if keep is not None and keep.exists():
        found = json.loads(keep.read_text())
    for threads in map(int, counts.split(",")):
        for model in models:
            key = f"{model.stem} {threads}"
            if key not in found:
                note(f"{model.stem}, {threads} thread(s)")
                found[key] = tuned(model, budget, threads)
                if keep is not None:
                    keep.write_text(json.dumps(found))
    columns = (
        *(
            "network",
            "threads",
            "untuned ms",
            "tuned over untuned",
            "kept",
            "kernels better",
            "trials",
            "a second",
        ),
        "structures: own over",
    )
    rows = [row(*_named(key), result) for key, result in found.items()]
    text = table(columns, rows)
    click.echo(text)
    if save:
        curves = {
            key: [(at, s / result["history"][0][1]) for at, s in result["history"]]
            for key, result in found.items()
            if result["history"]
        }
        end = max(result["elapsed_seconds"] for result in found.values())
        chart = step_chart("Tuning networks", "seconds", "estimated time of a run, of the first", curves, end)
        (FOLDER / "tuned-networks.svg").write_text(chart, encoding="utf-8")
        picture = "![Tuning networks](tuned-networks.svg)"
        write("tuned-networks", "Tuned networks", SHOWS, METHOD.format(budget=budget), text, picture)


def _named(key: str) -> tuple[str, int]:
    name, threads = key.rsplit(" ", 1)
    return name, int(threads)


if __name__ == "__main__":
    main()
