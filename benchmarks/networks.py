"""Whole networks against other engines: docs/results/networks.md.

The networks are the ONNX files of the benchmark suite, in `$BENCH_HOME/models`, or those given. An engine's interpreter
is that of `BENCH_PYTHON_<ENGINE>` (or as `tilewright bench` finds it). `--from` renders what the suite has measured.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from onnx import ModelProto

from benchmarks.batched import write_batched
from benchmarks.network_tables import METHOD, engine_versions, pages
from benchmarks.results import FOLDER, ROOT, current_commit, write
from benchmarks.suite_results import OURS, read_results
from tilewright.cli.machine import machine
from tilewright.cli.measure import Report, measure
from tilewright.cli.output import note
from tilewright.support.errors import TilewrightError

NETWORKS = (
    "resnet18",
    "resnet50",
    "mobilenetv2",
    "yolo",
    "unet",
    "bert_base",
    "minilm",
    "vit_b16",
    "gpt2",
    "lstm",
    "gru",
    "mlp",
)
BATCHED = ("resnet50", "mobilenetv2")
BATCH = 8


def as_cells(report: Report) -> dict[str, dict[str, Any]]:
    """A report in the form of the suite."""
    # One that is not installed has no column.
    cells: dict[str, dict[str, Any]] = {
        e: {"error": a.why} for e, a in report.absent.items() if a.hint is None
    }
    for engine, found in report.engines.items():
        cells[engine] = {
            "median_ms": found.series.median * 1e3,
            "round_medians_ms": [m * 1e3 for m in found.series.round_medians],
            "rel_err": found.error or 0.0,
            "version": found.version,
        }
    return cells


def stored_inputs(model: Path, folder: Path) -> dict[str, str]:
    """The suite keeps inputs beside the model, numbered; here they are files by name."""
    stored = model.with_suffix(".npz")
    if not stored.exists():
        return {}
    graph = ModelProto.FromString(model.read_bytes()).graph
    weights = {t.name for t in graph.initializer}
    names = [i.name for i in graph.input if i.name not in weights]
    found: dict[str, str] = {}
    with np.load(stored, allow_pickle=False) as arrays:
        keys = sorted(k for k in arrays.files if k.startswith("in"))
        for name, key in zip(names, keys, strict=True):
            np.save(folder / f"{model.stem}.{key}.npy", arrays[key])
            found[name] = str(folder / f"{model.stem}.{key}.npy")
    return found


def suite_pythons(names: Iterable[str]) -> dict[str, str]:
    """The interpreters that the suite has made."""
    found = {n: os.environ.get(f"BENCH_PYTHON_{n.upper()}") for n in names}
    return {n: python for n, python in found.items() if python}


def measure_all(
    models: Sequence[Path],
    thread_counts: Sequence[int],
    peers: Sequence[str],
    rounds: int,
    seconds: float,
    folder: Path,
) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    pythons = suite_pythons(peers)
    for model in models:
        files = stored_inputs(model, folder)
        for threads in thread_counts:
            try:
                report = measure(
                    model,
                    files=files,
                    threads=threads,
                    against=peers,
                    pythons=pythons,
                    rounds=rounds,
                    seconds=seconds,
                )
                cells = as_cells(report)
            except TilewrightError as e:  # a network that we cannot run is a result, and not a good one
                cells = {OURS: {"error": str(e)}}
            found.setdefault(model.stem, {})[str(threads)] = cells
            note(f"{model.stem}, {threads} thread(s): {', '.join(sorted(cells))}")
    return found


def suite_models(folder: Path) -> list[Path]:
    """The networks of the suite that there are, and batches of some of them."""
    home = os.environ.get("BENCH_HOME")
    if home is None:
        return []
    models = [p for n in NETWORKS if (p := Path(home) / "models" / f"{n}.onnx").exists()]
    for path in [p for p in models if p.stem in BATCHED]:
        batched = folder / f"{path.stem}_batch{BATCH}.onnx"
        write_batched(path, BATCH, batched)
        models.append(batched)
    return models


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--from",
    "sources",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Render these results of the suite (JSON) instead of measuring; may be repeated, and FILES are more of them.",
)
@click.option("--commit", help="That the results of --from were measured at [default: the current one].")
@click.option(
    "--against", default="ort,openvino,mnn,ncnn", show_default=True, help="Engines to compare with."
)
@click.option(
    "--threads", "thread_counts", multiple=True, type=click.IntRange(1), help="May be repeated [1 and 2]."
)
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=0.4, show_default=True, help="Of each turn.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Also write what was measured to this file, as JSON."
)
@click.option("--save/--no-save", default=True, show_default=True, help="Write docs/results/networks.md.")
def main(
    files: tuple[Path, ...],
    sources: tuple[Path, ...],
    commit: str | None,
    against: str,
    thread_counts: tuple[int, ...],
    rounds: int,
    seconds: float,
    keep: Path | None,
    save: bool,
) -> None:
    """Measure FILES (ONNX; the networks of the suite in $BENCH_HOME unless given), or render --from."""
    measured_at = (commit or current_commit()) if sources else None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not sources:
            models = list(files) or suite_models(folder)
            if not models:
                note("nothing to measure: set BENCH_HOME to the suite's folder, or name ONNX files")
                return
            os.environ["TILEWRIGHT_DB"] = "off"  # untuned
            threads = thread_counts or tuple(n for n in (1, 2) if n <= len(machine().affinity))
            measured = measure_all(models, threads, against.split(","), rounds, seconds, folder)
            sources, files = (keep or folder / "networks.json",), ()
            sources[0].write_text(json.dumps(measured, indent=1), encoding="utf-8")
        results = read_results((*sources, *files))
    parts, charts = pages(results)
    parts.insert(0, f"Engines: {engine_versions(results)}.")
    click.echo("\n\n".join(parts))
    if save:
        for file, text in charts.items():
            (FOLDER / file).write_text(text, encoding="utf-8")
        title = "Networks against other engines"
        path = write("networks", title, METHOD, *parts, measured_at=measured_at)
        click.echo(f"\nwritten to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
