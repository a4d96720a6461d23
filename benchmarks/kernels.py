"""Single operators as a fraction of the machine's multiply-add peak, which is measured in the same rounds."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from onnx import ModelProto

from benchmarks.results import table, write
from examples.models import Net
from tilewright.cli.difference import compare, worst
from tilewright.cli.feeds import make_feeds
from tilewright.cli.machine import machine, pinned
from tilewright.cli.output import progress_bar
from tilewright.cli.peak import fma_loop
from tilewright.cli.peers import OnnxRuntime
from tilewright.cli.timing import Ratio, Series, interleave, median_of_rounds, speedup
from tilewright.compiler import compile as compile_model

METHOD = """One operator as an ONNX model, float32, untuned; weights are constants, `gemm` multiplies two
inputs. In each of {rounds} rounds the operator, ONNX Runtime and a loop of multiply-adds take turns on the
same pinned cores. *of peak* is the operator's rate at its quickest in each round (the median of the rounds,
with its 95 % bootstrap interval) over the limit: the threads times what one core's loop reached at its
quickest, for a limit is not an average. Time and rate are medians of all runs. *against ONNX Runtime*: its
time over ours, by the medians of each round: above 1 is faster. A convolution counts the operations of its
definition, whatever algorithm was chosen. *error* is the largest difference from ONNX Runtime's result over
its largest value."""


@dataclass(frozen=True, slots=True)
class Case:
    flops: int
    build: Callable[[], ModelProto]


def gemm(m: int, n: int, k: int) -> Case:
    """Both operands are inputs."""

    def build() -> ModelProto:
        net = Net(0)
        net.op("MatMul", "a", "b")
        return net.model("gemm", {"a": (m, k), "b": (k, n)}, {"y": (m, n)})

    return Case(2 * m * n * k, build)


def dense(rows: int, n_in: int, n_out: int) -> Case:
    """A linear layer with bias."""

    def build() -> ModelProto:
        net = Net(0)
        weight, bias = net.normal("weight", (n_out, n_in), n_in**-0.5), net.normal("bias", (n_out,), 0.1)
        net.op("Gemm", "x", weight, bias, transB=1)
        return net.model("dense", {"x": (rows, n_in)}, {"y": (rows, n_out)})

    return Case(2 * rows * n_in * n_out, build)


def conv(kernel: int, c_in: int, c_out: int, size: int, stride: int = 1, groups: int = 1) -> Case:
    """A 2-D convolution with bias on a square image, padded to keep its size (but for the stride)."""
    out = (size - 1) // stride + 1
    per_output = c_in // groups * kernel * kernel

    def build() -> ModelProto:
        net = Net(0)
        weight = net.normal("weight", (c_out, c_in // groups, kernel, kernel), per_output**-0.5)
        net.op(
            "Conv",
            "x",
            weight,
            net.normal("bias", (c_out,), 0.1),
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[kernel // 2] * 4,
            group=groups,
        )
        return net.model("conv", {"x": (1, c_in, size, size)}, {"y": (1, c_out, out, out)})

    return Case(2 * c_out * out * out * per_output, build)


CASES = {
    "gemm_512": gemm(512, 512, 512),
    "gemm_1024": gemm(1024, 1024, 1024),
    "dense_128x768x3072": dense(128, 768, 3072),
    "dense_128x3072x768": dense(128, 3072, 768),
    "dense_1x1024x1024": dense(1, 1024, 1024),
    "c2d_stem_7x7s2_3_64_224": conv(7, 3, 64, 224, stride=2),
    "c2d_3x3_64_64_56": conv(3, 64, 64, 56),
    "c2d_3x3_128_128_28": conv(3, 128, 128, 28),
    "c2d_3x3_256_256_14": conv(3, 256, 256, 14),
    "c2d_3x3_512_512_7": conv(3, 512, 512, 7),
    "c2d_3x3s2_128_128_56": conv(3, 128, 128, 56, stride=2),
    "c2d_1x1_64_256_56": conv(1, 64, 256, 56),
    "c2d_1x1_256_64_56": conv(1, 256, 64, 56),
    "c2d_1x1_1024_256_14": conv(1, 1024, 256, 14),
    "dep_3x3_32_112": conv(3, 32, 32, 112, groups=32),
    "dep_3x3_576_14": conv(3, 576, 576, 14, groups=576),
}


@dataclass(frozen=True, slots=True)
class Measured:
    ours: Series
    of_peak: Ratio
    against_ort: Ratio
    error: float


def measure_case(case: Case, threads: int, rounds: int, seconds: float) -> Measured:
    with tempfile.TemporaryDirectory() as folder, pinned(threads):
        path = Path(folder) / "kernel.onnx"
        path.write_bytes(case.build().SerializeToString())
        session = compile_model(path).session(threads)
        feeds = make_feeds(session.inputs, {})
        peer = OnnxRuntime(str(path), threads)
        error = worst(compare(session.run(feeds), peer(feeds)))
        loop = fma_loop(machine().target, seconds=0.001)  # short, to fit between disturbances
        measured = interleave(
            {"ours": session.bind(feeds).run, "peak": loop.run, "ort": peer.bind(feeds)},
            rounds=rounds,
            seconds=seconds,
        )
    ours = measured["ours"]
    limit = threads * loop.flops / min(measured["peak"].round_bests)
    of_peak = median_of_rounds([case.flops / best / limit for best in ours.round_bests])
    return Measured(ours, of_peak, speedup(ours, measured["ort"]), error)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option(
    "--threads", "thread_counts", multiple=True, type=click.IntRange(1), help="May be repeated [1 and 2]."
)
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=0.1, show_default=True, help="Of each turn.")
@click.option("--save/--no-save", default=True, show_default=True, help="Write docs/results/kernels.md.")
def main(
    names: tuple[str, ...], thread_counts: tuple[int, ...], rounds: int, seconds: float, save: bool
) -> None:
    """Measure NAMES (all unless given)."""
    counts = thread_counts or tuple(n for n in (1, 2) if n <= len(machine().affinity))
    chosen = names or tuple(CASES)
    parts: list[str] = []
    with progress_bar() as progress:
        for threads in counts:
            rows: list[list[str]] = []
            for number, name in enumerate(chosen):
                case = CASES[name]
                found = measure_case(case, threads, rounds, seconds)
                rows.append(
                    [
                        name,
                        f"{found.ours.median * 1e3:.3f}",
                        f"{case.flops / found.ours.median / 1e9:.1f}",
                        f"{found.of_peak.value:.2f} [{found.of_peak.low:.2f}, {found.of_peak.high:.2f}]",
                        str(found.against_ort),
                        f"{found.error:.0e}",
                    ]
                )
                if progress is not None:
                    progress(f"{threads} thread(s)", number + 1, len(chosen))
            columns = ("operator", "ms", "GFLOP/s", "of peak", "against ONNX Runtime", "error")
            parts += [f"## {threads} thread(s)", table(columns, rows)]
    click.echo("\n\n".join(parts))
    if save:
        path = write("kernels", "Single operators", METHOD.format(rounds=rounds), *parts)
        click.echo(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
