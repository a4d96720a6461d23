"""Compute networks of halves in float32, and round where they round.

    h = MatMul(x, w)     f16[m, n]            h' = RoundTo[f16](MatMul(x', w'))     f32[m, n]
    y = Add(h, b)        f16[m, n]     ──>    y' = RoundTo[f16](Add(h', b'))        f32[m, n]

That is what kernels do anyway: they widen halves, compute in float32, and round once at the end of each node. Said in
the graph, all that is known of float32 applies: algorithms with fewer multiplications, chains of contractions,
layouts, fusion. What only moves or chooses elements rounds nothing. Values are the same, to the bit.

Weights of products of few rows stay in halves in memory, which they are read from (`half_weights`); so do tables that
are looked up, inputs and outputs. Nodes that have no form in float32 stay as they are, between casts.
"""

from collections.abc import Sequence

import numpy as np

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.half_weights import reads_weights
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ir.dtype import DType
from tilewright.ops.core.activation import Clip, Relu
from tilewright.ops.core.arithmetic import Max, Min
from tilewright.ops.core.cast import Cast, RoundTo
from tilewright.ops.core.elementwise import Elementwise
from tilewright.ops.core.pointwise import Abs, Neg
from tilewright.ops.core.pool import MaxPool
from tilewright.ops.opdef import Kind, TensorType
from tilewright.support.errors import UserError


def halves_to_floats(graph: Graph) -> Graph:
    has_halves = any(v.type.dtype.is_half for n in graph.nodes for v in n.outputs)
    return sweep(graph, _Rule(graph)) if has_halves else graph


class _Rule:
    def __init__(self, graph: Graph) -> None:
        self._results = {v.name for v in graph.outputs}
        self._rounded: dict[Value, DType] = {}  # values in f32, and the halves that they stand for
        self._wide: dict[Value, Value] = {}  # halves in memory, and the same in f32
        self._is_adding = False

    def __call__(self, state: Sweep, node: Node) -> Sequence[Value] | None:
        if self._is_adding or not any(
            v in self._rounded or v.type.dtype.is_half for v in (*node.inputs, *node.outputs)
        ):
            return None
        self._is_adding = True  # what is made here is as it should be
        try:
            if isinstance(node.op, Cast):
                return self._cast(state, node)
            return self._in_floats(state, node) or self._in_halves(state, node)
        finally:
            self._is_adding = False

    def _cast(self, state: Sweep, node: Node) -> Sequence[Value] | None:
        (x,), (out,) = node.inputs, node.outputs
        to, stands_for = out.type.dtype, self._rounded.get(x)
        if out.name in self._results:
            return state.add(Cast(to), (x,), node) if stands_for else None
        if stands_for is not None and to in (DType.F32, stands_for):
            return (x,)  # results are rounded where they are halves, whatever they are made from
        if to.is_half and x.type.dtype is DType.F32:
            return (self._round(state, node, x, to),)
        return state.add(Cast(to), (x,), node) if stands_for else None

    def _in_floats(self, state: Sweep, node: Node) -> Sequence[Value] | None:
        """None if the node has no form in float32."""
        half = next((v.type.dtype for v in node.outputs if v.type.dtype.is_half), DType.F16)
        if node.op.kind is Kind.MOVEMENT and not any(v in self._rounded for v in node.inputs):
            return None  # of what is in memory as halves: it is moved so
        try:
            types = node.op.infer([_in_f32(v.type) for v in node.inputs])
        except UserError:
            return None
        wanted = [_in_f32(v.type) for v in node.outputs]
        if list(types) != wanted:
            return None
        inputs = [self._widened(state, node, n, v) for n, v in enumerate(node.inputs)]
        made = state.add_pieces(node.op, inputs, node)
        found: list[Value] = []
        for own, value in zip(node.outputs, made, strict=True):
            if not own.type.dtype.is_half:
                found.append(value)
            elif own.name in self._results:
                found.append(state.add_piece(Cast(half), (value,), node))
            elif _only_chooses(node, half):
                self._rounded[value] = half
                found.append(value)
            else:
                found.append(self._round(state, node, value, half))
        return found

    def _in_halves(self, state: Sweep, node: Node) -> Sequence[Value] | None:
        if not any(v in self._rounded for v in node.inputs):
            return None
        inputs = [
            v if (half := self._rounded.get(v)) is None else state.add_piece(Cast(half), (v,), node)
            for v in node.inputs
        ]
        return state.add(node.op, inputs, node)

    def _round(self, state: Sweep, node: Node, x: Value, half: DType) -> Value:
        value = state.add_piece(RoundTo(half), (x,), node)
        self._rounded[value] = half
        return value

    def _widened(self, state: Sweep, node: Node, number: int, value: Value) -> Value:
        if not value.type.dtype.is_half:
            return value
        known = state.known(value)
        if known is not None and not reads_weights(node, number):
            if value not in self._wide:
                self._wide[value] = state.add_constant(f"{value.name}.wide", known.astype(DType.F32.numpy))
            return self._wide[value]
        if known is not None:
            return state.add_piece(Cast(DType.F32), (value,), node)
        if value not in self._wide:
            self._wide[value] = state.add_piece(Cast(DType.F32), (value,), node)
            self._rounded[self._wide[value]] = value.type.dtype
        return self._wide[value]


def _in_f32(type: TensorType) -> TensorType:
    return TensorType(DType.F32, type.shape) if type.dtype.is_half else type


def _only_chooses(node: Node, half: DType) -> bool:
    """Is each element of the results one of the inputs', but for its sign, or a half that is known?"""
    match node.op:
        case Relu() | Max() | Min() | Neg() | Abs() | MaxPool():
            return True
        case Clip(low=low, high=high):
            return all(_is_half(b, half) for b in (low, high))
        case Elementwise(widens=widens):
            return not widens
        case _:
            return node.op.kind is Kind.MOVEMENT


def _is_half(bound: object, half: DType) -> bool:
    """A bound that is an input is one."""
    if not isinstance(bound, float):
        return True
    with np.errstate(over="ignore"):
        return float(np.float64(bound).astype(half.numpy)) == bound
