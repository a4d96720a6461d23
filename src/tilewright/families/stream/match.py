"""Which Funcs stream: flow graphs with folds that are bound by memory, or by the arithmetic on what comes from there.

A contraction reads an element many times, and a window moves over its neighbours: other families keep these near.
"""

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.from_func import flow_graph_of
from tilewright.gir.plan import find_lanes, memory_accesses, strides
from tilewright.ir.expr import Binary, BinaryOp, Load, free_vars, loads, walk
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.stmt import store_blocks


def try_flow_graph(func: Func) -> FlowGraph | None:
    """The graph of a Func whose folds take every element up once, or that only moves elements to other places, by
    quotients of indices that tiles do without.
    """
    try:
        graph = flow_graph_of(func)
    except ScheduleError:
        return None
    folds = [n for n in graph.nodes if n.is_fold]
    if not find_lanes(graph) or any(_reads_again(graph, n) for n in folds):
        return None
    return graph if folds or (_has_quotients(func) and _lies_along(graph)) else None


def _has_quotients(func: Func) -> bool:
    read = [i for _, store in store_blocks(func.body) for ld in loads(store.value) for i in ld.indices]
    return any(
        isinstance(e, Binary) and e.op in (BinaryOp.FLOORDIV, BinaryOp.MOD) for i in read for e in walk(i)
    )


def _lies_along(graph: FlowGraph) -> bool:
    """Do all lanes read and write neighbours, or one element?"""
    last = graph.swept[-1:]
    steps = [strides(graph, b, indices) for b, indices, _ in memory_accesses(graph)]
    return bool(graph.rows) and all(s is not None and s.get(a, 0) in (0, 1) for s in steps for a in last)


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
