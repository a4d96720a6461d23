"""Divide by roots once for many elements.

    y = Div(x, Sqrt(s))      →      y = Mul(x, Reciprocal(Sqrt(s)))

where `s` has fewer elements than `x`, as in norms that were exported in pieces: a division takes as long as several
multiplications, and there are as many as elements. Results differ by one rounding. Nothing over- or underflows that did
not before: of a positive number of the element type, the root and its inverse are both far inside of its range. What is
zero or infinite has the same quotients and products, signs and NaNs included.

Half precision stays: there, one rounding more is seen.
"""

from collections.abc import Sequence

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.pattern import root_of
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ir.dtype import DType
from tilewright.ops.core.arithmetic import Div, Mul
from tilewright.ops.core.pointwise import Reciprocal


def multiply_by_inverse_roots(graph: Graph) -> Graph:
    return sweep(graph, _multiply)


def _multiply(state: Sweep, node: Node) -> Sequence[Value] | None:
    if not isinstance(node.op, Div) or node.outputs[0].type.dtype not in (DType.F32, DType.F64):
        return None
    x, root = node.inputs
    if root_of(state, root) is None or root.size * 2 > node.outputs[0].size:
        return None
    return state.add(Mul(), (x, state.add_piece(Reciprocal(), (root,), node)), node)
