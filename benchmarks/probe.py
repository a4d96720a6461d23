"""`python -m benchmarks.probe MODEL`: load a model, run it once, print seconds and memory as JSON.

Start-up time and memory can only be measured in a fresh process; benchmarks start one for each figure. Memory is
counted from the moment before loading, with every library already imported, so it is the model's and not Python's.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.catalogue import ROOT
from benchmarks.onnx_runtime import BoundOnnxRuntime
from tilewright.api import load
from tilewright.cli.feeds import make_feeds
from tilewright.cli.machine import memory_mb, reset_peak_memory
from tilewright.cli.output import print_json
from tilewright.cli.peers import import_onnxruntime
from tilewright.runtime.machine import default_threads
from tilewright.support.affinity import pinned
from tilewright.support.errors import InternalError


@dataclass(frozen=True, slots=True)
class Probe:
    load_seconds: float
    first_run_seconds: float
    load_mb: float  # resident after loading, more than before
    peak_mb: float  # at the worst moment up to the end of the first run, more than before


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--engine", type=click.Choice(["tilewright", "ort"]), default="tilewright", show_default=True)
@click.option("--threads", type=click.IntRange(1), default=default_threads)
@click.option("--seed", default=0, show_default=True)
def probe(model: Path, engine: str, threads: int, seed: int) -> None:
    with pinned(threads):
        print_json(
            asdict(_probe_ort(model, threads, seed) if engine == "ort" else _probe_ours(model, threads, seed))
        )


def _probe_ours(model: Path, threads: int, seed: int) -> Probe:
    base = _start()
    start = time.perf_counter()
    session = load(model, threads=threads)
    loaded, after = time.perf_counter(), memory_mb()[0]
    bound = session.bind(make_feeds(session.inputs, {}, seed))
    ready = time.perf_counter()
    bound.run()
    return Probe(loaded - start, time.perf_counter() - ready, after - base, memory_mb()[1] - base)


def _probe_ort(model: Path, threads: int, seed: int) -> Probe:
    import_onnxruntime()
    base = _start()
    start = time.perf_counter()
    engine = BoundOnnxRuntime(str(model), threads)
    loaded, after = time.perf_counter(), memory_mb()[0]
    run = engine.bind(make_feeds(engine.inputs, {}, seed))
    ready = time.perf_counter()
    run()
    return Probe(loaded - start, time.perf_counter() - ready, after - base, memory_mb()[1] - base)


def _start() -> float:
    reset_peak_memory()
    return memory_mb()[0]


def run_probe(model: Path, *, engine: str, threads: int, env: dict[str, str]) -> Probe:
    """Probe in a new process with this environment."""
    options = ["--engine", engine, "--threads", str(threads)]
    command = [sys.executable, "-m", "benchmarks.probe", str(model.resolve()), *options]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InternalError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return Probe(**json.loads(done.stdout))


if __name__ == "__main__":
    probe()
