"""Whole models against ONNX Runtime: ONNX files, or the networks of examples/models.py."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
from onnx import ModelProto

from benchmarks.results import table, write
from examples.models import mlp, resnet18, transformer_encoder
from tilewright.cli.machine import machine
from tilewright.cli.measure import measure
from tilewright.cli.output import progress_bar
from tilewright.cli.probe import run_probe
from tilewright.support.errors import TilewrightError

METHOD = """float32, batch 1, random weights and inputs, untuned. Each engine runs in a process pinned to as
many cores as threads, and they take turns in {rounds} rounds. *against ONNX Runtime*: its time over ours, round by
round, with the 95 % bootstrap interval of the median: above 1 is faster. *noise*: slowest over quickest round
of ours. *error*: largest difference of the outputs over the largest value. *compile* uses every core and no
cache; *warm load* and *memory* (resident at its peak, above what the imported libraries take) are of fresh
processes with the program already in the cache; *ORT load* and *ORT memory* likewise."""

BUILT_IN: dict[str, Callable[[], ModelProto]] = {
    "resnet18": resnet18,
    "encoder_6x384": lambda: transformer_encoder(layers=6, hidden=384, heads=12),
    "encoder_12x768": lambda: transformer_encoder(layers=12, hidden=768, heads=12),
    "mlp": mlp,
}
COLUMNS = (
    "model",
    "ms",
    "ORT ms",
    "against ONNX Runtime",
    "noise",
    "error",
    "compile s",
    "warm load s",
    "ORT load s",
    "memory MiB",
    "ORT memory MiB",
)


def measure_row(path: Path, threads: int, rounds: int, seconds: float, cache: str) -> list[str]:
    report = measure(path, threads=threads, against=("ort",), rounds=rounds, seconds=seconds)
    env = {**os.environ, "TILEWRIGHT_CACHE": cache}
    _, warm = (run_probe(path, engine="tilewright", threads=threads, env=env) for _ in range(2))
    peer = run_probe(path, engine="ort", threads=threads, env=env)
    theirs, ratio = report.peer("ort"), report.speedup["ort"]
    return [
        path.stem,
        f"{report.ours.series.median * 1e3:.3f}",
        f"{theirs.series.median * 1e3:.3f}",
        str(ratio),
        f"{100 * report.ours.series.spread:.0f} %",
        f"{report.error:.0e}",
        f"{report.ours.start_up['compile']:.2f}",
        f"{warm.load_seconds:.3f}",
        f"{peer.load_seconds:.3f}",
        f"{warm.peak_mb:.0f}",
        f"{peer.peak_mb:.0f}",
    ]


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--threads", "thread_counts", multiple=True, type=click.IntRange(1), help="May be repeated [1 and 2]."
)
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=0.5, show_default=True, help="Of each turn.")
@click.option("--save/--no-save", default=True, show_default=True, help="Write docs/results/models.md.")
def main(
    files: tuple[Path, ...], thread_counts: tuple[int, ...], rounds: int, seconds: float, save: bool
) -> None:
    """Measure FILES (the networks of examples/models.py unless given)."""
    counts = thread_counts or tuple(n for n in (1, 2) if n <= len(machine().affinity))
    parts: list[str] = []
    with tempfile.TemporaryDirectory() as folder, progress_bar() as progress:
        paths = list(files)
        if not files:
            for name, build in BUILT_IN.items():
                paths.append(Path(folder) / f"{name}.onnx")
                paths[-1].write_bytes(build().SerializeToString())
        for threads in counts:
            rows: list[list[str]] = []
            for path in paths:
                try:
                    rows.append(measure_row(path, threads, rounds, seconds, cache=f"{folder}/cache"))
                except TilewrightError as e:  # a model that does not compile is a result, and not a good one
                    rows.append([path.stem, f"fails: {str(e).splitlines()[0]}", *[""] * (len(COLUMNS) - 2)])
                if progress is not None:
                    progress(f"{threads} thread(s)", len(rows), len(paths))
            parts += [f"## {threads} thread(s)", table(COLUMNS, rows)]
    click.echo("\n\n".join(parts))
    if save:
        click.echo(f"\nwritten to {write('models', 'Models', METHOD.format(rounds=rounds), *parts)}")


if __name__ == "__main__":
    main()
