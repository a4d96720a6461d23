"""Multiply by weights of 4 bits in integers, where the model allows it.

    y = MatMulNBits[accuracy_level=4](x, w, s, z) + b
        ──>  q, r, t = QuantizeBlocks(x);  y = BlockMatMul(q, r, t, w', s, z · s) + b

A level of 4 says that x may be brought to bytes, by blocks of its rows. The codes keep their 4 bits, in the order in
which instructions read them; without such an instruction they are unpacked at compile time, as for all other levels.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ir.dtype import DType
from tilewright.ops.contrib.quant_matmul import MatMulNBits, unpacked_array
from tilewright.ops.core.arithmetic import Add
from tilewright.ops.core.block_matmul import GROUP, BlockMatMul, QuantizeBlocks, pack_codes
from tilewright.ops.core.integer import optional_inputs
from tilewright.ops.core.movement import Reshape
from tilewright.support.arrays import Array

_BITS, _INTEGERS = 4, 4  # of a code; the level of accuracy; given


def contract_blocks(graph: Graph, *, has_products: bool) -> Graph:
    """`has_products`: has the target an instruction that sums up products of bytes and numbers of 4 bits?"""

    def contract(state: Sweep, node: Node) -> Sequence[Value] | None:
        return _contracted(state, node, node.op) if isinstance(node.op, MatMulNBits) else None

    return sweep(graph, contract) if has_products else graph


def _contracted(state: Sweep, node: Node, op: MatMulNBits) -> Sequence[Value] | None:
    x, w, scale, zero, groups, bias = optional_inputs((True, True, True, *op.has), node.inputs)
    assert x is not None and w is not None and scale is not None
    fits = (
        op.bits == _BITS and op.accuracy == _INTEGERS and not op.columns % op.block and not op.block % GROUP
    )
    if not fits or groups is not None or x.type.dtype is not DType.F32:
        return None
    packed, scales = state.known(w), state.known(scale)
    zeros = None if zero is None else state.known(zero)
    if packed is None or scales is None or (zero is not None and zeros is None):
        return None
    blocks = op.columns // op.block
    codes = unpacked_array(packed.reshape(op.rows, -1), _BITS)[:, : op.columns]
    scales = scales.reshape(op.rows, blocks)
    name = node.outputs[0].name
    weights = (
        state.add_constant(f"{name}.codes", pack_codes(codes.reshape(op.rows, blocks, op.block))),
        state.add_constant(f"{name}.scales", scales),
        state.add_constant(f"{name}.zeros", (scales * _middles(zeros, op.rows, blocks)).astype(np.float32)),
    )
    rows = x
    if x.type.rank != 2:
        rows = state.add_piece(Reshape((prod(x.type.shape[:-1]), op.columns)), (x,), node)
    left = state.add_pieces(QuantizeBlocks(op.block), (rows,), node)
    total = state.add_piece(BlockMatMul(), (*left, *weights), node)
    if bias is not None:
        total = state.add_piece(Add(), (total, bias), node)
    return state.add(Reshape((*x.type.shape[:-1], op.rows)), (total,), node)


def _middles(zeros: Array | None, rows: int, blocks: int) -> Array:
    """The code that stands for 0, of each row and block."""
    if zeros is None:
        return np.full((rows, blocks), 1 << (_BITS - 1), np.float32)
    if zeros.dtype == np.uint8:
        return unpacked_array(zeros.reshape(rows, -1), _BITS)[:, :blocks].astype(np.float32)
    return zeros.reshape(rows, blocks).astype(np.float32)
