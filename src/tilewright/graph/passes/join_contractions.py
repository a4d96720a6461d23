"""Contractions of one input with different weights become one, with the weights side by side.

    q = Add(MatMul(x, wq), bq)         j = Add(MatMul(x, [wq wk wv]), [bq bk bv])      f32[m, 3·n]
    k = Add(MatMul(x, wk), bk)         s = Transpose[1, 0, 2](Reshape[m, 3, n](j))     f32[3, m, n]
    v = Add(MatMul(x, wv), bv)    →    q, k, v = s[0], s[1], s[2]

One contraction has a third of the edges, and more columns to fill registers and to divide among threads. Elementwise
nodes that all branches have in common, with constants of their own, are joined too; so is a reshape of the columns
(into heads), and the part of a transpose that leaves rows whole. Parts lie behind each other in memory, not side by
side: those who read a part find it laid out as if it had never been joined, and read it in place.

It happens where nobody can lose by it:
- all weights are constants of one type and shape (equal k and n), and no part is a result of the graph, which would
  have to be copied;
- no branch goes on with elementwise nodes that others lack: these would no longer run on the register tile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewright.graph.graph import Graph, Node, Value, users
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.core.contraction import Gemm, MatMul
from tilewright.ops.core.elementwise import Elementwise
from tilewright.ops.core.movement import Reshape, Transpose
from tilewright.ops.core.pieces import Slice
from tilewright.support.arrays import Array


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """A contraction, and the nodes after it that are joined too. Each reads what the one before it makes."""

    head: Node
    epilogue: tuple[Node, ...] = ()
    reshape: Node | None = None  # of the columns
    transpose: Node | None = None  # a transpose after that

    @property
    def result(self) -> Value:
        """The value before any movement."""
        return (self.head, *self.epilogue)[-1].outputs[0]

    @property
    def end(self) -> Value:
        """The value that a part of the joint result stands for."""
        return (self.transpose or self.reshape or (self.head, *self.epilogue)[-1]).outputs[0]


def join_contractions(graph: Graph) -> Graph:
    finder = _Finder(graph)
    joints = [j for heads in finder.candidates() if (j := finder.joint(heads)) is not None]
    place = {b.end: (branches, n) for branches in joints for n, b in enumerate(branches)}
    made: dict[Value, Value] = {}  # the joint result, by the end of the first branch

    def join(state: Sweep, node: Node) -> Sequence[Value] | None:
        if len(node.outputs) != 1 or node.outputs[0] not in place:
            return None
        branches, n = place[node.outputs[0]]
        first = branches[0].end
        if first not in made:
            made[first] = _joint_result(state, branches, node)
        return _part(state, made[first], branches[n], n, node)

    return sweep(graph, join)


# ------------------------------------------------------------------------------------------------ what is joined


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self._constants, self._results, self._users = graph.constants, set(graph.outputs), users(graph)
        self._nodes = graph.nodes

    def candidates(self) -> list[list[Node]]:
        """Contractions that could be one: of the same kind, with one input, and constant weights of one type."""
        found: dict[tuple[object, ...], list[Node]] = {}
        for n in self._nodes:
            match n.op:
                case MatMul() if len(n.inputs[0].shape) > 1 and len(n.inputs[1].shape) == 2:
                    pass
                case Gemm(alpha=1.0, beta=1.0, trans_a=False):
                    pass
                case _:
                    continue
            x, w, *bias = n.inputs
            rows = all(self._is_row(c, n.outputs[0]) for c in bias)
            if x not in self._constants and w in self._constants and rows and n.outputs[0].size:
                found.setdefault((repr(n.op), x, w.type, len(bias)), []).append(n)
        return [same for same in found.values() if len(same) > 1]

    def joint(self, heads: list[Node]) -> list[_Branch] | None:
        """The branches with all that can be joined; None if they should stay as they are."""
        branches = [_Branch(h) for h in heads]
        while True:
            steps = [n for b in branches if (n := self._only_reader(b.end)) is not None and self._is_step(n)]
            if not steps:
                break
            if len(steps) < len(branches) or len({self._kind_of_step(n) for n in steps}) > 1:
                return None
            branches = [replace(b, epilogue=(*b.epilogue, n)) for b, n in zip(branches, steps, strict=True)]
        if any(b.end in self._results or self._goes_on(b.end) for b in branches):
            return None
        reshapes = [n for b in branches if (n := self._only_reader(b.end)) and isinstance(n.op, Reshape)]
        shapes = {n.outputs[0].shape for n in reshapes}
        if len(reshapes) < len(branches) or len(shapes) > 1:
            return branches
        if _column_axis(branches[0].result.shape[-1], shapes.pop()) is None:
            return branches
        branches = [replace(b, reshape=n) for b, n in zip(branches, reshapes, strict=True)]
        transposes = [n for b in branches if (n := self._only_reader(b.end)) and isinstance(n.op, Transpose)]
        if len(transposes) < len(branches) or len({_row_order(n) for n in transposes}) > 1:
            return branches
        return [replace(b, transpose=n) for b, n in zip(branches, transposes, strict=True)]

    def _only_reader(self, value: Value) -> Node | None:
        readers = self._users[value]
        return readers[0] if len(readers) == 1 and value not in self._results else None

    def _is_row(self, value: Value, out: Value) -> bool:
        """A constant that has one element, or one for each column of `out`."""
        return value in self._constants and (
            value.size == 1 or value.size == out.shape[-1] == value.shape[-1]
        )

    def _is_step(self, node: Node) -> bool:
        """An elementwise node with one input that is not constant, whose constants can be put side by side."""
        if not isinstance(node.op, Elementwise) or len(node.outputs) != 1:
            return False
        varying = [v for v in node.inputs if v not in self._constants]
        rows = all(self._is_row(v, node.outputs[0]) for v in node.inputs if v in self._constants)
        return len(varying) == 1 and varying[0].shape == node.outputs[0].shape and rows

    def _kind_of_step(self, node: Node) -> tuple[object, ...]:
        return repr(node.op), *((v in self._constants, v.type.dtype) for v in node.inputs)

    def _goes_on(self, value: Value) -> bool:
        """Is there an elementwise node after `value` that could run where it is computed?"""
        return any(
            isinstance(n.op, Elementwise) and any(v.shape == value.shape for v in n.outputs)
            for n in self._users[value]
        )


def _column_axis(columns: int, shape: tuple[int, ...]) -> int | None:
    """From which axis on `shape` has the columns, if they have axes of their own."""
    return next((d for d in reversed(range(len(shape))) if prod(shape[d:]) == columns), None)


def _row_order(transpose: Node) -> tuple[int, ...]:
    """The part of a transpose that leaves the last axis in place: the others in the order in which they end up."""
    assert isinstance(transpose.op, Transpose)
    last = len(transpose.op.perm) - 1
    return (*(p for p in transpose.op.perm if p != last), last)


# ------------------------------------------------------------------------------------------------- what they become


def _joint_result(state: Sweep, branches: list[_Branch], node: Node) -> Value:
    """All branches in one tensor: the first axis tells them apart."""
    first, count = branches[0], len(branches)
    columns = first.result.shape[-1]
    head = state.producer(first.head.outputs[0]) or node  # as it has been rewritten
    axis = 0 if isinstance(head.op, Gemm) and head.op.trans_b else 1
    weights = np.concatenate([_array(state, b.head.inputs[1]) for b in branches], axis)
    inputs = [head.inputs[0], state.add_constant(f"{head.inputs[1].name}.joined", weights)]
    if len(head.inputs) > 2:
        inputs.append(_row(state, [b.head.inputs[2] for b in branches], columns))
    value = state.add_piece(head.op, inputs, node)
    for n, step in enumerate(first.epilogue):
        operands = [
            value
            if state.known(v) is None
            else _row(state, [b.epilogue[n].inputs[i] for b in branches], columns)
            for i, v in enumerate(step.inputs)
        ]
        value = state.add_piece(step.op, operands, node)
    shape = first.reshape.outputs[0].shape if first.reshape else first.result.shape
    at = _column_axis(columns, shape)
    assert at is not None
    value = state.add_piece(Reshape((*shape[:at], count, *shape[at:])), (value,), node)
    order = _row_order(first.transpose) if first.transpose else tuple(range(len(shape)))
    return state.add_piece(Transpose((at, *(d + (d >= at) for d in order))), (value,), node)


def _part(state: Sweep, joint: Value, branch: _Branch, n: int, node: Node) -> Sequence[Value]:
    rest = joint.shape[1:]
    cut = Slice((n, *(0 for _ in rest)), (1,) * len(joint.shape), (1, *rest))
    part = state.add_piece(cut, (joint,), node)
    if branch.transpose is not None and isinstance(branch.transpose.op, Transpose):
        perm, order = branch.transpose.op.perm, _row_order(branch.transpose)
        if perm != order:
            rows = state.add_piece(Reshape(rest), (part,), node)
            return state.add(Transpose(tuple(order.index(p) for p in perm)), (rows,), node)
    return state.add(Reshape(rest), (part,), node)


def _row(state: Sweep, values: list[Value], columns: int) -> Value:
    """Constants of one element, or of one for each column, side by side."""
    rows = [np.broadcast_to(_array(state, v).reshape(-1), (columns,)) for v in values]
    return state.add_constant(f"{values[0].name}.joined", np.concatenate(rows))


def _array(state: Sweep, value: Value) -> Array:
    array = state.known(value)
    assert array is not None
    return array
