"""The interpreter of flow graphs: what a graph means, whatever plan runs it.

Nodes are computed one after the other, each for all points of its axes at once. A fold takes up the points of `over`
one by one, the last axis fastest, with the operation that `FlowNode.taken_up` gives, and a scan those of its axis: as
the blocks do that the graph was made of. A graph inside of loops is computed for all of their values. The two agree to
the bit, but for sums of products, which a graph rounds once. A plan may put sums together in another order, and agrees
as far as that allows.

It shares the meaning of expressions with the interpreter of TIR (`ir/evaluate.py`), and nothing else.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.ir.evaluate import Evaluated, evaluate
from tilewright.ir.expr import Buffer, Expr, Indices, Load, Var, as_index
from tilewright.ir.rewrite import substitute
from tilewright.support.arrays import Array
from tilewright.support.errors import InternalError, UserError
from tilewright.tir.interp import check_array, is_inside, poisoned_array


def interpret_flow_graph(graph: FlowGraph, arrays: Mapping[Buffer, Array]) -> None:
    """Run `graph` on `arrays`, one for each of its params, which it reads and writes in place."""
    for p in graph.params:
        if p not in arrays:
            raise UserError(f"{graph.name}: no array is given for {p}")
        check_array(graph.name, p, arrays[p])
    inside = {n.out: poisoned_array(n.out) for n in graph.nodes if n.out not in graph.params}
    memory = {**{p: arrays[p] for p in graph.params}, **inside}
    for values in product(*map(range, graph.around.values())):
        around = {v: np.int64(i) for v, i in zip(graph.around, values, strict=True)}
        machine = _FlowMachine(graph, memory, around)
        for n in graph.nodes:
            machine.run(n)


def run_flow_graph(graph: FlowGraph, *inputs: Array) -> tuple[Array, ...]:
    """Run `graph` on the params that no node makes, in order; returns those that nodes make, in the order of params."""
    given = [p for p in graph.params if p not in graph.makers]
    if len(given) != len(inputs):
        raise UserError(f"{graph.name} takes {len(given)} inputs, {len(inputs)} were given")
    made = [p for p in graph.params if p in graph.makers]
    arrays = dict(zip(given, inputs, strict=True)) | {p: poisoned_array(p) for p in made}
    interpret_flow_graph(graph, arrays)
    return tuple(arrays[p] for p in made)


class _FlowMachine:
    def __init__(
        self, graph: FlowGraph, memory: Mapping[Buffer, Array], around: Mapping[Var, Evaluated]
    ) -> None:
        self._graph, self._memory, self._around = graph, memory, around

    def run(self, node: FlowNode) -> None:
        if node.along is not None:
            return self._scan(node, node.along)
        points = self._all_at_once(node.axes)
        if not node.is_fold:
            return self._store(node, node.value, points)
        self._store(node, node.start, points)
        so_far = node.taken_up(Load(node.out, node.indices))
        for at in product(*(range(self._graph.extents[a]) for a in node.over)):
            taken = {a: np.int64(i) for a, i in zip(node.over, at, strict=True)}
            self._store(node, so_far, {**points, **taken})
        return None

    def _scan(self, node: FlowNode, along: Var) -> None:
        """Element by element: what is stored is combined with the next value."""
        points = self._all_at_once(tuple(a for a in node.axes if a is not along))
        order = range(self._graph.extents[along])
        before: int | None = None
        for n in reversed(order) if node.reverse else order:
            # The value of an exclusive scan is that of the place before.
            taken = as_index(n if before is None or not node.exclusive else before)
            value = substitute(node.value, {along: taken})
            if before is None:
                so_far = node.start
            else:
                so_far = Load(node.out, tuple(substitute(i, {along: as_index(before)}) for i in node.indices))
            is_first = node.exclusive and before is None
            combined = so_far if is_first else node.combined(so_far, value)
            self._store(node, combined, {**points, along: np.int64(n)})
            before = n

    def _all_at_once(self, axes: tuple[Var, ...]) -> dict[Var, Evaluated]:
        """Each axis as a dimension of its own."""
        extents = [self._graph.extents[a] for a in axes]
        return dict(zip(axes, np.ogrid[tuple(slice(e) for e in extents)], strict=True)) if axes else {}

    def _store(self, node: FlowNode, value: Expr, points: Mapping[Var, Evaluated]) -> None:
        at = {**self._around, **points}
        where: Any = self._places(node, node.out, node.indices, at)
        self._memory[node.out][where] = evaluate(value, at, lambda ld, i: self._load(node, ld, i))

    def _places(
        self, node: FlowNode, buffer: Buffer, indices: Indices, at: Mapping[Var, Evaluated]
    ) -> tuple[Evaluated, ...]:
        found = tuple(evaluate(i, at, lambda ld, j: self._load(node, ld, j)) for i in indices)
        self._check(node, buffer, found)
        return found

    def _load(self, node: FlowNode, read: Load, indices: tuple[Evaluated, ...]) -> Evaluated:
        self._check(node, read.buffer, indices)
        where: Any = indices
        return self._memory[read.buffer][where]

    def _check(self, node: FlowNode, buffer: Buffer, indices: tuple[Evaluated, ...]) -> None:
        if buffer not in self._memory:
            raise InternalError(f"{self._graph.name}: {node.name} uses {buffer}, which nothing makes")
        for index, extent in zip(indices, buffer.shape, strict=True):
            if not is_inside(index, extent):
                raise InternalError(f"{self._graph.name}: {node.name} is outside {buffer}")
