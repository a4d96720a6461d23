"""Which Funcs stream: flow graphs with folds that are bound by memory, or by the arithmetic on what comes from there.

A contraction reads an element many times, and a window moves over its neighbours: other families keep these near.
"""

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.from_func import flow_graph_of
from tilewright.gir.plan import find_lanes
from tilewright.ir.expr import Binary, BinaryOp, Load, free_vars, loads
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func


def try_flow_graph(func: Func) -> FlowGraph | None:
    """The graph of a Func whose folds take every element up once."""
    try:
        graph = flow_graph_of(func)
    except ScheduleError:
        return None
    folds = [n for n in graph.nodes if n.is_fold]
    if not folds or not find_lanes(graph) or any(_reads_again(graph, n) for n in folds):
        return None
    return graph


def _reads_again(graph: FlowGraph, fold: FlowNode) -> bool:
    """Is it a window, or a contraction?"""
    if any(len(free_vars(i)) > 1 for ld in _all_reads(graph, fold) for i in ld.indices):
        return True
    match fold.value:
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            left, right = ({ld.buffer for ld in loads(e)} for e in (a, b))
            return bool(left) and bool(right) and not left & right
        case _:
            return False


def _all_reads(graph: FlowGraph, node: FlowNode) -> list[Load]:
    """What a node reads of memory, through other nodes too."""
    return [*graph.reads(node), *(ld for n in graph.inner_reads(node) for ld in _all_reads(graph, n))]
