"""How much there is to do in a node, from sizes alone."""

from math import isqrt, prod

from tilewright.graph.graph import Node
from tilewright.ops.opdef import Kind
from tilewright.tir.build import FuncBuilder
from tilewright.tir.stmt import For, blocks, walk_stmts


def multiplications(node: Node) -> int:
    """Of a contraction: m·n·k, or more if there are batch axes; 0 of others."""
    if node.op.kind is not Kind.CONTRACTION or len(node.inputs) < 2:
        return 0
    a, b, *_ = (
        node.inputs
    )  # m·k and k·n elements; with the m·n of the output, the root of the product is m·n·k
    return isqrt(a.size * b.size * node.outputs[0].size)


def node_iterations(node: Node) -> int:
    """Of all loops that the node is lowered to. Exact where `multiplications` guesses, but it builds blocks."""
    b = FuncBuilder("work")
    inputs = [b.param(f"input{i}", v.shape, v.type.dtype) for i, v in enumerate(node.inputs)]
    func = b.finish(*node.op.compute(b, inputs, "node"))
    total = 0
    for block in blocks(func.body):
        inside = sum(s.extent for s in walk_stmts(block.body) if isinstance(s, For))
        total += prod(it.extent for it in block.iters) * max(1, inside)
    return total
