"""Rewrites of folds over windows: the same result by fewer operations, from the algebra of the fold alone.

    y[h, w] = max[k, l](x[h + k, w + l])      ──>      t[h, q] = max[k](x[h + k, q])                   separated
                                                       y[h, w] = max[l](t[h, w + l])

A value that depends on a position and on an axis of its window only by where both are together (`w + l`) is the same
for all pairs that meet there. So what the other axes fold is folded once for every place, and windows then move over
that: of a window of 5 x 5, 5 + 5 values instead of 25. All folds combine in any order; but sums round differently.

    y[w] = max[l < 5](t[w + l])      ──>      u[q] = max[m < 4](t[q + m]),  y[w] = max[l < 2](u[w + l])      halved

A maximum may take up an element twice: two windows that overlap are as good as one. So a window of n takes log2(n)
steps, each of two values.
"""

from dataclasses import dataclass, replace
from math import gcd

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.printer import indexed_axes
from tilewright.ir.expr import TRUE, BinaryOp, Buffer, Expr, Load, Var, free_vars, loads, select
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier

_IDEMPOTENT = (BinaryOp.MAX, BinaryOp.MIN)
_LEAST_HALVED = 4  # values of a window; given: of 3, two steps of two values are no fewer operations


@dataclass(frozen=True, slots=True)
class FoldWindow:
    """A fold that reads at `position * stride + axis * dilation`, and depends on either by nothing else."""

    position: Var
    axis: Var
    stride: int
    dilation: int

    def place(self, position: Expr, axis: Expr) -> Expr:
        return position * self.stride + axis * self.dilation


def find_window(graph: FlowGraph, node: FlowNode, axis: Var) -> FoldWindow | None:
    """How the window lies along an axis that is folded."""
    simplify = Simplifier({a: Interval(0, e - 1) for a, e in graph.extents.items()})
    for ld in loads(node.value):
        for index in ld.indices:
            terms = dict(simplify.linear(index).terms)
            for v, k in terms.items():
                if isinstance(v, Var) and v in node.axes and k > 0 and terms.get(axis, 0) > 0:
                    both = gcd(k, terms[axis])
                    found = FoldWindow(v, axis, k // both, terms[axis] // both)
                    if min(found.stride, found.dilation) == 1 and _at_place(graph, node, found, Var("at")):
                        return found
    return None


def rewritten(graph: FlowGraph, *, separate: bool, halve: int) -> FlowGraph:
    """As a plan says: `halve` is 0 for no windows, 1 for those over other nodes, 2 for those over memory too. Lanes are
    what lies side by side in the result.
    """
    *_, lanes = (None, *indexed_axes(graph.outputs[-1].indices))
    if separate:
        graph = separated(graph, lanes=lanes)
    return halved(graph, of_memory=halve > 1) if halve else graph


def separated(graph: FlowGraph, *, lanes: Var | None = None) -> FlowGraph:
    """With the one fold of a graph made of folds over one axis each: the axis that moves along the innermost memory of
    the result comes last. If `lanes` is given, a predicate on windows along it is one on places.
    """
    (node,) = (n for n in graph.nodes if n.is_fold)
    nodes, extents = [node], dict(graph.extents)
    while (cut := _last_window(replace(graph, extents=extents), nodes[0], lanes)) is not None:
        first, last, extents = _cut(extents, nodes[0], cut)
        nodes[:1] = [first, last]
    every = [m for n in graph.nodes for m in (nodes if n is node else [n])]
    return replace(graph, extents=extents, nodes=tuple(every))


def halved(graph: FlowGraph, *, of_memory: bool) -> FlowGraph:
    """With windows made of windows of two values, if these may overlap: those over other nodes, and if it is said those
    `of_memory`. Their places are then no rows that could be taken one by one.
    """
    extents, nodes = dict(graph.extents), list[FlowNode]()
    for n in graph.nodes:
        made = [n]
        while (of_memory or graph.inner_reads(n)) and (
            cut := _halves(replace(graph, extents=extents), made[0])
        ) is not None:
            first, last, extents = cut
            made[:1] = [first, last]
        nodes += made
    used = {a for n in nodes for a in (*n.axes, *n.over)}
    return replace(graph, extents={a: e for a, e in extents.items() if a in used}, nodes=tuple(nodes))


# ----------------------------------------------------------------------------------------------------------- separation


def _last_window(graph: FlowGraph, node: FlowNode, lanes: Var | None) -> FoldWindow | None:
    """The window to take apart: the innermost of several; or the only one, if its predicate is one of lanes."""
    windows = [w for a in node.over if (w := find_window(graph, node, a)) is not None]
    order = indexed_axes(node.indices)
    last = max(windows, key=lambda w: order.index(w.position), default=None)
    if last is None or (
        len(node.over) == 1 and (last.position is not lanes or not _is_predicated(node, last))
    ):
        return None
    return last


def _is_predicated(node: FlowNode, w: FoldWindow) -> bool:
    return bool({w.position, w.axis} & free_vars(node.where))


def _cut(extents: dict[Var, int], node: FlowNode, w: FoldWindow) -> tuple[FlowNode, FlowNode, dict[Var, int]]:
    """What the other axes fold at each place, and the windows over that."""
    graph = FlowGraph("", (), extents, ())
    place = Var(f"{w.position.name}_at")
    count = (extents[w.position] - 1) * w.stride + (extents[w.axis] - 1) * w.dilation + 1
    moved = _at_place(graph, node, w, place, count)
    assert moved is not None
    value, where = moved
    rest = tuple(a for a in node.over if a is not w.axis)
    if not rest and where is not TRUE:
        value, where = select(where, value, node.start), TRUE
    extents = {**extents, place: count}
    first = _made(node, f"{node.name}_lines", w.position, place, extents)
    first = replace(
        first, value=value, where=where, over=rest, combine=node.combine if rest else BinaryOp.ADD
    )
    return first, _over(node, first, w), extents


def _made(node: FlowNode, name: str, position: Var, place: Var, extents: dict[Var, int]) -> FlowNode:
    """A node for each place, of values that nobody has named yet."""
    axes = tuple(place if a is position else a for a in indexed_axes(node.indices))
    out = Buffer(name, tuple(extents[a] for a in axes), node.out.dtype)
    return FlowNode(name, out, axes, axes, node.value)


def _over(node: FlowNode, first: FlowNode, w: FoldWindow) -> FlowNode:
    """The windows of a node, over what another has made for each place."""
    at = tuple(a if a in node.axes else w.place(w.position, w.axis) for a in first.axes)
    return replace(node, value=Load(first.out, at), over=(w.axis,), where=TRUE)


def _at_place(
    graph: FlowGraph, node: FlowNode, w: FoldWindow, place: Var, count: int | None = None
) -> tuple[Expr, Expr] | None:
    """The value and predicate of a node by the place alone, if they depend on nothing else of the window."""
    extents = graph.extents
    if count is None:
        count = (extents[w.position] - 1) * w.stride + (extents[w.axis] - 1) * w.dilation + 1
    ranges = {a: Interval(0, e - 1) for a, e in extents.items()}
    simplify = Simplifier({**ranges, place: Interval(0, count - 1)})
    # One of the two moves by one, and is the place less the other.
    values: dict[Var, Expr] = (
        {w.position: place - w.axis * w.dilation}
        if w.stride == 1
        else {w.axis: place - w.position * w.stride}
    )
    value, where = (simplify(substitute(e, values)) for e in (node.value, node.where))
    return None if {w.position, w.axis} & (free_vars(value) | free_vars(where)) else (value, where)


# -------------------------------------------------------------------------------------------------------------- halving


def _halves(graph: FlowGraph, node: FlowNode) -> tuple[FlowNode, FlowNode, dict[Var, int]] | None:
    """Windows of about half as many values at each place, and pairs of them."""
    if node.combine not in _IDEMPOTENT or len(node.over) != 1:
        return None
    w = find_window(graph, node, node.over[0])
    count = graph.extents[node.over[0]]
    if w is None or count < _LEAST_HALVED:
        return None
    half = 1 << ((count - 1).bit_length() - 1)
    place, own, pair = (Var(f"{w.axis.name}_{word}{half}") for word in ("at", "of", "pair"))
    apart = (count - half) * w.dilation
    extents = {**graph.extents, own: half, pair: 2}
    extents[place] = (extents[w.position] - 1) * w.stride + apart + 1
    reach = extents[place] + (half - 1) * w.dilation
    moved = _at_place(graph, node, w, place, reach)
    assert moved is not None
    first = _made(node, f"{node.name}_{half}", w.position, place, extents)
    inner = {place: place + own * w.dilation}
    simplify = Simplifier({a: Interval(0, e - 1) for a, e in extents.items()})
    value, where = (simplify(substitute(e, inner)) for e in moved)
    first = replace(first, value=value, where=where, over=(own,), combine=node.combine)
    return first, _over(node, first, FoldWindow(w.position, pair, w.stride, apart)), extents
