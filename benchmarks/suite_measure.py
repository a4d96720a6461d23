"""Models measured against other engines, in the form in which the benchmark suite writes its results.

An engine's interpreter is that of `BENCH_PYTHON_<ENGINE>`, by the suite's name of it, or as `tilewright bench` finds
it.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto

from benchmarks.catalogue import ENGINES
from benchmarks.options import Turns
from benchmarks.suite_results import OURS, SUITE_NAMES
from tilewright.cli.catalogue import Peer
from tilewright.cli.measure import Report, measure
from tilewright.cli.output import note
from tilewright.support.errors import TilewrightError

Cells: TypeAlias = dict[str, dict[str, Any]]  # by engine, as the suite calls it


def as_cells(report: Report) -> Cells:
    """One that is not installed has no cell."""
    cells: Cells = {
        SUITE_NAMES.get(e, e): {"error": a.why} for e, a in report.absent.items() if a.hint is None
    }
    for engine, found in report.engines.items():
        cells[SUITE_NAMES.get(engine, engine)] = {
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
    found = {n: os.environ.get(f"BENCH_PYTHON_{SUITE_NAMES.get(n, n).upper()}") for n in names}
    return {n: python for n, python in found.items() if python}


def measure_all(
    models: Sequence[Path],
    peers: Sequence[str],
    turns: Turns,
    folder: Path,
    catalogue: Mapping[str, Peer] = ENGINES,
) -> dict[str, dict[str, Cells]]:
    """By model, number of threads and engine; untuned."""
    os.environ["TILEWRIGHT_DB"] = "off"
    found: dict[str, dict[str, Cells]] = {}
    pythons = suite_pythons(peers)
    for model in models:
        files = stored_inputs(model, folder)
        for threads in turns.thread_counts:
            try:
                report = measure(
                    model,
                    files=files,
                    threads=threads,
                    against=peers,
                    pythons=pythons,
                    rounds=turns.rounds,
                    seconds=turns.seconds,
                    catalogue=catalogue,
                )
                cells = as_cells(report)
            except TilewrightError as e:  # a model that we cannot run is a result, and not a good one
                cells = {OURS: {"error": str(e)}}
            found.setdefault(model.stem, {})[str(threads)] = cells
            note(f"{model.stem}, {threads} thread(s): {', '.join(sorted(cells))}")
    return found
