"""How many candidates a second the tuner tries, and how many there are: docs/results/candidate-rate.md.

python -m benchmarks.candidate_rate                                  # the networks of $BENCH_HOME
python -m benchmarks.candidate_rate --no-rates --check --no-save     # fails if a kernel has too few points
python -m benchmarks.candidate_rate resnet18.onnx --keep rates.json
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.fingerprint import bench_home
from benchmarks.joint_operator_tables import JOINT
from benchmarks.joint_operators import tuned
from benchmarks.network_kernels import NetworkKernel, network_kernels
from benchmarks.networks import NETWORKS
from benchmarks.operator_cases import CASES
from benchmarks.results import ROOT, table, write
from tilewright.cli.output import note
from tilewright.codegen.driver import driver_ir
from tilewright.codegen.objects import compile_object
from tilewright.driver.tuned import tuning_scope
from tilewright.runtime.machine import default_threads
from tilewright.search.database import Database
from tilewright.search.evolve import Evolution
from tilewright.tuning.candidates import Candidates
from tilewright.tuning.trials import Trials
from tilewright.tuning.tuner import BATCH, TaskTuner, Tools

SHOWS = """How many distinct candidates a second are built and timed, kernel family by kernel family, and how many
points the kernels have that take the time of networks."""

METHOD = """*points* are all that the design spaces of a kernel have and the cost form ranks, in all families that fit
it; kernels are those of the untuned programs that take at least {least:.0%} of a run on {threads} thread(s), each timed
inside of its program. Equal kernels are one. *candidates a second*: of each kind of kernel the one with the largest
share in any of the networks is tuned by itself for {seconds:g} s: built on {cores} core(s), then run once to be
compared with the right result and three times to be timed, one after the other, starts of processes and the reference
left out. No candidate is tried twice. `gemm_512` is the whole of `tilewright tune` of a model with that one node, from
its start to the last comparison."""

LEAST_SHARE = 0.01  # of a run
LEAST_POINTS = 100
GEMM = "gemm_512"
_PREPARE_SECONDS = 1.0  # to find out what is right


def rate(kernel: NetworkKernel, seconds: float) -> dict[str, Any]:
    """Candidates of one kernel, tuned by itself."""
    target = kernel.task.target
    with Candidates(default_threads()) as candidates, Trials() as trials:
        driver = compile_object(driver_ir(target), target)
        start = time.monotonic()
        tools = Tools(
            *(candidates, trials, Database(None), tuning_scope(target), driver),
            lambda: time.monotonic() - start,
        )
        tuner = TaskTuner(kernel.task, kernel.name, kernel.calls, tools, kernel.task.threads)
        tuner.prepare(_PREPARE_SECONDS)
        begin = tools.clock()
        while not (tuner.is_done or tuner.problem) and tools.clock() < begin + seconds:
            tuner.run_batch(BATCH, True, begin + seconds)
        elapsed = tools.clock() - begin
    return {
        "kernel": kernel.name,
        "microseconds": tuner.default_seconds * 1e6,
        "trials": tuner.trials,
        "failed": len(tuner.failed),
        "elapsed_seconds": elapsed,
        "problem": tuner.problem,
    }


def kernel_row(kernel: NetworkKernel) -> dict[str, Any]:
    points = Evolution(kernel.task.design_spaces()).size
    return {
        "kernel": kernel.name,
        "kind": kernel.kind,
        "calls": kernel.calls,
        "share": kernel.share,
        "points": points,
    }


def gemm_rate(seconds: float, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / f"{GEMM}.onnx"
        model.write_bytes(CASES[GEMM].build().SerializeToString())
        found = tuned(model, JOINT, f"{seconds:g}s", threads, seed=0)
    return {
        "kernel": GEMM,
        "trials": found["trials"],
        "failed": 0,
        "elapsed_seconds": found["elapsed_seconds"],
    }


# ------------------------------------------------------------ tables


def too_few(networks: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Kernels that count and have fewer points than they should."""
    return [
        (n, k)
        for n, rows in networks.items()
        for k in rows
        if k["share"] >= LEAST_SHARE and k["points"] < LEAST_POINTS
    ]


def points_table(networks: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Of each network: how many kernels count, and the fewest points of one."""
    rows: list[list[str]] = []
    for name, kernels in networks.items():
        counted = [k for k in kernels if k["share"] >= LEAST_SHARE]
        if not counted:
            rows.append([name, "0", "", "", "", "no program of native code alone"])
            continue
        few = [k for k in counted if k["points"] < LEAST_POINTS]
        least = min(counted, key=lambda k: k["points"])
        rows.append(
            [
                name,
                str(len(counted)),
                f"{sum(k['share'] for k in counted):.0%}",
                str(len(few)),
                f"{sum(k['share'] for k in few):.0%}",
                f"{least['points']} ({least['kernel']}, {least['kind']}, {least['share']:.1%})",
            ]
        )
    columns = (
        *("network", f"kernels of {LEAST_SHARE:.0%} or more", "their share"),
        *(f"with fewer than {LEAST_POINTS} points", "their share", "the fewest points"),
    )
    return table(columns, rows)


def few_table(networks: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """All kernels that have too few, the largest share first."""
    found = sorted(too_few(networks), key=lambda f: -f[1]["share"])
    rows = [[k["kernel"], n, k["kind"], f"{k['share']:.1%}", str(k["points"])] for n, k in found]
    return table(("kernel", "network", "kind", "share", "points"), rows)


def kinds_table(networks: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Points by kind: the least, the most, and how much time they have."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for rows in networks.values():
        for k in rows:
            if k["share"] >= LEAST_SHARE:
                by_kind.setdefault(k["kind"], []).append(k)
    rows = [
        [
            kind,
            str(len(found)),
            str(min(k["points"] for k in found)),
            str(max(k["points"] for k in found)),
        ]
        for kind, found in sorted(by_kind.items())
    ]
    return table(("kind", "kernels", "fewest points", "most points"), rows)


def rates_table(rates: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        [
            kind,
            r["kernel"],
            f"{r['microseconds']:.0f}" if "microseconds" in r else "",
            str(r["trials"]),
            str(r["failed"]),
            r.get("problem") or f"{r['trials'] / r['elapsed_seconds']:.1f}",
        ]
        for kind, r in rates.items()
    ]
    return table(("kind", "kernel", "µs", "candidates", "failed", "a second"), rows)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=10.0, show_default=True, help="Of tuning, for each kind of kernel.")
@click.option("--rates/--no-rates", "with_rates", default=True, show_default=True)
@click.option("--check", is_flag=True, help=f"Fail if a kernel that counts has fewer than {LEAST_POINTS}.")
@click.option("--keep", type=click.Path(path_type=Path), help="A file with results, which is added to.")
@click.option(
    "--save/--no-save", default=True, show_default=True, help="Write docs/results/candidate-rate.md."
)
def main(
    files: tuple[Path, ...],
    threads: int,
    seconds: float,
    with_rates: bool,
    check: bool,
    keep: Path | None,
    save: bool,
) -> None:
    """Look at FILES (ONNX; the networks of the suite in $BENCH_HOME unless given)."""
    found: dict[str, dict[str, Any]] = {"networks": {}, "rates": {}}
    if keep is not None and keep.exists():
        found = json.loads(keep.read_text())

    def store() -> None:
        if keep is not None:
            keep.write_text(json.dumps(found, indent=1))

    suite = (bench_home() / "models" / f"{n}.onnx" for n in NETWORKS)
    for path in list(files) or [p for p in suite if p.exists()]:
        if path.stem in found["networks"] and not with_rates:
            continue
        kernels = [k for k in network_kernels(path, threads) if k.share >= LEAST_SHARE]
        found["networks"][path.stem] = [kernel_row(k) for k in kernels]
        note(f"{path.stem}: {len(kernels)} kernels")
        for k in kernels if with_rates else ():
            known = found["rates"].get(k.kind)
            if known is None or known["share"] < k.share:
                found["rates"][k.kind] = {**rate(k, seconds), "share": k.share}
                store()
        store()
    if with_rates and GEMM not in found["rates"]:
        found["rates"][GEMM] = gemm_rate(seconds, threads)
        store()
    networks = found["networks"]
    parts = [points_table(networks), few_table(networks), kinds_table(networks)]
    if found["rates"]:
        parts.append(rates_table(found["rates"]))
    click.echo("\n\n".join(parts))
    if save:
        method = METHOD.format(least=LEAST_SHARE, threads=threads, seconds=seconds, cores=default_threads())
        path = write("candidate-rate", "Candidates", SHOWS, method, *parts)
        click.echo(f"\nwritten to {path.relative_to(ROOT)}")
    if check and too_few(networks):
        sys.exit(1)


if __name__ == "__main__":
    main()
