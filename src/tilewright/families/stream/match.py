"""Which Funcs stream: flow graphs with folds that are bound by memory, or by the arithmetic on what comes from there.

A contraction reads an element many times, and a window moves over its neighbours: other families keep these near.
"""

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.from_func import flow_graph_of
from tilewright.gir.plan import find_lanes
from tilewright.ir.expr import Load, free_vars
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
    reads = _all_reads(graph, fold)
    return any(len(free_vars(i)) > 1 for ld in reads for i in ld.indices) or (
        len({ld.buffer for ld in reads}) > 1 and not any(_has_all(graph, fold, ld) for ld in reads)
    )


def _all_reads(graph: FlowGraph, node: FlowNode) -> list[Load]:
    """What a node reads of memory, through other nodes too."""
    return [*graph.reads(node), *(ld for n in graph.inner_reads(node) for ld in _all_reads(graph, n))]


def _has_all(graph: FlowGraph, fold: FlowNode, ld: Load) -> bool:
    """Is there an element of the buffer for every point of the fold?"""
    return {v for i in ld.indices for v in free_vars(i)} >= {*fold.axes, *fold.over}
