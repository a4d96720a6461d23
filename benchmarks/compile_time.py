"""How long a model takes to compile and to load, each in a fresh process with a cache of its own."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TypeAlias

import click

from benchmarks.results import ROOT, table, write
from examples.models import mlp, resnet18, transformer_encoder
from tilewright.runtime.machine import default_threads

METHOD = """Every run is a process of its own, in turns; medians of {repeats}. *compile*: `tilewright.compile` with
nothing
cached, by stage, with worker processes and without; *llvm* is the time that this process waits for objects. *warm*:
`import tilewright` and then `tilewright.load` of a model that was compiled before. *CPU* is user and system time,
workers included. It too grows on a busy machine, if less than the time on the clock."""

Numbers: TypeAlias = dict[str, float]

_COMPILE = """
import json, os, sys, time
import tilewright.compiler
begin, clock = time.perf_counter(), os.times()
made = tilewright.compiler.compile(sys.argv[1])
wall, now = time.perf_counter() - begin, os.times()
cpu = sum(now[:4]) - sum(clock[:4])
print(json.dumps({**made.seconds, "total": wall, "CPU": cpu}))
"""

_LOAD = """
import json, os, sys, time
start, clock = time.perf_counter(), os.times()
import tilewright
load = tilewright.load
loaded, middle = time.perf_counter(), os.times()
load(sys.argv[1])
end, now = time.perf_counter(), os.times()
seconds = {"import": loaded - start, "import CPU": sum(middle[:2]) - sum(clock[:2])}
print(json.dumps({**seconds, "load": end - loaded, "load CPU": sum(now[:2]) - sum(middle[:2])}))
"""


def run(code: str, model: Path, **env: str) -> Numbers:
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def measure_model(model: Path, folder: Path, repeats: int) -> dict[str, Numbers]:
    cache = {"TILEWRIGHT_CACHE": str(folder / f"cache-{model.stem}")}
    run(_LOAD, model, **cache)
    kinds: dict[str, tuple[str, dict[str, str]]] = {
        "workers": (_COMPILE, {"TILEWRIGHT_CACHE": "off", "TILEWRIGHT_WORKERS": str(default_threads() - 1)}),
        "no workers": (_COMPILE, {"TILEWRIGHT_CACHE": "off", "TILEWRIGHT_WORKERS": "0"}),
        "warm": (_LOAD, cache),
    }
    runs: dict[str, list[Numbers]] = {label: [] for label in kinds}
    for _ in range(repeats):  # in turns: the machine drifts
        for label, (code, env) in kinds.items():
            runs[label].append(run(code, model, **env))
    return {
        label: {name: statistics.median(r[name] for r in found) for name in found[0]}
        for label, found in runs.items()
    }


def own_models(folder: Path) -> list[Path]:
    paths: list[Path] = []
    for name, model in (("mlp", mlp()), ("resnet18", resnet18()), ("transformer", transformer_encoder())):
        paths.append(folder / f"{name}.onnx")
        paths[-1].write_bytes(model.SerializeToString())
    return paths


@click.command()
@click.argument("models", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1))
def main(models: tuple[Path, ...], repeats: int) -> None:
    """Measure compile and load times of MODELS, or of the examples; the latter go to docs/results/compile-time.md."""
    compiled: list[list[str]] = []
    loaded: list[list[str]] = []
    names: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models or own_models(Path(folder)):
            found = measure_model(model, Path(folder), repeats)
            warm = found.pop("warm")
            for label, numbers in found.items():
                names = list(numbers)
                compiled.append([f"{model.stem}, {label}", *(f"{s:.2f}" for s in numbers.values())])
            loaded.append([model.stem, *(f"{warm[n]:.3f}" for n in ("import", "load", "load CPU"))])
    texts = [
        table(("compile, in seconds", *names), compiled),
        table(("warm, in seconds", "import tilewright", "load", "load, CPU"), loaded),
    ]
    click.echo("\n\n".join(texts))
    if not models:
        path = write("compile-time", "Compiling and loading", METHOD.format(repeats=repeats), *texts)
        click.echo(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
