"""Fold a batch norm with stored statistics into the weights of the layer before it.

    c = Conv(x, w, b)
    y = BatchNormalization(c, gain, bias, mean, variance)   →   y = Conv(x, w · s, (b - mean) · s + bias)

where s = gain / sqrt(variance + epsilon) per channel. Weights are computed in float64 and rounded once. It happens if
all weights are constants and nobody else needs `c`.
"""

from collections.abc import Sequence

import numpy as np

from tilewright.graph.graph import Graph, Node, Value, users
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.contraction import Gemm
from tilewright.ops.conv import Conv
from tilewright.ops.norm import BatchNormalization
from tilewright.ops.opdef import Array, Op


def fuse_batch_norm(graph: Graph) -> Graph:
    readers = users(graph)

    def fuse(state: Sweep, node: Node) -> Sequence[Value] | None:
        if not isinstance(node.op, BatchNormalization):
            return None
        x, *statistics = node.inputs
        layer = state.producer(x)
        shared = x in graph.outputs or len(readers.get(x, ())) != 1
        if layer is None or shared or _channel_axis(layer.op) is None:
            return None
        arrays = [state.known(v) for v in (*layer.inputs[1:], *statistics)]
        known = [a.astype(np.float64) for a in arrays if a is not None]
        if len(known) < len(arrays):
            return None
        *weights, gain, bias, mean, variance = known
        with np.errstate(all="ignore"):
            scale = gain / np.sqrt(variance + node.op.epsilon)
            before = weights[1] if len(weights) > 1 else np.zeros(1)
            folded = _scaled(layer.op, weights[0], scale), (before - mean) * scale + bias
        dtype = x.type.dtype.numpy
        names = f"{layer.inputs[1].name}.folded", f"{node.outputs[0].name}.bias"
        values = [state.add_constant(n, a.astype(dtype)) for n, a in zip(names, folded, strict=True)]
        return state.add(layer.op, (layer.inputs[0], *values), node)

    return sweep(graph, fuse)


def _channel_axis(op: Op) -> int | None:
    """The axis of the weights that runs over output channels, if the layer is one that can be scaled."""
    match op:
        case Conv():
            return 0
        case Gemm(alpha=1.0, beta=1.0, trans_b=transposed):
            return 0 if transposed else 1
        case _:
            return None


def _scaled(op: Op, weights: Array, scale: Array) -> Array:
    shape = [1] * weights.ndim
    shape[_channel_axis(op) or 0] = -1
    return weights * scale.reshape(shape)
