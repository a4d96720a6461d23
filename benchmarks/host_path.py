"""What the host adds to native code: a loop whose body is one Add on 16 floats, and the same Add called alone."""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import numpy as np
from onnx import ModelProto, TensorProto, helper

from benchmarks.onnx_runtime import BoundOnnxRuntime
from benchmarks.results import table, write
from tilewright.api import load
from tilewright.support.affinity import pinned
from tilewright.support.turns import take_turns

TIMES = 1000  # iterations
_F32, _I64, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

METHOD = """A Loop of {times} iterations whose body is one Add of 16 floats, one thread, pinned, against {times}
calls of a program of that Add alone. *the host's part* is what an iteration costs beyond such a call. CPU time of the
calling thread, so that others on the machine matter little; engines take turns in {rounds} rounds; medians."""


def _model(nodes: list[object], takes_times: bool) -> ModelProto:
    info = helper.make_tensor_value_info
    inputs = [info("n", _I64, [])] if takes_times else []
    inputs += [info("x", _F32, [16]), info("w", _F32, [16])]
    graph = helper.make_graph(nodes, "host_path", inputs, [info("y", _F32, [16])])  # pyright: ignore
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def loop() -> ModelProto:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "w"], ["v2"]), helper.make_node("Identity", ["going"], ["on"])],
        "body",
        [info("i", _I64, []), info("going", _BOOL, []), info("v", _F32, [16])],
        [info("on", _BOOL, []), info("v2", _F32, [16])],
    )
    return _model([helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)], takes_times=True)


def alone() -> ModelProto:
    return _model([helper.make_node("Add", ["x", "w"], ["y"])], takes_times=False)


def _turn(run: Callable[[], object]) -> tuple[float]:
    start = time.thread_time()
    run()
    return (time.thread_time() - start,)


@click.command()
@click.option("--rounds", default=31, show_default=True, type=click.IntRange(1))
def main(rounds: int) -> None:
    """Measure the host's part in a loop; writes docs/results/host-path.md."""
    feeds = {"x": np.zeros(16, np.float32), "w": np.ones(16, np.float32)}
    looped = {"n": np.array(TIMES), **feeds}
    with tempfile.TemporaryDirectory() as folder, pinned(1):
        path = Path(folder) / "loop.onnx"
        path.write_bytes(loop().SerializeToString())
        peer = BoundOnnxRuntime(str(path), 1)
        with load(path, threads=1) as session, load(alone(), threads=1) as program:

            def calls() -> None:
                for _ in range(TIMES):
                    program.run(feeds)

            runs: dict[str, Callable[[], object]] = {
                "tilewright, call alone": calls,
                "tilewright, iteration": lambda: session.run(looped),
                "onnxruntime, iteration": lambda: peer(looped),
            }
            for run in runs.values():
                run()  # compiled by now
            measured = take_turns({n: partial(_turn, run) for n, run in runs.items()}, rounds, pause=0.0)
    times = {name: found.median / TIMES * 1e6 for name, found in measured.items()}
    host = times["the host's part"] = times["tilewright, iteration"] - times["tilewright, call alone"]
    text = table(("what", "µs"), [[name, f"{t:.1f}"] for name, t in times.items()])
    click.echo(text)
    shows = (
        f"An iteration of a Loop that the host runs costs {host:.0f} µs beyond its native code; "
        f"ONNX Runtime's takes {times['onnxruntime, iteration']:.1f} µs in all."
    )
    method = METHOD.format(times=TIMES, rounds=rounds)
    written = write("host-path", "What the host adds to native code", shows, method, text)
    click.echo(f"\nwritten to {written}")


if __name__ == "__main__":
    main()
