"""Contract integers instead of the floats that they stand for.

    x' = DequantizeLinear(x, s, z)                        t = ConvInteger(x, w) - z · Σ w
    w' = DequantizeLinear(w, r)                →          y = t · (s · r) + b
    y  = Conv(x', w', b)

and MatMul and Gemm likewise. The integer sum is exact, so the result is nearer to the true one than a sum of floats. It
happens where weights are constant bytes with one scale, or one for each output channel, the other operand is bytes with
one scale and zero point that are known, and `products` has the types of both: those for which the target has an
instruction. Without one, floats are quicker; so they are where each channel is filtered by itself, which leaves a dot
product nothing to sum up. The zero point is taken out of the sum, so that the operands stay the bytes that these
instructions read; what pads an image is the zero point then.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ir.dtype import DType
from tilewright.ops.core.arithmetic import Add, Mul, Sub
from tilewright.ops.core.cast import Cast
from tilewright.ops.core.contraction import Gemm, MatMul
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.integer import Channels, ConvInteger, MatMulInteger
from tilewright.ops.core.pieces import Pad
from tilewright.ops.core.quantize import DequantizeLinear
from tilewright.support.arrays import Array

Products: TypeAlias = Collection[tuple[DType, DType]]


def contract_integers(graph: Graph, products: Products) -> Graph:
    def contract(state: Sweep, node: Node) -> Sequence[Value] | None:
        match node.op:
            case Conv(group=1):
                return _convolve(state, node, node.op, products)
            case MatMul() | Gemm(alpha=1.0, beta=1.0, trans_a=False):
                return _multiply(state, node, products)
            case _:
                return None

    return sweep(graph, contract) if products else graph


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A tensor that stands for floats: (value - zero) · scale."""

    value: Value
    scale: Array
    zero: int
    axis: int | None  # that the scale has an element for each slice of


def _bytes(state: Sweep, value: Value) -> _Bytes | None:
    made = state.producer(value)
    if made is None or not isinstance(made.op, DequantizeLinear) or made.op.dtype is not DType.F32:
        return None
    parameters = _all_known(state, made.inputs[1:])
    if parameters is None or made.op.granularity.block:
        return None
    scale, *zeros = parameters
    zero = zeros[0].reshape(-1) if zeros else np.zeros(1, np.int64)
    if scale.dtype != np.float32 or (zero != zero[0]).any():
        return None
    return _Bytes(made.inputs[0], scale, int(zero[0]), made.op.granularity.axis)


def _operands(
    state: Sweep, node: Node, channel: int, products: Products
) -> tuple[_Bytes, _Bytes, Array] | None:
    """The image or left matrix, the weights, and these as an array; `channel` is their axis of outputs."""
    x, w = (_bytes(state, v) for v in node.inputs[:2])
    if x is None or w is None or x.axis is not None or w.axis not in (None, channel) or w.zero:
        return None
    weights = state.known(w.value)
    has_product = (x.value.type.dtype, w.value.type.dtype) in products
    return None if weights is None or not has_product else (x, w, weights)


def _convolve(state: Sweep, node: Node, op: Conv, products: Products) -> Sequence[Value] | None:
    found, bias = _operands(state, node, 0, products), _bias(state, node)
    if found is None or (bias is None and len(node.inputs) > 2):
        return None
    x, w, weights = found
    window, image = op.window, x.value
    if x.zero and any((*window.before, *window.after)):
        pads = (0, 0, *window.before), (0, 0, *window.after)
        image = state.add_piece(Pad(*pads, value=x.zero), (image,), node)
        none = (0,) * len(window.kernel)
        window = replace(window, before=none, after=none)
    total = state.add_piece(ConvInteger(Channels(window)), (image, w.value), node)
    shape = (weights.shape[0], *(1 for _ in window.kernel))
    sums = weights.sum(axis=tuple(range(1, weights.ndim)), dtype=np.int64)
    added = () if bias is None else (state.add_constant(f"{_name(node)}.bias", bias.reshape(shape)),)
    return _scaled(state, node, total, sums.reshape(shape), x, w, added)


def _multiply(state: Sweep, node: Node, products: Products) -> Sequence[Value] | None:
    is_transposed = isinstance(node.op, Gemm) and node.op.trans_b
    found = _operands(state, node, 0 if is_transposed else 1, products)
    if found is None or found[2].ndim != 2:
        return None
    x, w, weights = found
    right = w.value
    if is_transposed:
        weights = np.ascontiguousarray(weights.T)
        right = state.add_constant(f"{right.name}.transposed", weights)
    total = state.add_piece(MatMulInteger(), (x.value, right), node)
    return _scaled(state, node, total, weights.sum(axis=0, dtype=np.int64), x, w, node.inputs[2:])


def _scaled(
    state: Sweep, node: Node, total: Value, sums: Array, x: _Bytes, w: _Bytes, bias: Sequence[Value]
) -> Sequence[Value]:
    """The floats that integer sums stand for. `sums` of weights broadcast to the result, and so does the bias."""
    if x.zero:
        taken = state.add_constant(f"{_name(node)}.zero", (x.zero * sums).astype(np.int32))
        total = state.add_piece(Sub(), (total, taken), node)
    each = x.scale.reshape(()) * w.scale.reshape(-1)
    scale = state.add_constant(f"{_name(node)}.scale", np.broadcast_to(each, sums.size).reshape(sums.shape))
    wide = state.add_piece(Cast(DType.F32), (total,), node)
    if not bias:
        return state.add(Mul(), (wide, scale), node)
    return state.add(Add(), (state.add_piece(Mul(), (wide, scale), node), *bias), node)


def _bias(state: Sweep, node: Node) -> Array | None:
    """That of a convolution, where it is a constant or one that was dequantized."""
    if len(node.inputs) < 3:
        return None
    known, made = state.known(node.inputs[2]), state.producer(node.inputs[2])
    if known is not None or made is None or not isinstance(made.op, DequantizeLinear):
        return known
    arrays = _all_known(state, made.inputs)
    return None if arrays is None else made.op.reference(arrays)[0]


def _all_known(state: Sweep, values: Sequence[Value]) -> list[Array] | None:
    known = [a for a in map(state.known, values) if a is not None]
    return known if len(known) == len(values) else None


def _name(node: Node) -> str:
    return node.outputs[0].name
