"""Networks that `tilewright quantize` brought to fewer bits within 1 %: docs/results/quantize.md.

python -m benchmarks.quantize                 # networks of $BENCH_HOME/models
python -m benchmarks.quantize resnet18 --threads 1 --no-save
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import click

import tilewright as tw
from benchmarks.options import PageOptions, page_options, parse_thread_counts
from benchmarks.quantized_models import samples_like, suite_inputs
from benchmarks.real_files import bench_home
from benchmarks.results import table
from benchmarks.suite_results import geometric_mean
from benchmarks.suite_tables import ratio_text, threads_text
from tilewright.cli.output import note, shape_text
from tilewright.cli.peers import OnnxRuntimePeer
from tilewright.cli.quantize import summary
from tilewright.quantize.error import relative_error
from tilewright.quantize.forms import LayerForm
from tilewright.quantize.quantized_model import QuantizedModel
from tilewright.support.affinity import pinned

NETWORKS = ("resnet18", "resnet50", "mobilenetv2", "bert_base", "minilm")
SAMPLES = 8
METHOD = f"""The networks of the benchmark suite with random weights, {SAMPLES} samples like the input that is kept
beside each, of which one of four is held out. *error* is that of the worst output on these, as the page on
[quantising](../quantize.md) says; *error in ort* the same of the file in ONNX Runtime, against the model in floats
there. *float32 / quantised* are our own programs of both, untuned, in turns in one process that is pinned to as many
cores as threads, with 95 % intervals over rounds. Times of layers are of one profile each; *took* is all of
quantising."""


@dataclass(frozen=True, slots=True)
class Measured:
    network: str
    threads: int
    made: QuantizedModel
    error_in_ort: float
    seconds: float


def measure(network: str, bound: float, threads: int) -> Measured:
    path = bench_home() / "models" / f"{network}.onnx"
    if not path.exists():
        raise click.ClickException(
            f"{path.name} is not in the models of $BENCH_HOME: make_models.py makes it"
        )
    samples = samples_like(suite_inputs(path), SAMPLES)
    start = time.perf_counter()
    with pinned(threads):
        made = tw.quantize(path, samples, bound, threads=threads)
    seconds = time.perf_counter() - start
    theirs, floats = (
        OnnxRuntimePeer(m, threads) for m in (made.model.SerializeToString(), path.read_bytes())
    )
    error = relative_error((theirs(s), floats(s)) for s in samples[3::4])
    return Measured(network, threads, made, error, seconds)


def page_parts(found: Sequence[Measured]) -> list[str]:
    parts: list[str] = []
    for threads in sorted({m.threads for m in found}):
        here = [m for m in found if m.threads == threads]
        columns = ("network", "error", "error in ort", "float32, ms", "quantised, ms", "float32 / quantised")
        more = ("layers", "took, s")
        parts += [f"## {threads_text(threads)}", table((*columns, *more), [_row(m) for m in here])]
    fewest = min(m.threads for m in found)
    for m in found:
        if m.threads == fewest:
            parts += [f"## Layers of {m.network}, {threads_text(fewest).lower()}", _layers(m)]
    return parts


def _row(m: Measured) -> list[str]:
    made = m.made
    return [
        m.network,
        f"{made.error:.2%}",
        f"{m.error_in_ort:.2%}",
        f"{made.float_times.median * 1e3:.2f}",
        f"{made.times.median * 1e3:.2f}",
        ratio_text(made.speedup),
        ", ".join(f"{n} {form}" for form, n in made.counts.items()),
        f"{m.seconds:.0f}",
    ]


def _layers(m: Measured) -> str:
    rows = [
        [
            c.name,
            c.operator,
            shape_text(c.shape),
            c.form.value,
            "" if c.form is LayerForm.FLOAT else f"{c.error:.3%}",
            f"{c.float_seconds * 1e6:.0f}",
            f"{c.seconds * 1e6:.0f}",
            c.why,
        ]
        for c in m.made.choices
    ]
    others = Counter(m.made.others.values())
    rest = "".join(f"\n\n{n} more stay as they are: {why}." for why, n in others.items())
    columns = ("layer", "operator", "weights", "form", "error alone", "float32, µs", "now, µs", "why")
    return table(columns, rows) + rest


def shows(found: Sequence[Measured], bound: float) -> str:
    texts = [
        f"{geometric_mean([m.made.speedup.value for m in here]):.2f} times ({threads_text(n).lower()})"
        for n in sorted({m.threads for m in found})
        if (here := [m for m in found if m.threads == n])
    ]
    worst = max(m.made.error for m in found)
    return (
        f"Within a bound of {bound:.0%} on the error of the whole network, networks run at {', '.join(texts)} the"
        f" speed of our own float32; the largest error that was measured is {worst:.2%}."
    )


@click.command()
@click.argument("networks", nargs=-1)
@click.option("--error", "bound", default=0.01, show_default=True, help="The bound.")
@click.option(
    "--threads",
    "thread_counts",
    multiple=True,
    type=click.IntRange(1),
    callback=parse_thread_counts,
    help="May be repeated [1 and 2].",
)
@page_options("quantize")
def main(networks: tuple[str, ...], bound: float, thread_counts: tuple[int, ...], page: PageOptions) -> None:
    """Quantise networks; writes docs/results/quantize.md."""
    found: list[Measured] = []
    for threads in thread_counts:
        for network in networks or NETWORKS:
            found.append(measure(network, bound, threads))
            note(f"{network}: {summary(found[-1].made)}\n")
    page.publish("quantize", "Quantising", shows(found, bound), METHOD, page_parts(found), None)


if __name__ == "__main__":
    main()
