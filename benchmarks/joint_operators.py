"""What joint tuning gains on single operators: docs/results/joint-operators.md.

    python -m benchmarks.joint_operators                                 # all operators, a minute for each way
    python -m benchmarks.joint_operators gemm_512 --budget 20s --no-save
    python -m benchmarks.joint_operators --keep joint.json --peers ort,openvino,torch,mnn

With `--keep` what is in the file is not measured again. The interpreter of a peer is that of `BENCH_PYTHON_<ENGINE>`,
or as `tilewright bench` finds it.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import click
from onnx import ModelProto

from benchmarks.catalogue import ENGINES
from benchmarks.joint_operator_cases import JOINT_CASES
from benchmarks.joint_operator_tables import (
    CHOSEN,
    COMPUTE_BOUND,
    JOINT,
    METHOD,
    SHOWS,
    STATED,
    WAYS,
    page_table,
)
from benchmarks.peak_engine import GFLOP, PEAK
from benchmarks.program_engine import program_engine, program_path
from benchmarks.results import ROOT, write
from benchmarks.suite_measure import as_cells, suite_pythons
from tilewright.cli.measure import measure
from tilewright.cli.output import milliseconds, note
from tilewright.compiler import SPACES, compile
from tilewright.driver.trace import ProgramTrace
from tilewright.search.database import Database
from tilewright.support.errors import TilewrightError
from tilewright.tuning.model_tuning import ModelTuning
from tilewright.tuning.tune_result import TuningProgress

AS_STATED = ProgramTrace({"algorithms": (), "layouts": ()})


def tuned(model: Path, way: str, budget: str, threads: int, seed: int) -> dict[str, Any]:
    """A tuning from an empty database: the trace of what was found, empty if nothing was better."""

    def tell(p: TuningProgress) -> None:
        times = f"{milliseconds(p.best_seconds)} of {milliseconds(p.default_seconds)}"
        note(f"{model.stem}, {way}: {p.elapsed:5.1f} s, {p.trials} trials, {times}")

    with tempfile.TemporaryDirectory() as folder:
        tuning = ModelTuning.try_open(
            *(model, budget, None, threads, seed, None, "native", None),
            spaces=SPACES,
            progress=tell,
            database=Database(Path(folder) / "tuning.db"),
            resume=False,
        )
        assert tuning is not None, "a model of one operator becomes one program"
        with tuning:
            tuning.tuner.is_joint = way == JOINT
            if way == STATED:
                tuning.tuner.begin = AS_STATED
            tuning.run()
            result = tuning.result()
    program = result.program
    assert program is not None
    return {
        "trace": program.trace,
        "trials": program.trials,
        "elapsed_seconds": result.elapsed,
        "structures": program.structures,
        "history": program.history,
        "problem": program.problem,
        "points": {t.name: t.points for t in result.tasks},
    }


def compare(
    model: Path, found: Mapping[str, Any], threads: int, peers: Sequence[str], rounds: int, seconds: float
) -> dict[str, Any]:
    """All programs, the peers and the peak in turns."""
    for way in WAYS:
        given = found[way]["trace"]
        start = AS_STATED if way == STATED else None
        compile(model, trace=ProgramTrace.parse(given) if given else start).save(program_path(model, way))
    titles = {STATED: "loops as stated", CHOSEN: "loops as chosen", JOINT: "joint"}
    ours = {w: program_engine(w, titles[w]) for w in WAYS}
    engines = [*WAYS, *peers, PEAK.name]
    report = measure(
        model,
        threads=threads,
        against=engines,
        pythons=suite_pythons(peers),
        rounds=rounds,
        seconds=seconds,
        catalogue={**ENGINES, **ours, PEAK.name: PEAK},
    )
    return as_cells(report)


def intensity(name: str) -> float:
    """Operations for each byte of inputs, weights and outputs."""
    graph = JOINT_CASES[name].build().graph
    values = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.output)]
    elements = sum(map(prod, values)) + sum(prod(w.dims) for w in graph.initializer)
    return JOINT_CASES[name].flops / (4 * elements)


def own_trace(model: ModelProto) -> str:
    return str(compile(model).trace)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(JOINT_CASES)))
@click.option("--budget", default="60s", show_default=True, help="For each operator and way.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
@click.option("--peers", default="", help="Engines to compare with, such as ort,openvino,torch,mnn.")
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=0.1, show_default=True, help="Of each turn.")
@click.option("--keep", type=click.Path(path_type=Path), help="A file with results, which is added to.")
@click.option(
    "--save/--no-save", default=True, show_default=True, help="Write docs/results/joint-operators.md."
)
def main(
    names: tuple[str, ...],
    budget: str,
    threads: int,
    seed: int,
    peers: str,
    rounds: int,
    seconds: float,
    keep: Path | None,
    save: bool,
) -> None:
    """Tune NAMES (all unless given), and compare what was found."""
    os.environ["TILEWRIGHT_DB"] = "off"
    found: dict[str, dict[str, Any]] = {}
    if keep is not None and keep.exists():
        found = json.loads(keep.read_text())

    def store() -> None:
        if keep is not None:
            keep.write_text(json.dumps(found, indent=1))

    others = [p for p in peers.split(",") if p]
    with tempfile.TemporaryDirectory() as folder:
        for name in names or tuple(JOINT_CASES):
            made = JOINT_CASES[name].build()
            model = Path(folder) / f"{name}.onnx"
            model.write_bytes(made.SerializeToString())
            result = found.setdefault(name, {"tuned": {}})
            for way in (w for w in WAYS if w not in result["tuned"]):
                result["tuned"][way] = {**tuned(model, way, budget, threads, seed), "own": own_trace(made)}
                result.pop("cells", None)
                store()
            if "cells" not in result or not set(others) <= set(result["asked"]):
                try:
                    result["cells"] = compare(model, result["tuned"], threads, others, rounds, seconds)
                except TilewrightError as e:
                    note(f"{name}: {e}")
                    continue
                result["asked"] = others
                store()
    flops = {n: c.flops for n, c in JOINT_CASES.items()}
    text = page_table(found, lambda n: flops[n], intensity, GFLOP * 1e9, threads)
    click.echo(text)
    if save:
        method = METHOD.format(budget=budget, bound=COMPUTE_BOUND, peers=", ".join(others) or "no others")
        path = write("joint-operators", "Operators tuned jointly", SHOWS, method, text)
        click.echo(f"\nwritten to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
