"""How long a model takes to compile and to load, and how much memory it takes: docs/results/compile-time.md.

Each figure is of a fresh process. The models are those of the benchmark suite that take longest (a convolutional
network, a transformer, and one of many different layers), in `$BENCH_HOME/models`; or those of `examples`; or those
given. `--chains` also compiles networks of 10, 100 and 1,000 equal layers; `--before` compares with another checkout.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

import click

from benchmarks.chains import KINDS, chain
from benchmarks.probe import run_probe
from benchmarks.results import ROOT, table, write
from examples.models import mlp, resnet18, transformer_encoder
from tilewright.cli.output import progress_bar
from tilewright.runtime.machine import default_threads
from tilewright.support.errors import TilewrightError

METHOD = """Every run is a process of its own, in turns; medians of {repeats}. *compile*: `tilewright.compile` with
nothing cached, by stage, with worker processes on the other cores; *llvm* is the time that this process waits for
objects, *CPU* is user and system time, workers included, *memory* is what this process takes at its peak. *warm*:
`import tilewright`, and then `tilewright.load` and a first run of a model that was compiled before, with {threads}
thread(s); *memory* is resident at its peak, up to the end of that run, above what the imported libraries take. ONNX
Runtime's likewise, on the same file. *Of linear*: 1,000 layers over what they would take if each took what one of the
layers between 10 and 100 does. A time on the clock grows on a busy machine; so does CPU time, if less."""

LAYERS = (10, 100, 1000)
SLOW = ("resnet50", "bert_base", "yolo")
Numbers: TypeAlias = dict[str, float]

_COMPILE = """
import json, os, resource, sys, time
import tilewright.compiler
begin, clock = time.perf_counter(), os.times()
made = tilewright.compiler.compile(sys.argv[1])
wall, now = time.perf_counter() - begin, os.times()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({**made.seconds, "total": wall, "CPU": sum(now[:4]) - sum(clock[:4]), "memory, MiB": peak}))
"""

_IMPORT = """
import json, time
start = time.perf_counter()
import tilewright
tilewright.load
print(json.dumps({"import": time.perf_counter() - start}))
"""


def run(code: str, *arguments: str, source: Path = ROOT / "src", **env: str) -> Numbers:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(source), **env},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def compile_cold(model: Path, source: Path = ROOT / "src") -> Numbers:
    workers = str(default_threads() - 1)
    return run(_COMPILE, str(model), source=source, TILEWRIGHT_CACHE="off", TILEWRIGHT_WORKERS=workers)


def measure_model(model: Path, cache: Path, repeats: int, before: Path | None) -> dict[str, Numbers]:
    """Medians of compiling, of a warm start of ours, and of one of ONNX Runtime (nothing if it cannot)."""
    threads = default_threads()
    env = {**os.environ, "TILEWRIGHT_CACHE": str(cache)}
    run_probe(model, engine="tilewright", threads=threads, env=env)
    runs: dict[str, list[Numbers]] = {"compile": [], "before": [], "warm": [], "ort": []}
    for _ in range(repeats):  # in turns: the machine drifts
        runs["compile"].append(compile_cold(model))
        if before is not None:
            runs["before"].append(compile_cold(model, before / "src"))
        ours = run_probe(model, engine="tilewright", threads=threads, env=env)
        runs["warm"].append({**run(_IMPORT), **asdict(ours)})
        try:
            runs["ort"].append(asdict(run_probe(model, engine="ort", threads=threads, env=env)))
        except TilewrightError as e:
            click.echo(f"{model.stem}: {str(e).splitlines()[-1]}", err=True)
    return {
        label: {name: statistics.median(r[name] for r in found) for name in found[0]} if found else {}
        for label, found in runs.items()
    }


CHAIN = ("CPU seconds for layers", *(f"{n:,}" for n in LAYERS), "of linear")


def chain_row(kind: str, folder: Path, repeats: int) -> list[str]:
    """What each length takes, and the longest over what it would if each further layer took what those of the middle
    one do.
    """
    seconds: list[float] = []
    for layers in LAYERS:
        model = folder / f"{layers}.onnx"
        model.write_bytes(chain(kind, layers).SerializeToString())
        seconds.append(statistics.median(compile_cold(model)["CPU"] for _ in range(repeats)))
    few, some, many = LAYERS
    linear = seconds[1] + (many - some) * (seconds[1] - seconds[0]) / (some - few)
    return [kind, *(f"{s:.2f}" for s in seconds), f"{seconds[2] / linear:.2f}"]


def default_models(folder: Path) -> list[Path]:
    home = os.environ.get("BENCH_HOME")
    suite = [p for n in SLOW if home is not None and (p := Path(home) / "models" / f"{n}.onnx").exists()]
    if suite:
        return suite
    paths: list[Path] = []
    for name, model in (("mlp", mlp()), ("resnet18", resnet18()), ("transformer", transformer_encoder())):
        paths.append(folder / f"{name}.onnx")
        paths[-1].write_bytes(model.SerializeToString())
    return paths


def warm_row(name: str, ours: Numbers, theirs: Numbers) -> list[str]:
    def cells(numbers: Numbers) -> list[str]:
        if not numbers:
            return ["", "", ""]
        times = [f"{numbers[n]:.3f}" for n in ("load_seconds", "first_run_seconds")]
        return [*times, f"{numbers['peak_mb']:.0f}"]

    return [name, f"{ours['import']:.3f}", *cells(ours), *cells(theirs)]


def _span(cells: Iterable[str]) -> str:
    numbers = sorted(map(float, cells))
    return f"{numbers[0]:g} to {numbers[-1]:g}"


WARM = (
    "warm, in seconds",
    "import",
    "load",
    "first run",
    "memory, MiB",
    "ORT load",
    "ORT first run",
    "ORT memory, MiB",
)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1))
@click.option("--chains", is_flag=True, help="Also networks of 10, 100 and 1,000 equal layers.")
@click.option(
    "--before",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another checkout: its CPU seconds, in turns with these.",
)
@click.option("--save/--no-save", default=True, show_default=True, help="Write docs/results/compile-time.md.")
def main(files: tuple[Path, ...], repeats: int, chains: bool, before: Path | None, save: bool) -> None:
    """Measure FILES (ONNX; some of the suite in $BENCH_HOME, or of the examples, unless given)."""
    compiled: list[list[str]] = []
    loaded: list[list[str]] = []
    lengths: list[list[str]] = []
    stages: list[str] = []
    with tempfile.TemporaryDirectory() as folder, progress_bar() as progress:
        models = list(files) or default_models(Path(folder))
        for number, model in enumerate(models):
            if progress is not None:
                progress(model.stem, number, len(models))
            found = measure_model(model, Path(folder) / f"cache-{number}", repeats, before)
            *times, memory = found["compile"].items()
            stages = [name for name, _ in (*times, memory)]
            row = [model.stem, *(f"{seconds:.2f}" for _, seconds in times), f"{memory[1]:.0f}"]
            compiled.append(row if before is None else [*row, f"{found['before']['CPU']:.2f}"])
            loaded.append(warm_row(model.stem, found["warm"], found["ort"]))
        for number, kind in enumerate(KINDS if chains else ()):
            if progress is not None:
                progress(kind, number, len(KINDS))
            lengths.append(chain_row(kind, Path(folder), repeats))
    stages += ["CPU before"] if before is not None else []
    texts = [table(("compile, in seconds", *stages), compiled), table(WARM, loaded)]
    texts += [table(CHAIN, lengths)] if chains else []
    click.echo("\n\n".join(texts))
    if save:
        shows = f"Compiling takes {_span(c[-3 if before else -2] for c in compiled)} CPU seconds, loading "
        shows += f"what was compiled before {_span(c[2] for c in loaded)} seconds."
        method = METHOD.format(repeats=repeats, threads=default_threads())
        click.echo(f"\nwritten to {write('compile-time', 'Compiling and loading', shows, method, *texts)}")


if __name__ == "__main__":
    main()
