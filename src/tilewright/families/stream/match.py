"""Which Funcs stream: flow graphs with folds or scans that are bound by memory, or by the arithmetic on what comes from
there.

A contraction reads an element many times, and a window moves over its neighbours: other families keep these near. But
rows that are each multiplied by a vector are read once.
"""

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.from_func import flow_graph_of
from tilewright.gir.plan import find_lanes
from tilewright.ir.expr import Binary, BinaryOp, Load, free_vars, loads
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func


def try_flow_graph(func: Func) -> FlowGraph | None:
    """The graph of a Func whose folds take every element up once."""
    graph = _try_graph(func)
    return None if graph is None or any(_multiplies(n) for n in graph.nodes) else graph


def try_row_products(func: Func) -> FlowGraph | None:
    """The graph of a Func with one fold, along rows: of products of their elements with others, which may be the same
    for all rows.
    """
    graph = _try_graph(func)
    if graph is None or find_lanes(graph)[0] in graph.rows or not any(n.is_fold for n in graph.nodes):
        return None
    (fold, *others) = [n for n in graph.nodes if n.is_fold]
    every = {*fold.axes, *fold.over}
    whole = [ld for ld in _all_reads(graph, fold) if {v for i in ld.indices for v in free_vars(i)} >= every]
    return graph if whole and not others else None


def try_any_fold(func: Func) -> FlowGraph | None:
    """The graph of a Func with one fold or scan, whatever it reads again."""
    graph = _try_graph(func, windows=True)
    return graph if graph is not None and sum(n.is_fold or n.is_scan for n in graph.nodes) == 1 else None


def _try_graph(func: Func, *, windows: bool = False) -> FlowGraph | None:
    try:
        graph = flow_graph_of(func)
    except ScheduleError:
        return None
    folds = [n for n in graph.nodes if n.is_fold or n.is_scan]
    moves = any(len(free_vars(i)) > 1 for n in folds for ld in _all_reads(graph, n) for i in ld.indices)
    return graph if folds and find_lanes(graph) and (windows or not moves) else None


def _multiplies(node: FlowNode) -> bool:
    """Is it a sum of products of different buffers?"""
    match node.value:
        case Binary(op=BinaryOp.MUL, a=a, b=b) if node.is_fold:
            left, right = ({ld.buffer for ld in loads(e)} for e in (a, b))
            return bool(left) and bool(right) and not left & right
        case _:
            return False


def _all_reads(graph: FlowGraph, node: FlowNode) -> list[Load]:
    """What a node reads of memory, through other nodes too."""
    return [*graph.reads(node), *(ld for n in graph.inner_reads(node) for ld in _all_reads(graph, n))]
