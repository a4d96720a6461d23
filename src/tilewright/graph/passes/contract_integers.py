"""Contract integers instead of the floats that they stand for, in the form that instructions for bytes compute.

    x' = DequantizeLinear(x, s, z)                        t = ConvInteger(x, w) - z · Σ w
    w' = DequantizeLinear(w, r)                →          y = t · (s · r) + b
    y  = Conv(x', w', b)

    t  = MatMulInteger(x, w, z)                →          t = MatMulInteger(x, w) - z · Σ w

and Gemm, QLinearConv and QLinearMatMul likewise. The integer sum is exact, so results are nearer to the true ones than
sums of floats, and those of integer operators stay what they are. It happens where weights are constant bytes without a
zero point, or with one that makes signed bytes of unsigned ones; the other operand has one zero point, known or not.
That is taken out of the sum, so that the operands stay the bytes that the instructions read: what pads an image is the
zero point then, or it is taken out of the sums only where weights meet the image.

Instructions that want weights to lie within bounds (`BoundedBytes`) are used where all of them do. `Products` are the
types of bytes for which the target has an instruction; bytes of another sign are shifted to one of
them. Without any, floats are quicker, and so they are where each channel is filtered by itself, which leaves a dot
product nothing to sum up: such sums of few bytes are exact in floats, too. If bytes `are_widened` for the instruction,
it is less than twice as quick as a multiply-add of floats, and convolutions over dequantized bytes stay in floats where
these have an algorithm with fewer multiplications.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ir.dtype import DType
from tilewright.ops.core.arithmetic import Add, Mul, Sub
from tilewright.ops.core.cast import Cast
from tilewright.ops.core.contraction import Gemm, MatMul
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.integer import Channels, ConvInteger, MatMulInteger, optional_inputs
from tilewright.ops.core.pieces import Pad
from tilewright.ops.core.qlinear import QLinearConv, QLinearMatMul
from tilewright.ops.core.quantize import DequantizeLinear, QuantizeLinear
from tilewright.ops.core.weight_panels import WORD
from tilewright.ops.core.window import Window
from tilewright.ops.core.winograd import algorithms
from tilewright.support.arrays import Array
from tilewright.support.sizes import dims_in
from tilewright.target.intrinsics import BoundedBytes

Products: TypeAlias = Collection[tuple[DType, DType]]

_MOST_MISSING = 3  # channels that there are for each that is missing, at least; judged: a third more products
_EXACT = 1 << 24  # whole numbers below it are floats; given
_MOST_SUMS = 1 << 22  # bytes of sums of weights that may differ from place to place; bound


BYTE_PAIRS = frozenset((a, b) for a in (DType.U8, DType.I8) for b in (DType.U8, DType.I8))


@dataclass(frozen=True, slots=True)
class _Products:
    """What the target has instructions for: types of bytes, and of some the bounds of the right ones."""

    types: Collection[tuple[DType, DType]]
    bounds: Collection[BoundedBytes] = ()
    are_widened: bool = False

    def __bool__(self) -> bool:
        return bool(self.types)

    def missing_channels(self, count: int) -> int:
        """How many channels of zeros make words of bytes of them, which instructions read in place, where that takes
        few more products. Short integers are read in pairs.
        """
        missing = 0 if self.are_widened else -count % WORD
        return missing if missing * _MOST_MISSING <= count else 0

    def bounded(self, weights: Array) -> BoundedBytes | None:
        """The narrowest bounds that these weights are in."""
        low, high = int(weights.min(initial=0)), int(weights.max(initial=0))
        own = DType.of(weights.dtype)
        fitting = [b for b in self.bounds if b.right is own and b.within[0] <= low and high <= b.within[1]]
        return min(fitting, key=lambda b: b.within[1] - b.within[0], default=None)


def contract_integers(
    graph: Graph, types: Products, bounds: Collection[BoundedBytes] = (), *, are_widened: bool = False
) -> Graph:
    products = _Products(types, bounds, are_widened)

    def contract(state: Sweep, node: Node) -> Sequence[Value] | None:
        match node.op:
            case Conv(group=1) if are_widened and not _is_quicker_in_bytes(node, node.op):
                return None
            case Conv(group=1):
                return _convolve(state, node, node.op, products)
            case MatMul() | Gemm(alpha=1.0, beta=1.0, trans_a=False):
                return _multiply(state, node, products)
            case ConvInteger():
                return _convolve_integers(state, node, node.op, products)
            case MatMulInteger():
                return _multiply_integers(state, node, node.op, products)
            case QLinearConv():
                return _quantized_convolution(state, node, node.op, products)
            case QLinearMatMul():
                return _quantized_product(state, node, node.op, products)
            case _:
                return None

    return sweep(graph, contract) if products else graph


def _is_quicker_in_bytes(node: Node, op: Conv) -> bool:
    """Not where floats need fewer multiplications, and not where channels are no pairs: images would be copied."""
    x, w, *_ = (v.type for v in node.inputs)
    floats = algorithms(w, op.window, op.group, node.outputs[0].type)
    return not x.shape[1] % 2 and not any(True for _ in floats)


# ------------------------------------------------------------------------------------------------- sums of products


@dataclass(frozen=True, slots=True)
class _Left:
    """The operand that is no constant: its value, and its zero point as a number or as a value."""

    value: Value
    zero: int | Value


def _left(state: Sweep, value: Value, zero: Value | None) -> _Left | None:
    """None if the zero point is not one for all."""
    if zero is None:
        return _Left(value, 0)
    known = state.known(zero)
    if known is None:
        return _Left(value, zero) if prod(zero.type.shape) == 1 else None
    flat = known.reshape(-1)
    return _Left(value, int(flat[0])) if (flat == flat[0]).all() else None


def _weights(state: Sweep, value: Value, zero: Array | None) -> tuple[Value, Array] | None:
    """Constant bytes without a zero point; unsigned ones around the middle of their range become signed."""
    weights = state.known(value)
    if weights is None or value.type.dtype not in (DType.I8, DType.U8):
        return None
    if zero is None or not zero.any():
        return value, weights
    if value.type.dtype is DType.U8 and (zero == 128).all():
        signed = (weights.astype(np.int16) - 128).astype(np.int8)
        return state.add_constant(f"{value.name}.signed", signed), signed
    return None


def _with_product(state: Sweep, node: Node, left: _Left, right: DType, types: Products) -> _Left | None:
    """The operand as bytes that the target multiplies with such weights; None if there is no way."""
    dtype = left.value.type.dtype
    if (dtype, right) in types:
        return left
    other, by = (DType.U8, 128) if dtype is DType.I8 else (DType.I8, -128)
    if dtype not in (DType.I8, DType.U8) or (other, right) not in types:
        return None
    shift = state.add_constant(f"{_name(node)}.shift", np.array(by, np.int32))
    wide = state.add_piece(Add(), (state.add_piece(Cast(DType.I32), (left.value,), node), shift), node)
    value = state.add_piece(Cast(other), (wide,), node)
    if isinstance(left.zero, int):
        return _Left(value, left.zero + by)
    zero = state.add_piece(Add(), (state.add_piece(Cast(DType.I32), (left.zero,), node), shift), node)
    return _Left(value, zero)


def _product(
    state: Sweep, node: Node, left: _Left | None, right: tuple[Value, Array] | None, products: _Products
) -> Value | None:
    """Sums of products of a matrix with constant ones, without zero points."""
    if left is None or right is None or right[1].ndim != 2:
        return None
    value, weights = right
    bounded = products.bounded(weights)
    types = products.types if bounded is None else ((bounded.left, bounded.right),)
    left = _with_product(state, node, left, value.type.dtype, types)
    if left is None:
        return None
    op = MatMulInteger(within=None if bounded is None else bounded.within)
    total = state.add_piece(op, (left.value, value), node)
    return _centred(state, node, total, left.zero, weights.sum(axis=0, dtype=np.int64))


def _convolution(
    state: Sweep,
    node: Node,
    window: Window,
    left: _Left | None,
    right: tuple[Value, Array] | None,
    products: _Products,
) -> Value | None:
    """Sums of products of an image with constant filters, without zero points."""
    if left is None or right is None:
        return None
    value, weights = right
    given, bounded = left.value.type, products.bounded(weights)
    types = products.types if bounded is None else ((bounded.left, bounded.right),)
    left = _with_product(state, node, left, value.type.dtype, types)
    if left is None:
        return None
    image, is_padded = left.value, any((*window.before, *window.after))
    missing = products.missing_channels(weights.shape[1])
    sums = weights.sum(axis=tuple(range(1, weights.ndim)), dtype=np.int64)
    sums = sums.reshape(-1, *(1 for _ in window.kernel))
    if is_padded and not isinstance(left.zero, int):
        met = _sums_met(window, given.shape, weights)
        if met is None:
            return None
        sums = met
    elif is_padded and isinstance(left.zero, int) and left.zero:
        pads = (0, 0, *window.before), (0, missing, *window.after)
        image = state.add_piece(Pad(*pads, value=left.zero), (image,), node)
        none = (0,) * len(window.kernel)
        window = replace(window, before=none, after=none)
    if missing:
        if image.type.shape[1] == weights.shape[1]:
            none = (0,) * len(window.kernel)
            image = state.add_piece(Pad((0, 0, *none), (0, missing, *none)), (image,), node)
        behind = [(0, missing if d == 1 else 0) for d in range(weights.ndim)]
        value = state.add_constant(f"{value.name}.whole", np.pad(weights, behind))
    channels = Channels(window, within=None if bounded is None else bounded.within)
    total = state.add_piece(ConvInteger(channels), (image, value), node)
    return _centred(state, node, total, left.zero, sums)


def _sums_met(window: Window, shape: Sequence[int], weights: Array) -> Array | None:
    """At each place, the sum of the weights that meet the image and not what pads it; None if these are too many, or
    the sizes are open."""
    outputs = window.outputs(tuple(shape[2:]))
    if dims_in(tuple(shape)) or outputs is None or 4 * weights.shape[0] * prod(outputs) > _MOST_SUMS:
        return None
    inside = np.ones((1, 1, *shape[2:]), np.uint8)
    filters = weights.sum(axis=1, keepdims=True, dtype=np.int64).astype(np.int32)
    rank = len(window.kernel)
    views = window.view(inside.astype(np.int32), outputs, 0)
    places, taps = "xyz"[:rank], "uvw"[:rank]
    return np.asarray(np.einsum(f"ni{places}{taps},oi{taps}->no{places}", views, filters)[0])


def _centred(state: Sweep, node: Node, total: Value, zero: int | Value, sums: Array) -> Value:
    """A sum without the zero point of its left operand. `sums` of weights broadcast to it."""
    if isinstance(zero, int):
        if not zero:
            return total
        taken = state.add_constant(f"{_name(node)}.zero", (zero * sums).astype(np.int32))
    else:
        each = state.add_constant(f"{_name(node)}.sums", sums.astype(np.int32))
        scalar = zero
        if zero.type.dtype is not DType.I32:
            scalar = state.add_piece(Cast(DType.I32), (zero,), node)
        taken = state.add_piece(Mul(), (each, scalar), node)
    return state.add_piece(Sub(), (total, taken), node)


# ------------------------------------------------------------------------------------- layers over dequantized bytes


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A tensor that stands for floats: (value - zero) · scale."""

    value: Value
    scale: Array
    zero: Array
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
    return _Bytes(made.inputs[0], scale, zero, made.op.granularity.axis)


def _operands(state: Sweep, node: Node, channel: int) -> tuple[_Bytes, _Bytes] | None:
    """The image or left matrix, and the weights; `channel` is their axis of outputs."""
    x, w = (_bytes(state, v) for v in node.inputs[:2])
    if x is None or w is None or x.axis is not None or w.axis not in (None, channel):
        return None
    return x, w


def _convolve(state: Sweep, node: Node, op: Conv, products: _Products) -> Sequence[Value] | None:
    found, bias = _operands(state, node, 0), _bias(state, node)
    if found is None or (bias is None and len(node.inputs) > 2):
        return None
    x, w = found
    left, right = _Left(x.value, int(x.zero[0])), _weights(state, w.value, w.zero)
    total = _convolution(state, node, op.window, left, right, products)
    if total is None:
        return None
    shape = (total.type.shape[1], *(1 for _ in op.window.kernel))
    added = () if bias is None else (state.add_constant(f"{_name(node)}.bias", bias.reshape(shape)),)
    return _scaled(state, node, total, shape, x, w, added)


def _multiply(state: Sweep, node: Node, products: _Products) -> Sequence[Value] | None:
    is_transposed = isinstance(node.op, Gemm) and node.op.trans_b
    found = _operands(state, node, 0 if is_transposed else 1)
    if found is None:
        return None
    x, w = found
    right = _weights(state, w.value, w.zero)
    if right is not None and is_transposed:
        across = np.ascontiguousarray(right[1].T)
        right = state.add_constant(f"{right[0].name}.transposed", across), across
    total = _product(state, node, _Left(x.value, int(x.zero[0])), right, products)
    if total is None:
        return None
    return _scaled(state, node, total, total.type.shape[-1:], x, w, node.inputs[2:])


def _scaled(
    state: Sweep,
    node: Node,
    total: Value,
    shape: tuple[int, ...],
    x: _Bytes,
    w: _Bytes,
    bias: Sequence[Value],
) -> Sequence[Value]:
    """The floats that integer sums stand for. What is of output channels has this shape; the bias broadcasts, too."""
    each = x.scale.reshape(()) * w.scale.reshape(-1)
    scale = state.add_constant(f"{_name(node)}.scale", np.broadcast_to(each, prod(shape)).reshape(shape))
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


# ------------------------------------------------------------------------------------------------ integer operators


def _multiply_integers(
    state: Sweep, node: Node, op: MatMulInteger, products: _Products
) -> Sequence[Value] | None:
    a, b, a_zero, b_zero = optional_inputs((True, True, *op.has_zero_points), node.inputs)
    assert a is not None and b is not None
    if a_zero is None and b_zero is None and (a.type.dtype, b.type.dtype) in products.types:
        weights = state.known(b)
        if op.within is not None or weights is None or products.bounded(weights) is None:
            return None  # it is in this form
    known = _known_zero(state, b_zero)
    if known is None:
        return None
    total = _product(state, node, _left(state, a, a_zero), _weights(state, b, known), products)
    return None if total is None else (total,)


def _convolve_integers(
    state: Sweep, node: Node, op: ConvInteger, products: _Products
) -> Sequence[Value] | None:
    x, w, x_zero, w_zero = optional_inputs((True, True, *op.has_zero_points), node.inputs)
    assert x is not None and w is not None
    if x_zero is None and w_zero is None and (x.type.dtype, w.type.dtype) in products.types:
        if op.channels.group > 1:
            return _floats(state, node, op.channels, x, x_zero, w, None)
        weights = state.known(w)
        if op.channels.within is not None or weights is None or products.bounded(weights) is None:
            return None
    known = _known_zero(state, w_zero)
    if known is None:
        return None
    if op.channels.group > 1:
        return _floats(state, node, op.channels, x, x_zero, w, known)
    total = _convolution(
        state, node, op.channels.window, _left(state, x, x_zero), _weights(state, w, known), products
    )
    return None if total is None else (total,)


def _floats(
    state: Sweep,
    node: Node,
    channels: Channels,
    x: Value,
    x_zero: Value | None,
    w: Value,
    w_zero: Array | None,
) -> Sequence[Value] | None:
    """Channels that are filtered apart, in floats, where these hold every sum exactly."""
    weights = state.known(w)
    if weights is None:
        return None
    filters = weights.astype(np.float32)
    if w_zero is not None:
        filters = filters - w_zero.reshape(-1, *(1 for _ in weights.shape[1:])).astype(np.float32)
    if 256.0 * np.abs(filters).reshape(len(filters), -1).sum(axis=1).max(initial=0.0) >= _EXACT:
        return None
    image = state.add_piece(Cast(DType.F32), (x,), node)
    if x_zero is not None:
        zero = state.add_piece(Cast(DType.F32), (x_zero,), node)
        image = state.add_piece(Sub(), (image, zero), node)
    value = state.add_constant(f"{w.name}.floats", filters)
    total = state.add_piece(Conv(channels.window, channels.group), (image, value), node)
    return (state.add_piece(Cast(DType.I32), (total,), node),)


def _quantized_product(
    state: Sweep, node: Node, op: QLinearMatMul, products: _Products
) -> Sequence[Value] | None:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = optional_inputs(op.has, node.inputs)
    assert a and b and a_scale and b_scale and y_scale
    known, scales = _known_zero(state, b_zero), _all_known(state, (a_scale, b_scale, y_scale))
    if known is None or scales is None or scales[0].size != 1 or scales[2].size != 1 or scales[1].ndim > 1:
        return None
    total = _product(state, node, _left(state, a, a_zero), _weights(state, b, known), products)
    if total is None:
        return None
    left, right, down = (s.astype(np.float32) for s in scales)
    factor = left.reshape(()) * right.reshape(() if right.size == 1 else (-1,)) / down.reshape(())
    return _quantized(state, node, total, factor, y_zero, op.dtype)


def _quantized_convolution(
    state: Sweep, node: Node, op: QLinearConv, products: _Products
) -> Sequence[Value] | None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = optional_inputs(op.has, node.inputs)
    assert x and w and x_scale and w_scale and y_scale
    known, scales = _known_zero(state, w_zero), _all_known(state, (x_scale, w_scale, y_scale))
    if known is None or scales is None:
        return None
    channels = op.channels
    if channels.group > 1:
        made = _floats(state, node, channels, x, x_zero, w, known)
        total = None if made is None else made[0]
    else:
        left = _left(state, x, x_zero)
        total = _convolution(state, node, channels.window, left, _weights(state, w, known), products)
    if total is None:
        return None
    places = tuple(1 for _ in channels.window.kernel)
    if bias is not None:
        whole = state.known(bias)
        if whole is None:
            return None
        added = state.add_constant(f"{_name(node)}.bias", whole.reshape(-1, *places))
        total = state.add_piece(Add(), (total, added), node)
    across, each, down = scales
    each = each.reshape(()) if each.size == 1 else each.reshape(-1, *places)
    factor = across.reshape(()) * each / down.reshape(())
    return _quantized(state, node, total, factor, y_zero, op.dtype)


def _quantized(
    state: Sweep, node: Node, total: Value, factor: Array, zero: Value | None, dtype: DType
) -> Sequence[Value] | None:
    """A sum of integers times a factor, rounded, with a zero point, saturated."""
    scale = state.add_constant(f"{_name(node)}.scale", factor.astype(np.float32))
    ratio = state.add_piece(Mul(), (state.add_piece(Cast(DType.F32), (total,), node), scale), node)
    one = state.add_constant(f"{_name(node)}.one", np.array(1, np.float32))
    return state.add(QuantizeLinear(dtype), (ratio, one, *(() if zero is None else (zero,))), node)


def _known_zero(state: Sweep, zero: Value | None) -> Array | None:
    """That of weights, 0 if they have none; None if it is not known."""
    return np.zeros(1, np.int64) if zero is None else state.known(zero)


def _all_known(state: Sweep, values: Sequence[Value]) -> list[Array] | None:
    known = [a for a in map(state.known, values) if a is not None]
    return known if len(known) == len(values) else None


def _name(node: Node) -> str:
    return node.outputs[0].name
