"""What tuning gains on whole networks: tuned and untuned programs in turns, and how soon it was found.

    python -m benchmarks.tuned_networks m.onnx … --budget 10m --db tuned.db --keep found.json
    python -m benchmarks.tuned_networks m.onnx … --db tuned.db --keep found.json --before ../before

The second adds a comparison with the untuned programs of another checkout (`git worktree add ../before COMMIT`).
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from benchmarks.results import FOLDER, ROOT, table, write
from benchmarks.suite_results import geometric_mean
from benchmarks.svg import step_chart
from tilewright.cli.output import note
from tilewright.runtime.file import load_artifact
from tilewright.support.artifact import Artifact
from tilewright.support.turns import Ratio, speedup
from tilewright.tuning.insides import Insides

_TURN = 0.01  # seconds of a turn; one run, if it takes longer
_SECONDS = 12.0  # of such turns
_TOLERANCE = 1e-3  # of the largest output: orders of sums differ in every layer

SHOWS = """What tuning a network as a whole gains over the program that is compiled without it."""

METHOD = """Each network is tuned by `tilewright tune MODEL --budget {budget} --threads N` with an empty database.
*tuned over untuned* is the ratio of whole programs in turns, run by run (95 % bootstrap interval over pairs of runs),
taken by the tuner at its end; where it is no gain beyond doubt the untuned program stays, and the ratio is of what was
not kept. *over before* is the time of the untuned program of {before} over that of the program that a load takes now
(tuned, where that was kept), in turns, run by run, in one process.
*structures* are the estimated times of a run (the sum of all sites, best schedules as measured in passing) of the
structures that were tried, over the compiler's own. The curve is the estimated time of a run over the untuned one's,
as measured in passing."""


def tuned(model: Path, budget: str, threads: int, database: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tilewright", "tune", str(model), "--json"]
        command += ["--budget", budget, "--threads", str(threads)]
        command += ["--db", str(database or f"{folder}/tuning.db")]
        env = {**os.environ, "TILEWRIGHT_CACHE": f"{folder}/cache"}
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=env)
    return json.loads(done.stdout)


def over_before(model: Path, threads: int, database: Path, before: Path) -> Ratio:
    """How many times quicker the program is that a load takes now than the untuned one of the other checkout."""
    with tempfile.TemporaryDirectory() as folder:
        programs: list[Artifact] = []
        for source, known in ((before / "src", "off"), (ROOT / "src", str(database))):
            path = f"{folder}/{len(programs)}.tw"
            env = {**os.environ, "PYTHONPATH": str(source), "TILEWRIGHT_DB": known, "TILEWRIGHT_CACHE": "off"}
            command = [sys.executable, "-m", "tilewright", "compile", str(model), "-o", path]
            count = () if known == "off" else ("--threads", str(threads))
            subprocess.run([*command, *count], stdout=subprocess.DEVNULL, check=True, env=env)
            programs.append(load_artifact(path))
        with Insides(threads) as inside:
            pilot = inside.compare(programs, rounds=3, seconds=_TURN, tolerance=_TOLERANCE)
            if isinstance(pilot, str):
                raise click.ClickException(f"{model.name}: {pilot}")
            turn = max(_TURN, pilot[0].median)
            rounds = round(min(max(_SECONDS / (2 * turn), 25), 400))
            found = inside.compare(programs, rounds=rounds, seconds=_TURN, tolerance=_TOLERANCE)
    assert not isinstance(found, str), found
    return speedup(found[1], found[0])


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
        "nothing found" if ratio is None else _text(ratio),
        "yes" if program["is_kept"] else "no",
        _text(found.get("before")),
        f"{better} of {len(found['tasks'])}",
        str(found["trials"]),
        f"{found['trials'] / found['elapsed_seconds']:.1f}",
        "; ".join(others) or "none",
    ]


def _text(ratio: dict[str, Any] | None) -> str:
    return "" if ratio is None else f"{ratio['value']:.3f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--budget", default="10m", show_default=True, help="For each network and number of threads.")
@click.option("--threads", "counts", default="1,2", show_default=True)
@click.option("--db", "database", type=click.Path(path_type=Path), help="A database that is kept.")
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="A checkout to compare with.")
@click.option("--keep", type=click.Path(path_type=Path), help="A file with results, which is added to.")
@click.option(
    "--save/--no-save", default=True, show_default=True, help="Write docs/results/tuned-networks.md."
)
def main(
    models: tuple[Path, ...],
    budget: str,
    counts: str,
    database: Path | None,
    before: Path | None,
    keep: Path | None,
    save: bool,
) -> None:
    """Tune MODELS (.onnx files)."""
    if before is not None and database is None:
        raise click.UsageError("--before needs --db: what was tuned is in it")
    found: dict[str, dict[str, Any]] = {}
    if keep is not None and keep.exists():
        found = json.loads(keep.read_text())
    for threads in map(int, counts.split(",")):
        for model in models:
            key = f"{model.stem} {threads}"
            if key not in found:
                note(f"{model.stem}, {threads} thread(s)")
                found[key] = tuned(model, budget, threads, database)
            if before is not None and database is not None and "before" not in found[key]:
                note(f"{model.stem}, {threads} thread(s), against {before.name}")
                found[key]["before"] = over_before(model, threads, database, before).as_json()
            if keep is not None:
                keep.write_text(json.dumps(found))
    columns = (
        *(
            "network",
            "threads",
            "untuned ms",
            "tuned over untuned",
            "kept",
            "over before",
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
        write(
            "tuned-networks",
            "Tuned networks",
            SHOWS,
            METHOD.format(budget=budget, before=commit_of(before)),
            text,
            means(found),
            picture,
        )


def means(found: dict[str, dict[str, Any]]) -> str:
    """Geometric means over the networks of each number of threads."""
    lines: list[str] = []
    for threads in sorted({_named(key)[1] for key in found}):
        results = [r for key, r in found.items() if _named(key)[1] == threads]
        gains = [r["program"]["speedup"]["value"] if r["program"]["is_kept"] else 1.0 for r in results]
        line = f"- {threads} thread(s), {len(gains)} networks: tuned over untuned {geometric_mean(gains):.3f}"
        before = [r["before"]["value"] for r in results if "before" in r]
        if before:
            line += f", over before {geometric_mean(before):.3f} (lowest {min(before):.3f})"
        lines.append(line)
    return "\n".join(lines)


def commit_of(checkout: Path | None) -> str:
    if checkout is None:
        return "an earlier commit"
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


def _named(key: str) -> tuple[str, int]:
    name, threads = key.rsplit(" ", 1)
    return name, int(threads)


if __name__ == "__main__":
    main()
