"""The least that a token costs: reading every weight that is multiplied with it once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from onnx import GraphProto, ModelProto, numpy_helper

from tilewright.cli.peak import best_seconds, read_loop
from tilewright.support.affinity import pinned
from tilewright.target.target import native

_SAME_VALUES = ("Transpose", "Identity", "Reshape", "Cast")  # ops that hand a weight on


def weight_bytes(model: Path) -> int:
    """Of the initializers that MatMul and Gemm read. Tables of which a token reads a row do not count."""
    return read_weights(ModelProto.FromString(model.read_bytes()).graph)


def read_weights(graph: GraphProto) -> int:
    origin = {t.name: t.name for t in graph.initializer}
    read: set[str] = set()
    for node in graph.node:
        if node.op_type in _SAME_VALUES and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type in ("MatMul", "Gemm"):
            read |= {origin[n] for n in node.input if n in origin}
    return sum(numpy_helper.to_array(t).nbytes for t in graph.initializer if t.name in read)


def read_seconds(nbytes: int, threads: int, seconds: float = 1.0) -> float:
    """The quickest time in which so many bytes are read again and again, by so many threads: from the caches, as far as
    they fit there.
    """
    with pinned(threads), ThreadPoolExecutor(threads) as pool:
        loops = [read_loop(native(), nbytes // threads) for _ in range(threads)]

        def together() -> None:
            for done in [pool.submit(loop.run) for loop in loops]:
                done.result()

        found = best_seconds(together, seconds)
    return found * nbytes / sum(loop.nbytes for loop in loops)
