"""Multiply by weights of 4 and 8 bits as they are stored, where they have scales by blocks.

    y = MatMulNBits[accuracy_level=4](x, w, s, z) + b
        ──>  q, r, t = QuantizeBlocks(x);  y = BlockMatMul(q, r, t, w', s', z') + b
    y = MatMulNBits(x, w, s, z) + b
    y = MatMul(x, DequantizeLinear[block_size](w, s, z)), Gemm likewise
        ──>  y = BlockMatMul(x', Σ x', w', s', z') + b

A level of 4 says that x may be brought to bytes, by blocks of its rows: sums of integers, where the target has an
instruction for these. All other levels are sums of floats. Either way codes keep their bits, in the order in which
kernels read them. One zero point for all is multiplied with the sums of x. Dequantized weights of many rows are floats,
which is quicker, and what the model says.

    y = GatherBlockQuantized(w, i, s, z)      ──>      y = PanelGather(w', i, s', z')

where a product has the same weights: rows of the table are its columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.half_weights import reads_weights
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ir.dtype import DType
from tilewright.ops.contrib.quant_gather import GatherBlockQuantized
from tilewright.ops.contrib.quant_matmul import MatMulNBits, unpacked_array
from tilewright.ops.core.arithmetic import Add, Mul
from tilewright.ops.core.block_matmul import BlockMatMul
from tilewright.ops.core.block_quantize import QuantizeBlocks
from tilewright.ops.core.cast import Cast
from tilewright.ops.core.contraction import Gemm, MatMul
from tilewright.ops.core.integer import optional_inputs
from tilewright.ops.core.movement import Reshape
from tilewright.ops.core.panel_gather import PanelGather
from tilewright.ops.core.pieces import Pad
from tilewright.ops.core.quantize import DequantizeLinear
from tilewright.ops.core.reduce import ReduceSum
from tilewright.ops.core.weight_panels import Panels
from tilewright.support.arrays import Array

# By bits of weights: lanes, and the type of the bytes.
PackedProducts: TypeAlias = Mapping[int, tuple[int, DType]]

_BITS, _INTEGERS = (4, 8), 4  # of a code; the level of accuracy; given
_MOST_BLOCK = (
    256  # numbers whose sum of products of bytes is exact as a float; counted: 256 · 127 · 255 < 2²⁴
)


def contract_blocks(graph: Graph, products: PackedProducts, lanes: int) -> Graph:
    """`products`: what the target has instructions for that sum up products of bytes. `lanes`: floats of a vector."""
    tables = {n.outputs[0].name: p for n in graph.nodes if (p := _product_of_table(graph, n)) is not None}
    shared: dict[str, _Packed] = {}  # by the names of products, what tables have of them

    def pack(state: Sweep, node: Node) -> _Packed | None:
        assert isinstance(node.op, MatMulNBits)
        known = shared.get(node.outputs[0].name)
        if known is not None:
            return known
        weights = _stored(state, node, node.op)
        if weights is None:
            return None
        is_short = node.op.accuracy == _INTEGERS and weights.fits_integers
        return _pack_weights(state, node, weights, products.get(weights.bits) if is_short else None, lanes)

    def contract(state: Sweep, node: Node) -> Sequence[Value] | None:
        match node.op:
            case MatMulNBits(rows=columns):
                found = pack(state, node)
                x, _, _, _, _, bias = optional_inputs((True, True, True, *node.op.has), node.inputs)
                return (
                    None if found is None or x is None else _contracted(state, node, x, columns, bias, found)
                )
            case MatMul() | Gemm(alpha=1.0, beta=1.0, trans_a=False) if reads_weights(node, 1):
                weights = _dequantized(state, node)
                if weights is None:
                    return None
                x, _, *bias = node.inputs
                found = _pack_weights(state, node, weights, None, lanes)
                return _contracted(state, node, x, len(weights.codes), bias[0] if bias else None, found)
            case GatherBlockQuantized() if node.outputs[0].name in tables:
                product = tables[node.outputs[0].name]
                found = pack(state, product)
                if found is None:
                    return None
                shared[product.outputs[0].name] = found
                return _looked_up(state, node, found)
            case _:
                return None

    return sweep(graph, contract)


@dataclass(frozen=True, slots=True)
class _Weights:
    """What they are: (codes - zeros) · scales, by columns and blocks."""

    bits: int
    codes: Array  # u8 [columns, blocks, block]
    scales: Array  # f32 [columns, blocks]
    zeros: Array  # u8 or f32 [columns, blocks], or one number

    @property
    def fits_integers(self) -> bool:
        return not self.codes.shape[2] % 8 and self.codes.shape[2] <= _MOST_BLOCK

    def signed(self) -> "_Weights":
        """Around 0, in signed bytes."""
        middle = 1 << self.bits - 1
        codes = (self.codes.astype(np.int16) - middle).astype(np.int8)
        zeros = self.zeros.astype(np.float32) - np.float32(middle)
        return _Weights(self.bits, codes, self.scales, _narrow(zeros, np.int8))


def _narrow(zeros: Array, dtype: type[np.integer]) -> Array:
    """In bytes, if they are such whole numbers."""
    with np.errstate(invalid="ignore"):
        short = zeros.astype(dtype)
    return short if (short == zeros).all() else zeros


def _stored(state: Sweep, node: Node, op: MatMulNBits) -> _Weights | None:
    """Those of the node, if they are known."""
    _, w, scale, zero, groups, _ = optional_inputs((True, True, True, *op.has), node.inputs)
    assert w is not None and scale is not None
    packed, scales = state.known(w), state.known(scale)
    zeros = None if zero is None else state.known(zero)
    if op.bits not in _BITS or groups is not None or packed is None or scales is None:
        return None
    if zero is not None and zeros is None:
        return None
    blocks = scales.size // op.rows
    codes = unpacked_array(packed.reshape(op.rows, -1), op.bits).reshape(op.rows, blocks, op.block)
    middles = _middles(zeros, op.bits, op.rows, blocks)
    return _Weights(op.bits, codes, scales.reshape(op.rows, blocks).astype(np.float32), middles)


def _dequantized(state: Sweep, node: Node) -> _Weights | None:
    """Those of a product that are restored from constant bytes by blocks of its sums, of 4 bits if they are few."""
    made = state.producer(node.inputs[1])
    if made is None or not isinstance(made.op, DequantizeLinear) or made.op.dtype is not DType.F32:
        return None
    axis = 1 if isinstance(node.op, Gemm) and node.op.trans_b else 0
    granularity = made.op.granularity
    arrays = [a for v in made.inputs if (a := state.known(v)) is not None]
    block = granularity.block
    if (
        len(arrays) < len(made.inputs)
        or granularity.axis != axis
        or not 16 <= block <= _MOST_BLOCK
        or block % 2
    ):
        return None
    if arrays[0].ndim != 2 or arrays[0].shape[axis] % block or arrays[0].dtype.itemsize > 1:
        return None
    codes, scales, *zeros = (a if axis else np.ascontiguousarray(a.T) for a in arrays)
    is_signed = codes.dtype == np.int8
    if scales.dtype != np.float32:
        return None
    lowest = -8 if is_signed else 0
    is_short = all(a.min(initial=0) >= lowest and a.max(initial=0) < lowest + 16 for a in (codes, *zeros))
    bits = 4 if is_short else 8
    shift = 1 << bits - 1 if is_signed else 0
    columns, blocks = scales.shape
    whole = (codes.astype(np.int16) + shift).astype(np.uint8).reshape(columns, blocks, block)
    offsets = (zeros[0] if zeros else np.zeros(1, np.int16)).astype(np.int16) + shift
    return _Weights(bits, whole, scales, _one_if_equal(offsets.astype(np.uint8)))


def _middles(zeros: Array | None, bits: int, rows: int, blocks: int) -> Array:
    """The code that stands for 0: of each row and block, or one for all."""
    if zeros is None:
        return np.full(1, 1 << bits - 1, np.uint8)
    if zeros.dtype == np.uint8:
        found = unpacked_array(zeros.reshape(rows, -1), bits)[:, :blocks]
    else:
        found = _narrow(zeros.reshape(rows, blocks).astype(np.float32), np.uint8)
    return _one_if_equal(found)


def _one_if_equal(zeros: Array) -> Array:
    return zeros.reshape(-1)[:1] if (zeros == zeros.flat[0]).all() else zeros


@dataclass(frozen=True, slots=True)
class _Packed:
    """Weights as constants of the graph: codes, scales, and zero points if they differ; otherwise they are `zero`."""

    panels: Panels
    columns: int
    blocks: int
    block: int
    zero: float
    constants: tuple[Value, ...]

    @property
    def has_zeros(self) -> bool:
        return len(self.constants) > 2


def _pack_weights(
    state: Sweep, node: Node, weights: _Weights, words: tuple[int, DType] | None, lanes: int
) -> _Packed:
    """`words`: how instructions take the weights, if they sum up integers."""
    if words is not None and words[1] is DType.I8:
        weights = weights.signed()
    panels = Panels(weights.bits, lanes if words is None else words[0], in_words=words is not None)
    name, apart = node.outputs[0].name, weights.zeros.size > 1
    stored = {"codes": panels.pack(weights.codes), "scales": panels.pack_each(weights.scales)}
    if apart:
        stored["zeros"] = panels.pack_each(weights.zeros)
    constants = tuple(state.add_constant(f"{name}.{what}", array) for what, array in stored.items())
    zero = 0.0 if apart else float(weights.zeros[0])
    columns, blocks, block = weights.codes.shape
    return _Packed(panels, columns, blocks, block, zero, constants)


def _product_of_table(graph: Graph, node: Node) -> Node | None:
    """The product that has the same weights as a table which is looked up."""
    if not isinstance(node.op, GatherBlockQuantized) or node.op.bits not in _BITS:
        return None
    table, _, *rest = node.inputs
    own = [graph.constants.get(v) for v in (table, *rest)]
    for other in graph.nodes:
        if not isinstance(other.op, MatMulNBits):
            continue
        if (other.op.bits, other.op.block) != (node.op.bits, node.op.block):
            continue
        _, w, scale, zero, groups, _ = optional_inputs((True, True, True, *other.op.has), other.inputs)
        theirs = [graph.constants.get(v) for v in (w, scale, zero) if v is not None]
        if groups is None and len(own) == len(theirs) and all(map(_are_same, own, theirs)):
            return other
    return None


def _are_same(a: Array | None, b: Array | None) -> bool:
    """The same numbers, whatever the axes."""
    if a is None or b is None or a.dtype != b.dtype or a.size != b.size:
        return False
    return bool(np.array_equal(a.reshape(-1), b.reshape(-1)))


def _looked_up(state: Sweep, node: Node, packed: _Packed) -> Sequence[Value]:
    codes, scales, *zeros = packed.constants
    op = PanelGather(packed.columns, packed.panels, packed.zero, packed.has_zeros)
    found = state.add_piece(op, (codes, node.inputs[1], scales, *zeros), node)
    made = node.outputs[0].type
    if made.dtype is not DType.F32:
        found = state.add_piece(Cast(made.dtype), (found,), node)
    return state.add(Reshape(made.shape), (found,), node)


def _contracted(
    state: Sweep, node: Node, x: Value, columns: int, bias: Value | None, packed: _Packed
) -> Sequence[Value]:
    dtype, shape = x.type.dtype, (*x.type.shape[:-1], columns)
    rows = _rows(state, node, x, packed.blocks * packed.block)
    total = _multiplied(state, node, rows, packed)
    if dtype is not DType.F32:
        total = state.add_piece(Cast(dtype), (total,), node)
    if bias is not None:
        total = state.add_piece(Add(), (total, bias), node)
    return state.add(Reshape(shape), (total,), node)


def _rows(state: Sweep, node: Node, x: Value, columns: int) -> Value:
    """x as rows of floats, with zeros behind that fill the last block."""
    shape = x.type.shape
    if x.type.dtype is not DType.F32:
        x = state.add_piece(Cast(DType.F32), (x,), node)
    if len(shape) != 2:
        x = state.add_piece(Reshape((prod(shape[:-1]), shape[-1])), (x,), node)
    if columns > shape[-1]:
        x = state.add_piece(Pad((0, 0), (0, columns - shape[-1])), (x,), node)
    return x


def _multiplied(state: Sweep, node: Node, rows: Value, packed: _Packed) -> Value:
    """In f32, [rows, columns]."""
    name, panels = node.outputs[0].name, packed.panels
    middle = 1.0 if packed.has_zeros else packed.zero
    if panels.in_words:
        left = list(state.add_pieces(QuantizeBlocks(packed.block, middle), (rows,), node))
    else:
        parts = Reshape((rows.type.shape[0], packed.blocks, packed.block))
        left = [state.add_piece(parts, (rows,), node)]
        if middle:
            left.append(state.add_piece(ReduceSum((2,), keep=False), (left[0],), node))
        if middle not in (0.0, 1.0):
            times = state.add_constant(f"{name}.middle", np.array(middle, np.float32))
            left[1] = state.add_piece(Mul(), (left[1], times), node)
    if not middle and panels.in_words:
        del left[2]
    op = BlockMatMul(packed.columns, panels, is_centred=bool(middle), has_zeros=packed.has_zeros)
    return state.add_piece(op, (*left, *packed.constants), node)
