"""How much there is to do in a node, from sizes alone."""

from math import isqrt

from tilewright.graph.graph import Node
from tilewright.ops.opdef import Kind


def multiplications(node: Node) -> int:
    """Of a contraction: m·n·k, or more if there are batch axes; 0 of others."""
    if node.op.kind is not Kind.CONTRACTION or len(node.inputs) < 2:
        return 0
    a, b, *_ = (
        node.inputs
    )  # m·k and k·n elements; with the m·n of the output, the root of the product is m·n·k
    return isqrt(a.size * b.size * node.outputs[0].size)
