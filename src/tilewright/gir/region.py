"""Regions: flow graphs with contractions among their nodes, and what may be computed together block of rows by block.

    S[r, j] = sum[c](q[r, c] * k[j, c])          a contraction
    m[r] = max[j](S[r, j])                       rows: folds and maps of what it made
    P[r, j] = exp(S[r, j] - m[r])
    y[r, d] = sum[j](P[r, j] * v[j, d])          a contraction, whose rows are those of P

A contraction is a sum of products of which each factor has an axis of the result that the other does not: so elements
are read again, and a register tile keeps them near. Everything that depends on the first contraction has the *rows* of
the region: what happens at one point of these needs nothing of the others, so all of it can be done for a few rows, and
what is between stays in a cache however many rows there are. Nodes that do not depend on it are its operands (a packed
or transposed matrix), and are there before.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.from_func import joined_graph, own_blocks
from tilewright.ir.expr import Binary, BinaryOp, Select, Var, free_vars, loads
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import identity
from tilewright.tir.func import Func


@dataclass(frozen=True, slots=True, eq=False)
class ContractionRegion:
    graph: FlowGraph
    contractions: tuple[FlowNode, ...]
    operands: tuple[FlowNode, ...]  # what does not depend on a contraction
    rows: tuple[Var, ...]  # in the order of the last node's memory
    axis_of: Mapping[Var, Var]  # by the iterators of its blocks

    @property
    def chained(self) -> tuple[FlowNode, ...]:
        """The first contraction, and everything that depends on it."""
        return tuple(n for n in self.graph.nodes if n not in self.operands)


def region_of(func: Func) -> ContractionRegion:
    """ScheduleError if it is no flow graph, or if it has no contraction with rows that others share."""
    graph, axis_of = joined_graph(func.name, func.params, own_blocks(func))
    contractions = tuple(n for n in graph.nodes if is_contraction(n))
    if not contractions:
        raise ScheduleError(f"{func.name} has no contraction")
    chained: list[FlowNode] = []
    for n in graph.nodes:
        if n is contractions[0] or any(r in chained for r in graph.inner_reads(n)):
            chained.append(n)
    rows = tuple(a for a in chained[-1].axes if all(a in n.axes for n in chained))
    if not rows:
        raise ScheduleError(f"{func.name}: nothing has the rows of {contractions[0].name} throughout")
    operands = tuple(n for n in graph.nodes if n not in chained)
    return ContractionRegion(graph, contractions, operands, rows, axis_of)


def is_contraction(node: FlowNode) -> bool:
    """Is it a sum of products whose factors are read again along different axes? As far as an open dimension is in use,
    if it is over one.
    """
    value = node.value
    if isinstance(value, Select) and not loads(value.cond) and value.b is identity("sum", value.dtype):
        value = value.a
    match value:
        case Binary(op=BinaryOp.MUL, a=a, b=b) if node.is_fold and node.combine is BinaryOp.ADD:
            left, right = (free_vars(e) & {*node.axes} for e in (a, b))
            return bool(left - right) and bool(right - left)
        case _:
            return False
