"""Fold a batch norm with stored statistics into the weights of the layer before it.

    c = Conv(x, w, b)
    y = BatchNormalization(c, gain, bias, mean, variance)   →   y = Conv(x, w · s, (b - mean) · s + bias)

where s = gain / sqrt(variance + epsilon) per channel; likewise for transposed convolutions and dense layers. Weights
are computed in float64 and rounded once. It happens if all weights are constants and nobody else needs `c`.
"""

from collections.abc import Sequence

import numpy as np

from tilewright.graph.graph import Graph, Node, Value, users
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.core.contraction import Gemm
from tilewright.ops.core.conv import Conv, ConvTranspose
from tilewright.ops.core.norm import BatchNormalization
from tilewright.ops.opdef import Op
from tilewright.support.arrays import Array


def fuse_batch_norm(graph: Graph) -> Graph:
    readers = users(graph)

    def fuse(state: Sweep, node: Node) -> Sequence[Value] | None:
        if not isinstance(node.op, BatchNormalization):
            return None
        x, *statistics = node.inputs
        layer = state.producer(x)
        shared = x in graph.outputs or len(readers.get(x, ())) != 1
        if layer is None or shared or not _can_be_scaled(layer.op):
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


def _can_be_scaled(op: Op) -> bool:
    match op:
        case Conv() | ConvTranspose() | Gemm(alpha=1.0, beta=1.0):
            return True
        case _:
            return False


def _scaled(op: Op, weights: Array, scale: Array) -> Array:
    """The weights with each output channel multiplied."""
    match op:
        case ConvTranspose(group=groups):
            # Of every group of inputs all weights, and then its outputs.
            inputs, outputs, *kernel = weights.shape
            apart = weights.reshape(groups, inputs // groups, outputs, *kernel)
            return (apart * scale.reshape(groups, 1, outputs, *(1 for _ in kernel))).reshape(weights.shape)
        case Gemm(trans_b=False):
            return weights * scale
        case _:
            return weights * scale.reshape(-1, *(1 for _ in weights.shape[1:]))
