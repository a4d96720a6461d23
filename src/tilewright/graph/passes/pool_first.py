"""Average before mixing channels: a pool behind a convolution of one tap moves before it.

    c = Conv[window=1×1](x, w, b)                           p = AveragePool[window=(2×2, stride 2)](x)
    y = AveragePool[window=(2×2, stride 2)](c)      →       y = Conv[window=1×1](p, w, b)

One weighs pixels and the other one channels, so they can be done in either order; then the convolution has a quarter of
the pixels. Weights of a window add up to one, so the bias is not changed by it; but not where zeros around the image
count, so there must be none then. It happens if nobody else needs `c`, and if it saves more multiply-adds than pooling other
channels adds.
"""

from collections.abc import Sequence
from math import prod

from tilewright.graph.graph import Graph, Node, Value, users
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.pool import AveragePool
from tilewright.ops.core.window import Window


def pool_first(graph: Graph) -> Graph:
    readers = users(graph)

    def swap(state: Sweep, node: Node) -> Sequence[Value] | None:
        if not isinstance(node.op, AveragePool):
            return None
        (c,) = node.inputs
        conv = state.producer(c)
        shared = c in graph.outputs or len(readers.get(c, ())) != 1
        if conv is None or shared or not isinstance(conv.op, Conv) or not _is_one_tap(conv.op.window):
            return None
        x, w, *bias = conv.inputs
        if (bias and _counts_padding(node.op)) or not _saves(node, conv):
            return None
        pooled = state.add_piece(node.op, (x,), node)
        return state.add(conv.op, (pooled, w, *bias), node)

    return sweep(graph, swap)


def _is_one_tap(window: Window) -> bool:
    return {*window.kernel, *window.strides} == {1} and not any((*window.before, *window.after))


def _counts_padding(pool: AveragePool) -> bool:
    return pool.include_pad and any((*pool.window.before, *pool.window.after))


def _saves(pool: Node, conv: Node) -> bool:
    """Multiply-adds of the convolution, against additions of windows over other channels than before."""
    assert isinstance(pool.op, AveragePool)
    (_, taken, *before), (_, given, *after) = conv.inputs[0].shape, pool.outputs[0].shape
    mixed = conv.inputs[1].shape[1]
    saved = given * mixed * (prod(before) - prod(after))
    return saved > (taken - given) * prod(pool.op.window.kernel) * prod(after)
