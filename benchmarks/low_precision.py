"""Networks in 8 bits against other engines, and against themselves in float32: docs/results/low-precision.md.

    python -m benchmarks.low_precision            # networks of $BENCH_HOME/models, quantised if they are not
    python -m benchmarks.low_precision resnet50 --threads 1 --no-save

The files are those that ONNX Runtime's quantiser makes of the networks of the benchmark suite (`quantized_models`).
"""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.options import PageOptions, Turns, page_options, turn_options
from benchmarks.quantized_models import quantized, reference_results, suite_inputs
from benchmarks.real_files import bench_home
from benchmarks.real_measure import REFERENCE, RealRace
from benchmarks.results import table
from benchmarks.suite_results import OURS, geometric_mean
from benchmarks.suite_tables import ratio_text, threads_text
from tilewright.cli.output import note
from tilewright.support.turns import Ratio, bootstrap_medians

NETWORKS = ("resnet50", "mobilenetv2", "bert_base", "minilm")
FLOATS = f"{OURS}-float32"
METHOD = """The networks of the benchmark suite with random weights, quantised by ONNX Runtime's quantiser: QDQ nodes,
u8 activations, s8 weights with a scale for each channel, defaults otherwise. Each engine runs in a process of its own,
pinned to as many cores as threads; all are loaded, and then take turns. Times are medians in milliseconds. *best /
ours* is the quicker of the other two over ours, and *float32 / ours* our own program of the network before it was
quantised, both with 95 % bootstrap intervals over rounds. Errors are the largest difference from ONNX's reference
evaluator on the same file, over its largest number. Nothing is tuned."""


@dataclass(frozen=True, slots=True)
class Measured:
    network: str
    threads: int
    cells: Mapping[str, Mapping[str, Any]]  # by engine
    errors: Mapping[str, float]

    def seconds(self, engine: str) -> float | None:
        return self.cells.get(engine, {}).get("seconds")

    def ratio(self, engine: str) -> Ratio | None:
        """The engine's time over ours."""
        theirs, ours = (self.cells.get(e, {}) for e in (engine, OURS))
        if "seconds" not in theirs or "seconds" not in ours:
            return None
        random = np.random.default_rng(0)
        draws = [bootstrap_medians(c["rounds"], random) for c in (theirs, ours)]
        low, high = np.percentile(draws[0] / draws[1], (2.5, 97.5))
        return Ratio(theirs["seconds"] / ours["seconds"], float(low), float(high))

    def best(self, peers: Sequence[str]) -> str | None:
        there = {e: s for e in peers if (s := self.seconds(e)) is not None}
        return min(there, key=lambda e: there[e], default=None)


def _worst(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float(np.abs(a.reshape(b.shape) - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs)


def measure(network: str, peers: Sequence[str], threads: int, turns: Turns, work: Path) -> Measured:
    floats = bench_home() / "models" / f"{network}.onnx"
    if not floats.exists():
        raise click.ClickException(
            f"{network}.onnx is not in the models of $BENCH_HOME: make_models.py makes it"
        )
    file = quantized(floats)
    with ExitStack() as stack:
        names = [REFERENCE, OURS, *(p for p in peers if p != REFERENCE), FLOATS]
        race = RealRace(file, names, threads, work / network, stack, {FLOATS: floats})
        race.load(suite_inputs(file))
        wanted = reference_results(file)
        errors = {e: _worst(list(race.results(e).values()), wanted) for e in names if race.has(e)}
        race.time(turns)
        return Measured(network, threads, race.found, errors)


def page_parts(found: Sequence[Measured], peers: Sequence[str]) -> list[str]:
    parts: list[str] = []
    for threads in sorted({m.threads for m in found}):
        here = [m for m in found if m.threads == threads]
        rows = [
            [
                m.network,
                *(_ms(m.seconds(e)) for e in (OURS, *peers)),
                m.best(peers) or "",
                ratio_text(m.ratio(m.best(peers) or "")),
                _ms(m.seconds(FLOATS)),
                ratio_text(m.ratio(FLOATS)),
                *(f"{m.errors[e]:.1e}" if e in m.errors else "" for e in (OURS, *peers)),
            ]
            for m in here
        ]
        columns = ("network", OURS, *peers, "best", "best / ours", "ours, float32", "float32 / ours")
        parts += [
            f"## {threads_text(threads)}",
            table((*columns, *(f"error of {e}" for e in (OURS, *peers))), rows),
        ]
    return parts


def _ms(seconds: float | None) -> str:
    return "fails" if seconds is None else f"{seconds * 1e3:.2f}"


def shows(found: Sequence[Measured], peers: Sequence[str]) -> str:
    texts: list[str] = []
    for threads in sorted({m.threads for m in found}):
        here = [m for m in found if m.threads == threads]
        best = [r.value for m in here if (r := m.ratio(m.best(peers) or "")) is not None]
        floats = [r.value for m in here if (r := m.ratio(FLOATS)) is not None]
        if best and floats:
            texts.append(
                f"{geometric_mean(best):.2f} times the speed of the best of {' and '.join(peers)}, and"
                f" {geometric_mean(floats):.2f} times our own in float32 ({threads_text(threads).lower()})"
            )
    return f"Networks of 8 bits run at {'; '.join(texts)}."


@click.command()
@click.argument("networks", nargs=-1)
@click.option("--against", default="ort,openvino", show_default=True, help="Engines to compare with.")
@turn_options(rounds=9, seconds=0.3)
@page_options("low-precision")
def main(networks: tuple[str, ...], against: str, turns: Turns, page: PageOptions) -> None:
    """Measure quantised networks; writes docs/results/low-precision.md."""
    peers, found = against.split(","), list[Measured]()
    with tempfile.TemporaryDirectory(prefix="tilewright-low-") as name:
        for threads in turns.thread_counts:
            for network in networks or NETWORKS:
                measured = measure(network, peers, threads, turns, Path(name))
                found.append(measured)
                cells = {e: _ms(c.get("seconds")) for e, c in measured.cells.items()}
                note(f"{network}, {threads} thread(s): {cells}")
    parts = page_parts(found, peers)
    page.publish("low-precision", "Low precision", shows(found, peers), METHOD, parts, None)


if __name__ == "__main__":
    main()
