"""The graph of nests that follow each other inside of loops: rows that are computed near where they are needed.

    for b in range(16):                                       b = around(16)
        …                                                     r, j = axes(8, 64)
        for r, j: M[b * 8 + r] = max(…, X[b * 8 + r, j])  ──>  M[b * 8 + r] = max[j](X[b * 8 + r, j])
        for r, j: P[b * 8 + r, j] = exp(…)                    P[b * 8 + r, j] = exp(X[b * 8 + r, j] - M[b * 8 + r])

Blocks have their iterators whatever loops they are under, so the graph is that of the blocks (`gir/from_func.py`), with
the part of each axis that the nests go over. What the loops around say where that part begins is `around`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.from_func import check_rows, joined_graph, own_block
from tilewright.ir.expr import TRUE, Buffer, Expr, Var, as_index, free_vars
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.support.errors import ScheduleError
from tilewright.tir.stmt import Block, For, LoopKind, Stmt


@dataclass(frozen=True, slots=True)
class NestedGraph:
    graph: FlowGraph
    loops: Mapping[Var, Var]  # around the nests, by the names that their values have in the graph


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an axis."""

    start: Expr  # over the loops around
    count: int


def nested_graph_of(
    nests: Sequence[Stmt], params: tuple[Buffer, ...], around: Mapping[Var, int]
) -> NestedGraph:
    """Of nests under the loops `around` (and their extents); `params` are the buffers that others use too.
    ScheduleError if it is no graph of rows with folds.
    """
    found = [_block(nest, around) for nest in nests]
    made = [b.store.buffer for b, _ in found if b.try_store is not None]
    if len(set(made)) < len(made):
        raise ScheduleError("several blocks write one buffer")
    name = found[-1][0].name
    graph, axis_of = joined_graph(name, params, [own_block(b) for b, _ in found])
    parts: dict[Var, _Part] = {}
    for block, places in found:
        for it, part in zip(block.iters, places, strict=True):
            is_whole = part == _Part(as_index(0), it.extent)
            axis = axis_of.get(it.var)
            if axis is None:
                if not is_whole:
                    raise ScheduleError(f"{block.name} goes over a part of {it.var}, which others split")
            elif parts.setdefault(axis, part) != part:
                raise ScheduleError(f"{block.name} goes over another part than its neighbours")
    used = {v for p in parts.values() for v in free_vars(p.start)}
    bound = {v: Var(f"{name}_v{v.name}") for v in around if v in used}
    local = _localised(graph, parts, bound, {bound[v]: around[v] for v in bound})
    check_rows(local)
    if not any(n.is_fold for n in local.nodes):
        raise ScheduleError(f"{name} and what is before it fold nothing")
    return NestedGraph(local, {own: v for v, own in bound.items()})


def _block(nest: Stmt, around: Mapping[Var, int]) -> tuple[Block, list[_Part]]:
    """The block of a nest, and the parts of its domain that it is run for."""
    block, own = nest, dict[Var, int]()
    while isinstance(block, For) and block.kind is LoopKind.SERIAL and not block.annotations:
        own[block.var] = block.extent
        block = block.body
    if not isinstance(block, Block) or block.predicate is not TRUE:
        raise ScheduleError("a nest is not one block under plain loops")
    simplify = Simplifier({v: Interval(0, e - 1) for v, e in (*around.items(), *own.items())})
    parts: list[_Part] = []
    left = dict(own)
    for it, binding in zip(block.iters, block.bindings, strict=True):
        mine = [v for v in left if v in free_vars(binding)]
        start = simplify(substitute(binding, dict.fromkeys(mine, as_index(0))))
        if len(mine) > 1 or simplify(binding - start) is not (mine[0] if mine else as_index(0)):
            raise ScheduleError(f"{block.name} does not go over {it.var} one by one")
        if not free_vars(start) <= around.keys():
            raise ScheduleError(f"{block.name} goes over two iterators at once")
        parts.append(_Part(start, left.pop(mine[0]) if mine else 1))
    if any(e > 1 for e in left.values()):
        raise ScheduleError(f"{block.name} is run several times")
    return block, parts


def _localised(
    graph: FlowGraph, parts: Mapping[Var, _Part], bound: Mapping[Var, Var], around: dict[Var, int]
) -> FlowGraph:
    """The graph over parts of its axes."""
    extents = {a: parts[a].count if a in parts else e for a, e in graph.extents.items()}
    simplify = Simplifier({v: Interval(0, e - 1) for v, e in (*around.items(), *extents.items())})
    names: dict[Var, Expr] = {**bound}
    values: dict[Var, Expr] = {}
    for a, p in parts.items():
        start = substitute(p.start, names)
        values[a] = simplify(start + a if p.count > 1 else start)

    def kept(axes: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(a for a in axes if extents[a] > 1)

    def at(e: Expr) -> Expr:
        return simplify(substitute(e, values))

    def node(n: FlowNode) -> FlowNode:
        if n.is_scan or any(extents[a] < graph.extents[a] for a in n.over):
            raise ScheduleError(f"{n.name} does not fold all of its elements here")
        return replace(
            n,
            indices=tuple(map(at, n.indices)),
            axes=kept(n.axes),
            value=at(n.value),
            where=at(n.where),
        )

    nodes = tuple(map(node, graph.nodes))
    return replace(graph, extents={a: e for a, e in extents.items() if e > 1}, nodes=nodes, around=around)
