"""Networks in half precision against themselves in float32: docs/results/halves.md.

python -m benchmarks.halves                   # networks of $BENCH_HOME/models
python -m benchmarks.halves minilm --threads 1 --no-save
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import numpy as np
from onnx import ModelProto

import tilewright as tw
from benchmarks.half_models import in_halves, with_half_weights, with_rows
from benchmarks.interleave import interleave
from benchmarks.options import PageOptions, Turns, page_options, turn_options
from benchmarks.quantized_models import suite_inputs
from benchmarks.real_files import bench_home
from benchmarks.results import table
from benchmarks.suite_results import geometric_mean
from benchmarks.suite_tables import ratio_text, threads_text
from tilewright.cli.output import note
from tilewright.runtime.dtypes import numpy_dtype
from tilewright.support.affinity import pinned
from tilewright.support.turns import Ratio, speedup

NETWORKS = ("resnet50", "mobilenetv2", "bert_base", "minilm")
ONE_ROW = "bert_base, one row"
FLOATS = "float32"
_TOKENS = 128  # that the suite's BERT is made for
KINDS: Mapping[str, Callable[[ModelProto], ModelProto]] = {
    "float16": lambda m: in_halves(m, "f16"),
    "bfloat16": lambda m: in_halves(m, "bf16"),
    "float16 weights": lambda m: with_half_weights(m, "f16"),
    "bfloat16 weights": lambda m: with_half_weights(m, "bf16"),
}
METHOD = """The networks of the benchmark suite with random weights. *float16* and *bfloat16*: all of the network in
this type, with its inputs and outputs; *weights*: those of products alone, which are cast to float32 in the model. All
are our own programs, untuned, in one process that is pinned to as many cores as threads; they take turns. Times are
medians in milliseconds, ratios *float32 / halves* have 95 % intervals over rounds. *difference* is the largest from the
results of float32, over the largest of these. *one row*: BERT-base with a single token."""


def measure(name: str, threads: int, turns: Turns) -> tuple[list[str], dict[str, Ratio]]:
    path = bench_home() / "models" / f"{name.split(',')[0]}.onnx"
    if not path.exists():
        raise click.ClickException(
            f"{path.name} is not in the models of $BENCH_HOME: make_models.py makes it"
        )
    model, inputs = ModelProto.FromString(path.read_bytes()), suite_inputs(path)
    if name == ONE_ROW:
        model, inputs = with_rows(model, _TOKENS, 1), {n: v[:, :1] for n, v in inputs.items()}
    engines: dict[str, Callable[[], object]] = {}
    results: dict[str, Any] = {}
    with pinned(threads):
        sessions = {k: tw.load(make(model), threads=threads, cache=False) for k, make in KINDS.items()}
        sessions[FLOATS] = tw.load(model, threads=threads, cache=False)
        for kind, session in sessions.items():
            types = {i.name: numpy_dtype(str(i.dtype)) for i in session.inputs}
            feeds = {n: v.astype(types[n]) for n, v in inputs.items()}
            results[kind] = next(iter(session.run(feeds).values())).astype(np.float32)
            engines[kind] = session.bind(feeds).run
        times = interleave(engines, rounds=turns.rounds, seconds=turns.seconds)
        for session in sessions.values():
            session.close()
    wanted = results[FLOATS]
    ratios = {k: speedup(times[k], times[FLOATS]) for k in KINDS}
    cells = [name, f"{times[FLOATS].median * 1e3:.2f}"]
    for k in KINDS:
        difference = np.abs(results[k] - wanted).max() / np.abs(wanted).max()
        cells += [f"{times[k].median * 1e3:.2f}", ratio_text(ratios[k]), f"{difference:.0e}"]
    return cells, ratios


def shows(found: Mapping[int, Mapping[str, Mapping[str, Ratio]]]) -> str:
    texts: list[str] = []
    for threads, networks in found.items():
        each = [geometric_mean([r[k].value for n, r in networks.items() if n != ONE_ROW]) for k in KINDS]
        said = ", ".join(f"{kind} {value:.2f}" for kind, value in zip(KINDS, each, strict=True))
        texts.append(f"{said} ({threads_text(threads).lower()})")
    text = f"In halves, networks run at this times the speed of float32: {'; '.join(texts)}."
    rows = [n[ONE_ROW]["bfloat16 weights"].value for n in found.values() if ONE_ROW in n]
    if rows:
        text += f" BERT-base with bfloat16 weights and one row: {' and '.join(f'{r:.2f}' for r in rows)}."
    return text


@click.command()
@click.argument("networks", nargs=-1)
@turn_options(rounds=7, seconds=0.3)
@page_options("halves")
def main(networks: Sequence[str], turns: Turns, page: PageOptions) -> None:
    """Measure networks in half precision; writes docs/results/halves.md."""
    columns = ["network", FLOATS, *(c for k in KINDS for c in (k, f"{FLOATS} / {k}", "difference"))]
    parts: list[str] = []
    found: dict[int, dict[str, dict[str, Ratio]]] = {}
    for threads in turns.thread_counts:
        lines: list[list[str]] = []
        found[threads] = {}
        for name in networks or (*NETWORKS, ONE_ROW):
            line, found[threads][name] = measure(name, threads, turns)
            note(" ".join(line))
            lines.append(line)
        parts += [f"## {threads_text(threads)}", table(columns, lines)]
    page.publish("halves", "Half precision", shows(found), METHOD, parts, None)


if __name__ == "__main__":
    main()
