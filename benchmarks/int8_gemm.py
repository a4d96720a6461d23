"""Products of bytes against those of floats, and convolutions of bytes against ONNX Runtime: docs/results/int8_gemm.md.

    python -m benchmarks.int8_gemm
    python -m benchmarks.int8_gemm --target x86-64-v3 --no-save

A target is what programs are compiled for: what a processor without instructions for bytes would run, this one runs,
too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from benchmarks.interleave import interleave
from benchmarks.onnx_runtime import BoundOnnxRuntime
from benchmarks.options import PageOptions, Turns, page_options, turn_options
from benchmarks.results import table
from benchmarks.suite_results import geometric_mean
from benchmarks.suite_tables import ratio_text
from tilewright.cli.output import note
from tilewright.support.affinity import pinned
from tilewright.support.turns import Ratio, speedup

FLOATS = "float32"
TARGETS = ("native", "x86-64-v4", "x86-64-v3")
BOUNDS = {"any weights": 128, "weights up to 64": 64}  # magnitudes that weights stay below
# Channels of the image, its height and width, filters, their size, and stride: layers of ResNet-50 and MobileNetV2.
CONVOLUTIONS = (
    (64, 56, 64, 3, 1),
    (64, 56, 256, 1, 1),
    (128, 28, 128, 3, 1),
    (256, 28, 512, 1, 2),
    (256, 14, 256, 3, 1),
    (1024, 14, 256, 1, 1),
    (512, 7, 2048, 1, 1),
    (96, 56, 24, 1, 1),
)
METHOD = """One thread, pinned; all take turns; times are medians in milliseconds, ratios have 95 % intervals over
rounds. *Products*: u8 · s8 → s32 of {size} x {size} x {size} with constant weights (MatMulInteger), against the float32
MatMul of this size, both ours, untuned, for three targets: this processor, AVX-512 and AVX2 without instructions for
bytes. Results equal those of numpy in 32 bits, with both ends of the ranges among the operands. *Convolutions*:
QLinearConv with u8 activations, a zero point and s8 weights with a scale for each channel, for this processor; results
differ from ONNX Runtime's by one at most, where a sum is half way between two numbers."""


def float_product(size: int) -> ModelProto:
    weights = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    return _model(
        "MatMul", ["x", "w"], {"w": weights}, [size, size], TensorProto.FLOAT, [size, size], TensorProto.FLOAT
    )


def byte_product(size: int, bound: int) -> tuple[ModelProto, Any]:
    """The model, and its weights: the first columns are at the ends of the range."""
    weights = np.random.default_rng(0).integers(-bound, bound, (size, size)).astype(np.int8)
    weights[:, 0], weights[:, 1] = -bound, bound - 1
    shape = [size, size]
    return _model("MatMulInteger", ["x", "w"], {"w": weights}, shape, 2, shape, TensorProto.INT32), weights


def convolution(channels: int, size: int, filters: int, kernel: int, stride: int) -> ModelProto:
    random = np.random.default_rng(1)
    weights = {
        "xs": np.array(0.05, np.float32),
        "xz": np.array(120, np.uint8),
        "w": random.integers(-127, 128, (filters, channels, kernel, kernel)).astype(np.int8),
        "ws": random.uniform(0.001, 0.01, filters).astype(np.float32),
        "wz": np.zeros(filters, np.int8),
        "ys": np.array(0.2 * channels**0.5 * kernel, np.float32),
        "yz": np.array(110, np.uint8),
        "b": random.integers(-9999, 9999, filters).astype(np.int32),
    }
    pad, out = kernel // 2, -(-size // stride)
    attributes = {"pads": [pad] * 4, "strides": [stride] * 2, "kernel_shape": [kernel] * 2}
    x, y = [1, channels, size, size], [1, filters, out, out]
    return _model("QLinearConv", ["x", *weights], weights, x, 2, y, 2, attributes)


def _model(
    operator: str,
    inputs: Sequence[str],
    weights: dict[str, Any],
    x: Sequence[int],
    given: int,
    y: Sequence[int],
    made: int,
    attributes: dict[str, Any] | None = None,
) -> ModelProto:
    node = helper.make_node(operator, inputs, ["y"], **(attributes or {}))
    arrays = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    values = (helper.make_tensor_value_info("x", given, x), helper.make_tensor_value_info("y", made, y))
    graph = helper.make_graph([node], "g", [values[0]], [values[1]], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure_products(size: int, target: str, turns: Turns) -> tuple[list[str], dict[str, Ratio]]:
    """A line of the table, and how much quicker bytes are."""
    random = np.random.default_rng(2)
    x = random.integers(0, 256, (size, size)).astype(np.uint8)
    x[:2] = 255
    floats = tw.load(float_product(size), threads=1, cache=False, target=target)
    runs: dict[str, Callable[[], object]] = {FLOATS: floats.bind({"x": x.astype(np.float32)}).run}
    sessions = [floats]
    for name, bound in BOUNDS.items():
        model, weights = byte_product(size, bound)
        session = tw.load(model, threads=1, cache=False, target=target)
        if not np.array_equal(session.run({"x": x})["y"], x.astype(np.int32) @ weights.astype(np.int32)):
            raise SystemExit(f"{target}, {name}: the product is wrong")
        sessions.append(session)
        runs[name] = session.bind({"x": x}).run
    times = interleave(runs, rounds=turns.rounds, seconds=turns.seconds)
    for session in sessions:
        session.close()
    ratios = {name: speedup(times[name], times[FLOATS]) for name in BOUNDS}
    cells = [target, f"{times[FLOATS].median * 1e3:.2f}"]
    for name in BOUNDS:
        cells += [f"{times[name].median * 1e3:.2f}", ratio_text(ratios[name])]
    return cells, ratios


def measure_convolution(sizes: tuple[int, int, int, int, int], turns: Turns) -> tuple[list[str], Ratio]:
    model = convolution(*sizes)
    channels, size, filters, kernel, stride = sizes
    feeds = {"x": np.random.default_rng(3).integers(0, 256, (1, channels, size, size)).astype(np.uint8)}
    ours, peer = tw.load(model, threads=1, cache=False), BoundOnnxRuntime(model.SerializeToString(), 1)
    (wanted,), (found,) = peer(feeds).values(), ours.run(feeds).values()
    if np.abs(found.astype(np.int16) - wanted.astype(np.int16)).max() > 1:
        raise SystemExit(f"{sizes}: the convolution is wrong")
    runs = {"tilewright": ours.bind(feeds).run, "ort": peer.bind(feeds)}
    times = interleave(runs, rounds=turns.rounds, seconds=turns.seconds)
    ours.close()
    ratio = speedup(times["tilewright"], times["ort"])
    name = f"{channels}x{size}x{size}, {filters} of {kernel}x{kernel}, stride {stride}"
    return [name, *(f"{times[n].median * 1e3:.3f}" for n in runs), ratio_text(ratio)], ratio


@click.command()
@click.option("--size", default=1024, show_default=True, help="Of products.")
@click.option("--target", "targets", multiple=True, default=TARGETS, help="May be repeated.")
@turn_options(rounds=9, seconds=0.2)
@page_options("int8_gemm")
def main(size: int, targets: Sequence[str], turns: Turns, page: PageOptions) -> None:
    """Measure products and convolutions of bytes; writes docs/results/int8_gemm.md."""
    lines: list[list[str]] = []
    said: list[str] = []
    with pinned(1):
        for target in targets:
            line, ratios = measure_products(size, target, turns)
            note(" ".join(line))
            lines.append(line)
            said.append(f"{' and '.join(f'{ratios[n].value:.2f}' for n in BOUNDS)} ({target})")
        layers = [measure_convolution(sizes, turns) for sizes in CONVOLUTIONS]
    columns = ("target", FLOATS, *(c for n in BOUNDS for c in (n, f"{FLOATS} / {n}")))
    others = ("QLinearConv", "tilewright", "ort", "ort / ours")
    mean = geometric_mean([ratio.value for _, ratio in layers])
    shows = (
        f"Products of bytes run at {', '.join(said)} times the speed of those of floats, with {' and '.join(BOUNDS)};"
        f" convolutions of bytes at {mean:.2f} times the speed of ONNX Runtime's."
    )
    parts = [
        "## Products",
        table(columns, lines),
        "## Convolutions",
        table(others, [line for line, _ in layers]),
    ]
    page.publish("int8_gemm", "Products of bytes", shows, METHOD.format(size=size), parts, None)


if __name__ == "__main__":
    main()
