"""Weights of products that are kept in halves: what widens them is a part of the products, which do it in registers.

Products of few rows are as slow as memory, and read half of it so. With many rows every tile would widen weights again.
"""

from collections.abc import Iterator
from math import prod

from tilewright.graph.graph import Graph, Node, users
from tilewright.ir.dtype import DType
from tilewright.ops.core.cast import Cast
from tilewright.ops.core.contraction import Gemm, MatMul
from tilewright.support.sizes import is_open

_FEW_ROWS = (
    8  # rows whose products take as long as their weights from memory; judged: of the processors at hand
)


def widened_weights(graph: Graph) -> Iterator[Node]:
    """The casts of constants in halves to f32 of which products of few rows are made, and nothing else."""
    readers, results = users(graph), set(graph.outputs)
    for n in graph.nodes:
        if n.inputs and n.inputs[0] in graph.constants and _is_widening(n):
            (made,) = n.outputs
            if made not in results and all(reads_weights(u, u.inputs.index(made)) for u in readers[made]):
                yield n


def reads_weights(node: Node, number: int) -> bool:
    """Is this input of the node the weights of a product of few rows?"""
    if not isinstance(node.op, MatMul | Gemm) or number != 1 or len(node.inputs[1].shape) != 2:
        return False
    rows = node.outputs[0].shape[:-1]
    return is_open(rows) or prod(rows) <= _FEW_ROWS


def _is_widening(node: Node) -> bool:
    source, made = node.inputs[0].type.dtype, node.outputs[0].type.dtype
    return isinstance(node.op, Cast) and source.is_half and made is DType.F32
