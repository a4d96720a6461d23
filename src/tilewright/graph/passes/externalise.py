"""Regions of plugins become single nodes, which later passes leave alone.

A plugin that wants channels last, or other types of elements, gets them so: the transposes and casts that this takes
are ordinary nodes, which passes fold into their neighbours and layouts of buffers absorb.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright.graph.external import ExternalRegion, Order, Region
from tilewright.graph.graph import Graph, Node, Value
from tilewright.ops.core.cast import Cast
from tilewright.ops.core.movement import Transpose
from tilewright.ops.opdef import TensorType
from tilewright.ops.outside import Outside
from tilewright.support.errors import InternalError, UserError


def externalise(graph: Graph, regions: Sequence[Region]) -> Graph:
    """The graph with a node in place of each region."""
    if not regions:
        return graph
    names = {v.name for v in (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs))}
    groups = [_nodes(region, names) for region in regions]
    inside = {n: i for i, region in enumerate(regions) for n in region.graph.nodes}
    return replace(graph, nodes=_ordered(graph, inside, groups))


def outside_regions(graph: Graph, keys: Collection[str]) -> tuple[ExternalRegion, ...]:
    """The nodes that stand for the regions of these keys, as lowering takes them. UserError for an operator that nobody
    has taken.
    """
    found: list[ExternalRegion] = []
    for n in graph.nodes:
        if isinstance(n.op, Outside):
            if n.op.name not in keys:
                raise UserError(
                    f"{n.op.name} is known to no one but a plugin, and none runs it", where=n.name
                )
            found.append(
                ExternalRegion(n.op.name, (n,), n.inputs, n.outputs)
            )  # the plugin counts on all of them
    return tuple(found)


def _nodes(region: Region, names: set[str]) -> list[Node]:
    """What stands for a region: a node, with what brings its inputs and outputs into the form that it wants."""

    def unique(name: str) -> str:
        while name in names:
            name += "~"
        names.add(name)
        return name

    def chain(v: Value) -> list[Value]:
        """The value as it is stated, with other elements, and in the plugin's order; what is the same is there once."""
        seen = region.seen(v)
        steps = [v]
        if seen.dtype is not v.type.dtype:
            steps.append(Value(unique(f"{v.name}~{seen.dtype.value}"), TensorType(seen.dtype, v.shape)))
        if region.order is Order.CHANNELS_LAST and len(v.shape) > 2:
            steps.append(Value(unique(f"{v.name}~last"), seen))
        return steps

    def transposed(source: Value, made: Value, order: Callable[[int], tuple[int, ...]]) -> Node:
        is_cast = source.type.dtype is not made.type.dtype
        op = Cast(made.type.dtype) if is_cast else Transpose(order(len(made.shape)))
        return Node(op, (source,), (made,), region.key)

    inputs = [chain(v) for v in region.graph.inputs]
    outputs = [chain(v) for v in region.graph.outputs]
    before = [transposed(a, b, last_order) for way in inputs for a, b in pairwise(way)]
    after = [transposed(a, b, first_order) for way in outputs for a, b in pairwise(reversed(way))]
    taken, given = (tuple(way[-1] for way in ways) for ways in (inputs, outputs))
    op = Outside(region.key, tuple(v.type for v in taken), tuple(v.type for v in given))
    return [*before, Node(op, taken, given, region.key), *after]


def last_order(rank: int) -> tuple[int, ...]:
    """Dimension 1 becomes the last."""
    return (0, *range(2, rank), 1)


def first_order(rank: int) -> tuple[int, ...]:
    """The last dimension becomes dimension 1."""
    return (0, rank - 1, *range(1, rank - 1))


def _ordered(graph: Graph, inside: dict[Node, int], groups: Sequence[list[Node]]) -> tuple[Node, ...]:
    """The nodes in an order in which they can run; as in the graph, but for what a region has to wait for."""
    done: set[Value] = {*graph.inputs, *graph.constants}
    waiting = [(inside.get(n), n) for n in graph.nodes]
    needs = [{v for n in group for v in n.inputs} - {v for n in group for v in n.outputs} for group in groups]
    placed: set[int] = set()
    out: list[Node] = []
    while waiting:
        left: list[tuple[int | None, Node]] = []
        for region, n in waiting:
            if region in placed:
                continue
            if (needs[region] if region is not None else {*n.inputs}) <= done:
                nodes = [n] if region is None else groups[region]
                out += nodes
                done.update(v for m in nodes for v in m.outputs)
                if region is not None:
                    placed.add(region)
            else:
                left.append((region, n))
        if len(left) == len(waiting):
            raise InternalError("regions wait for each other")
        waiting = left
    return tuple(out)
