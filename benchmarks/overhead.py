"""What a call costs: a model of one Add on 16 floats, where there is next to nothing to compute."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.interleave import interleave
from benchmarks.onnx_runtime import BoundOnnxRuntime
from benchmarks.results import table, write
from examples.models import Net
from tilewright.cli.feeds import make_feeds
from tilewright.compiler import compile as compile_model
from tilewright.support.affinity import pinned

CALLS = 1000  # of a timed batch: the clock costs as much as a tenth of a call

METHOD = """One Add of two inputs of 16 floats, one thread, pinned. *bound*: arrays fixed beforehand (`bind`,
ONNX Runtime's I/O binding); *run*: arrays handed over with each call. Engines take turns in {rounds} rounds
of batches of {calls} calls; medians."""


def batch(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            call()

    return run


@click.command()
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1))
def main(rounds: int) -> None:
    """Measure call overhead; writes docs/results/overhead.md."""
    net = Net(0)
    net.op("Add", "a", "b")
    model = net.model("add", {"a": (16,), "b": (16,)}, {"y": (16,)})
    with tempfile.TemporaryDirectory() as folder, pinned(1):
        path = Path(folder) / "add.onnx"
        path.write_bytes(model.SerializeToString())
        session = compile_model(path).session(1)
        feeds = make_feeds(session.inputs, {})
        peer = BoundOnnxRuntime(str(path), 1)
        measured = interleave(
            {
                "tilewright, bound": batch(session.bind(feeds).run),
                "onnxruntime, bound": batch(peer.bind(feeds)),
                "tilewright, run": batch(lambda: session.run(feeds)),
                "onnxruntime, run": batch(lambda: peer(feeds)),
            },
            rounds=rounds,
            seconds=0.05,
        )
    rows = [
        [name, f"{series.median / CALLS * 1e6:.2f}", f"{100 * series.spread:.0f} %"]
        for name, series in measured.items()
    ]
    text = table(("call", "µs", "noise"), rows)
    click.echo(text)
    took = {name: cost for name, cost, _ in rows}
    shows = (
        f"A call of a bound program takes {took['tilewright, bound']} µs, ONNX Runtime's "
        f"{took['onnxruntime, bound']} µs; with arrays handed over {took['tilewright, run']} and "
        f"{took['onnxruntime, run']} µs."
    )
    path = write("overhead", "What a call costs", shows, METHOD.format(rounds=rounds, calls=CALLS), text)
    click.echo(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
