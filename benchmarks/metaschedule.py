"""TVM's MetaSchedule and `tilewright tune` with the same time: docs/results/metaschedule.md.

    python -m benchmarks.metaschedule --tvm-python ~/tvm/bin/python
    python -m benchmarks.metaschedule gemm_512 --budget 60s --no-save --tvm-python ~/tvm/bin/python

Models are operators of `benchmarks.operator_cases` or ONNX files. With `--keep` what is in the file is not measured
again.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from benchmarks.catalogue import ENGINES, ROOT
from benchmarks.engines.tvm import tuning_folder
from benchmarks.fingerprint import bench_home
from benchmarks.joint_operator_tables import JOINT, ratio
from benchmarks.joint_operators import tuned
from benchmarks.metaschedule_records import Records, drop_cut_line, read_records
from benchmarks.operator_cases import CASES
from benchmarks.program_engine import program_engine, program_path
from benchmarks.results import FOLDER, table, write
from benchmarks.suite_measure import as_cells
from benchmarks.suite_results import OURS
from benchmarks.suite_tables import ratio_text
from benchmarks.svg import step_chart
from tilewright.cli.catalogue import Peer
from tilewright.cli.measure import measure
from tilewright.cli.output import note
from tilewright.compiler import compile
from tilewright.driver.trace import ProgramTrace
from tilewright.support.budget import parse_budget

SHOWS = """What TVM's MetaSchedule and `tilewright tune` find in the same time."""

METHOD = """Each model is tuned for {budget} on {threads} thread(s) by both, one after the other, with nothing known
before. MetaSchedule is TVM's pipeline `static_shape_tuning` for this processor (LLVM), with its defaults (evolutionary
search, a cost model that is learned) but for {batch} candidates at a time instead of 64, because it writes down what it
has found after each batch; it is ended when its time is over, and the program is
compiled with the best of what it has written so far: what it has not come to stays as TVM compiles it untuned. Both
build candidates on all cores. *candidates* are those that were built and timed. Then all four programs take turns, each
in a process of its own; times are medians in milliseconds, and ratios have a 95 % interval over rounds. The curves are
of the best so far as each tuner has measured it, over the time of our untuned program."""

TUNED, TVM, TVM_TUNED = "tuned", "tvm", "tvm_tuned"
DEFAULT_MODELS = ("gemm_512", "c2d_3x3_64_64_56", "dense_128x768x3072", "mobilenetv2")
_POLL_SECONDS = 0.5
_BATCH = 16  # candidates of MetaSchedule at a time: it writes down what it has found after each batch
_RECORDS = "database_tuning_record.json"


def metaschedule(model: Path, budget: float, threads: int, python: str) -> dict[str, Any]:
    """Tune with MetaSchedule for so many seconds: how many candidates, and the best over time."""
    folder = Path(tuning_folder(str(model)))
    shutil.rmtree(folder, ignore_errors=True)
    command = [python, "-m", "benchmarks.engines.tvm", str(model), str(threads), str(_BATCH)]
    history: list[tuple[float, int, float, int]] = []
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            while process.poll() is None and time.monotonic() - start < budget:
                time.sleep(_POLL_SECONDS)
                now = _records(folder)
                if not history or now.candidates != history[-1][1]:
                    history.append((time.monotonic() - start, now.candidates, now.seconds, len(now.best)))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with those who build and run candidates for it
            process.wait()
        if process.returncode not in (0, -signal.SIGKILL):
            log.seek(0)
            raise click.ClickException(f"MetaSchedule has failed: {log.read()[-2000:]}")
    if (folder / _RECORDS).exists():
        drop_cut_line(folder / _RECORDS)
    found = _records(folder)
    return {
        "elapsed_seconds": time.monotonic() - start,
        "candidates": found.candidates,
        "failed": found.failed,
        "workloads": len(found.best),
        "history": history,
    }


def _records(folder: Path) -> Records:
    path = folder / _RECORDS
    return read_records(path.read_text().splitlines() if path.exists() else ())


def compare(
    model: Path, trace: str, threads: int, python: str, rounds: int, seconds: float
) -> dict[str, Any]:
    """Untuned and tuned programs of both, in turns."""
    compile(model, trace=ProgramTrace.parse(trace) if trace else None).save(program_path(model, TUNED))
    metaschedule = Peer(TVM_TUNED, "TVM, tuned", "benchmarks.engines.tvm:TvmTuned", ("tvm", "onnx"), "", ROOT)
    report = measure(
        model,
        threads=threads,
        against=[TUNED, TVM, TVM_TUNED],
        pythons={TVM: python, TVM_TUNED: python},
        rounds=rounds,
        seconds=seconds,
        catalogue={**ENGINES, TUNED: program_engine(TUNED, "tuned"), TVM_TUNED: metaschedule},
    )
    return as_cells(report)


def row(name: str, result: Mapping[str, Any]) -> list[str]:
    cells, ours, theirs = result["cells"], result["tilewright"], result["tvm"]

    def ms(engine: str) -> str:
        return f"{cells[engine]['median_ms']:.3f}" if "median_ms" in cells.get(engine, {}) else "failed"

    return [
        name,
        *(ms(e) for e in (OURS, TUNED, TVM, TVM_TUNED)),
        ratio_text(ratio(cells, TVM_TUNED, TUNED)),
        str(ours["trials"]),
        f"{ours['trials'] / ours['elapsed_seconds']:.1f}",
        f"{theirs['candidates']} ({theirs['failed']})",
        f"{theirs['candidates'] / theirs['elapsed_seconds']:.1f}",
    ]


COLUMNS = (
    *("model", "untuned", "tuned", "TVM untuned", "MetaSchedule", "MetaSchedule / tuned"),
    *("candidates", "a second", "MetaSchedule's (failed)", "a second"),
)


def curves(found: Mapping[str, Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Of both for each model, over the time of our untuned program. MetaSchedule's begins when it has measured all
    workloads that it measures at all, and is left out where there are several: they are called more than once.
    """
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, result in found.items():
        untuned = result["cells"][OURS]["median_ms"] / 1e3
        lines[name] = [(at, s / untuned) for at, s in result["tilewright"]["history"]]
        theirs = [(at, s / untuned) for at, _, s, many in result["tvm"]["history"] if many == 1]
        if theirs and result["tvm"]["workloads"] == 1:
            lines[f"{name}, MetaSchedule"] = theirs
    return {n: line for n, line in lines.items() if line}


def model_file(name: str, folder: Path) -> Path:
    """In a folder of our own, where records and programs are put beside it."""
    path = folder / f"{Path(name).stem}.onnx"
    if name in CASES:
        path.write_bytes(CASES[name].build().SerializeToString())
    else:
        given = Path(name) if name.endswith(".onnx") else bench_home() / "models" / f"{name}.onnx"
        shutil.copyfile(given, path)
    return path


@click.command()
@click.argument("models", nargs=-1)
@click.option("--tvm-python", required=True, help="An interpreter that has apache-tvm and onnx.")
@click.option("--budget", default="10m", show_default=True, help="For each model and tuner.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=0.2, show_default=True, help="Of each turn.")
@click.option("--keep", type=click.Path(path_type=Path), help="A file with results, which is added to.")
@click.option("--save/--no-save", default=True, show_default=True, help="Write docs/results/metaschedule.md.")
def main(
    models: tuple[str, ...],
    tvm_python: str,
    budget: str,
    threads: int,
    rounds: int,
    seconds: float,
    keep: Path | None,
    save: bool,
) -> None:
    """Tune MODELS (operators by name, networks of the suite by name, or .onnx files)."""
    os.environ["TILEWRIGHT_DB"] = "off"
    python = os.path.abspath(os.path.expanduser(tvm_python))
    found: dict[str, dict[str, Any]] = {}
    if keep is not None and keep.exists():
        found = json.loads(keep.read_text())
    with tempfile.TemporaryDirectory() as folder:
        for name in models or DEFAULT_MODELS:
            model = model_file(name, Path(folder))
            if model.stem in found:
                continue
            note(f"{model.stem}: MetaSchedule")
            theirs = metaschedule(model, parse_budget(budget), threads, python)
            ours = tuned(model, JOINT, budget, threads, seed=0)
            cells = compare(model, ours["trace"], threads, python, rounds, seconds)
            found[model.stem] = {"tvm": theirs, "tilewright": ours, "cells": cells}
            if keep is not None:
                keep.write_text(json.dumps(found, indent=1))
    text = table(COLUMNS, [row(name, result) for name, result in found.items()])
    click.echo(text)
    if save:
        end = max(r[t]["elapsed_seconds"] for r in found.values() for t in ("tvm", "tilewright"))
        lines = curves(found)
        chart = step_chart("MetaSchedule and tilewright tune", "seconds", "best so far", lines, end)
        (FOLDER / "metaschedule.svg").write_text(chart, encoding="utf-8")
        method = METHOD.format(budget=budget, threads=threads, batch=_BATCH)
        picture = "![MetaSchedule and tilewright tune](metaschedule.svg)"
        write("metaschedule", "MetaSchedule", SHOWS, method, text, picture)


if __name__ == "__main__":
    main()
