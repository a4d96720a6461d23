"""Products with weights of 4 bits against ONNX Runtime, against float32 and against memory: docs/results/few-bits.md.

    python -m benchmarks.few_bits
    python -m benchmarks.few_bits --rows 1 --no-save

The layers are those of the MLPs of a language model of half a billion weights, one after the other.
"""

import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
from onnx import ModelProto, helper, numpy_helper

import tilewright as tw
from benchmarks.interleave import interleave
from benchmarks.onnx_runtime import BoundOnnxRuntime
from benchmarks.options import PageOptions, Turns, page_options, turn_options
from benchmarks.results import table
from benchmarks.suite_results import OURS
from benchmarks.suite_tables import ratio_text, threads_text
from tilewright.cli.output import note
from tilewright.cli.peak import measure_limits
from tilewright.ops.contrib.quant_matmul import unpacked_array
from tilewright.support.affinity import pinned
from tilewright.support.turns import speedup
from tilewright.target.target import native

HIDDEN, INNER, LAYERS, BLOCK = 896, 4864, 12, 32
FLOATS, PEER = "float32", "ort"
SHOWS = """{lead} the speed of ONNX Runtime, and {bound} of the speed at which memory brings the weights."""
METHOD = f"""{LAYERS} pairs of MatMulNBits (4 bits, blocks of {BLOCK}, accuracy_level 4, no zero points), {HIDDEN} to
{INNER} and back, random weights that no cache holds, one process that is pinned to as many cores as threads. *float32*
is our own program of the same products with weights that were unpacked. All take turns; times are medians in
milliseconds, ratios have 95 % intervals over rounds. *of memory*: the bytes of codes and scales over our time, over
what the same cores read from memory, measured after it. *difference* is the largest from ONNX Runtime's results, over
the largest of these: both bring the rows to bytes."""


def layers(rows: int, *, is_packed: bool) -> ModelProto:
    random = np.random.default_rng(0)
    nodes: list[Any] = []
    weights: list[Any] = []
    value = "x"
    for n in range(2 * LAYERS):
        k, count = (HIDDEN, INNER) if n % 2 == 0 else (INNER, HIDDEN)
        codes = random.integers(0, 256, (count, k // BLOCK, BLOCK // 2)).astype(np.uint8)
        scales = random.uniform(0.2, 1.0, (count, k // BLOCK)).astype(np.float32) / (4 * k**0.5)
        made = f"y{n}"
        if is_packed:
            weights += [numpy_helper.from_array(codes, f"w{n}")]
            weights += [numpy_helper.from_array(scales.ravel(), f"s{n}")]
            given: dict[str, Any] = {"K": k, "N": count, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
            inputs = [value, f"w{n}", f"s{n}"]
            nodes.append(helper.make_node("MatMulNBits", inputs, [made], domain="com.microsoft", **given))
        else:
            whole = (unpacked_array(codes, 4).astype(np.float32) - 8) * scales[..., None]
            weights.append(numpy_helper.from_array(np.ascontiguousarray(whole.reshape(count, k).T), f"w{n}"))
            nodes.append(helper.make_node("MatMul", [value, f"w{n}"], [made]))
        value = made
    x, y = (helper.make_tensor_value_info(n, 1, [rows, HIDDEN]) for n in ("x", value))
    graph = helper.make_graph(nodes, "mlp", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def measure(rows: int, threads: int, turns: Turns, folder: Path) -> tuple[list[str], float, float]:
    """A line of the table, our speed over ONNX Runtime's, and the share of the speed of memory."""
    packed = layers(rows, is_packed=True)
    nbytes = sum(len(t.raw_data) for t in packed.graph.initializer)
    path = folder / "packed.onnx"
    path.write_bytes(packed.SerializeToString())
    feeds = {"x": np.random.default_rng(1).standard_normal((rows, HIDDEN)).astype(np.float32)}
    with pinned(threads):
        ours, floats = (
            tw.load(m, threads=threads, cache=False) for m in (packed, layers(rows, is_packed=False))
        )
        peer = BoundOnnxRuntime(str(path), threads)
        (wanted,), (got,) = peer(feeds).values(), ours.run(feeds).values()
        difference = float(np.abs(got - wanted).max() / np.abs(wanted).max())
        engines = {OURS: ours.bind(feeds).run, PEER: peer.bind(feeds), FLOATS: floats.bind(feeds).run}
        times = interleave(engines, rounds=turns.rounds, seconds=turns.seconds)
        rate = measure_limits(native(), threads).byte_rate
        ours.close()
        floats.close()
    share = nbytes / times[OURS].median / rate
    against = {n: speedup(times[OURS], times[n]) for n in (PEER, FLOATS)}
    medians = [f"{times[n].median * 1e3:.2f}" for n in (OURS, PEER, FLOATS)]
    ratios = [ratio_text(against[n]) for n in (PEER, FLOATS)]
    return [str(rows), *medians, *ratios, f"{share:.2f}", f"{difference:.1e}"], against[PEER].value, share


@click.command()
@click.option("--rows", "counts", multiple=True, type=click.IntRange(1), default=(1, 8, 128))
@turn_options(rounds=9, seconds=0.3)
@page_options("few-bits")
def main(counts: tuple[int, ...], turns: Turns, page: PageOptions) -> None:
    """Measure products with weights of 4 bits; writes docs/results/few-bits.md."""
    parts: list[str] = []
    leads: list[str] = []
    bounds: list[str] = []
    columns = ("rows", OURS, PEER, FLOATS, f"{PEER} / ours", f"{FLOATS} / ours", "of memory", "difference")
    with tempfile.TemporaryDirectory(prefix="tilewright-few-") as name:
        for threads in turns.thread_counts:
            lines: list[list[str]] = []
            for rows in counts:
                line, ratio, share = measure(rows, threads, turns, Path(name))
                note(" ".join(line))
                lines.append(line)
                if rows == counts[0]:
                    leads.append(f"{ratio:.2f} times ({threads_text(threads).lower()})")
                    bounds.append(f"{share:.2f}")
            parts += [f"## {threads_text(threads)}", table(columns, lines)]
    lead = f"{counts[0]} row(s) by weights of 4 bits: {' and '.join(leads)}"
    shows = SHOWS.format(lead=lead, bound=" and ".join(bounds))
    page.publish("few-bits", "Weights of 4 bits", shows, METHOD, parts, None)


if __name__ == "__main__":
    main()
