"""How long a new user waits: from `pip install` of the built wheel in an empty environment to the first answer of a
model, in two commands.

    pip install dist/tilewright-….whl
    tilewright run model.onnx

The model is the one by which magika tells kinds of files, out of its wheel; another can be given. Each run begins with
a new environment and an empty cache of ours. What pip has downloaded before is used again, unless `--download` is
given: the first is what our part costs, the second depends on the connection.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from zipfile import ZipFile

import click

from benchmarks.results import ROOT, table, write

LIMIT_SECONDS = 60.0
MAGIKA = "magika==1.0.3"
METHOD = """{runs} runs, each in a new environment (`python -m venv`) with an empty cache of compiled programs;
wall-clock time of each command. The wheel is that of `make wheel`. pip {downloads}. The model, {model}, has
open dimensions: `tilewright run` is given {shape}. Inputs are random numbers."""


@click.command()
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1))
@click.option("--model", type=click.Path(path_type=Path, exists=True), help="Another ONNX file.")
@click.option("--shape", multiple=True, help="Of its inputs, as `tilewright run` takes them.")
@click.option("--download", is_flag=True, help="pip downloads all packages in every run.")
@click.option("--no-save", is_flag=True, help="Write no page.")
def main(runs: int, model: Path | None, shape: tuple[str, ...], download: bool, no_save: bool) -> None:
    """Measure the way to the first answer; writes docs/results/first-answer.md. Ends with 1 if it takes too long."""
    wheels = sorted((ROOT / "dist").glob("tilewright-*.whl"))
    if len(wheels) != 1:
        raise click.ClickException("there is no wheel in dist/: `make wheel` builds it")
    with tempfile.TemporaryDirectory(prefix="tilewright-first-") as name:
        folder = Path(name)
        title = model.name if model else f"of {MAGIKA.replace('==', ' ')}"
        if model is None:
            model, shape = fetch_magika(folder), ("bytes=1x2048",)
        options = tuple(word for s in shape for word in ("--shape", s))
        times = [first_answer(wheels[0], model, options, folder / str(n), download) for n in range(runs)]
    rows = [(str(n), *(f"{s:.1f}" for s in (*pair, sum(pair)))) for n, pair in enumerate(times, start=1)]
    totals = [sum(pair) for pair in times]
    rows.append(("median", *(f"{median(column):.1f}" for column in (*zip(*times, strict=True), totals))))
    text = table(("run", "pip install, s", "tilewright run, s", "together, s"), rows)
    click.echo(text)
    worst = max(totals)
    if not no_save:
        write(
            "first-answer",
            "From an empty environment to the first answer",
            f"Two commands and {median(totals):.0f} seconds (at most {worst:.0f}) lead from an empty environment to"
            " the first answer of a model that people use.",
            METHOD.format(
                runs=runs,
                model=title,
                shape=", ".join(shape) or "no shapes",
                downloads="downloads every package" if download else "has downloaded the packages before",
            ),
            f"    pip install {wheels[0].relative_to(ROOT)}\n    {' '.join(('tilewright run model.onnx', *options))}",
            text,
        )
    sys.exit(worst > LIMIT_SECONDS)


def fetch_magika(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "download", "--quiet", "--no-deps", "--dest", str(folder), MAGIKA])
    (wheel,) = folder.glob("magika-*.whl")
    with ZipFile(wheel) as archive:
        (inside,) = (n for n in archive.namelist() if n.endswith("/model.onnx"))
        (folder / "model.onnx").write_bytes(archive.read(inside))
    return folder / "model.onnx"


def first_answer(
    wheel: Path, model: Path, options: tuple[str, ...], folder: Path, download: bool
) -> tuple[float, float]:
    """The seconds of both commands."""
    run([sys.executable, "-m", "venv", str(folder)])
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("TILEWRIGHT_", "PYTHONPATH"))}
    variables = {**kept, "TILEWRIGHT_CACHE": str(folder / "cache"), "XDG_DATA_HOME": str(folder / "data")}
    fresh = ["--no-cache-dir"] if download else []
    install = [str(folder / "bin" / "pip"), "--disable-pip-version-check", "install", "--quiet", *fresh]
    return (
        run([*install, str(wheel)], variables),
        run([str(folder / "bin" / "tilewright"), "run", str(model), *options], variables),
    )


def run(command: list[str], variables: Mapping[str, str] | None = None) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
