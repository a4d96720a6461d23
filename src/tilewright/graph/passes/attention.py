"""Two contractions with rows between them that are reduced and mapped: attention is one of these.

    scores = MatMul(q, kᵀ)
    weights = Softmax(… scores …)       or other reductions of rows; and elementwise nodes: scaling, masks, limits
    y = MatMul(… weights …, v)

No value between the two MatMuls is needed elsewhere, and all are of the shape of the scores, or have one element for
each row of them. Such a chain becomes one group: a schedule can then keep a block of rows near from the first MatMul
to the last, instead of writing all scores to memory and reading them again for each reduction.

`prepare_attention` brings such chains into the form that costs least, in f32 and f64:

    MatMul(Softmax(x), v)               →  Mul(MatMul(powers, v), scale)      powers, scale = SoftmaxParts(x)
    MatMul(Mul(q, c), Mul(kᵀ, d))       →  Mul(MatMul(q, kᵀ), c · d)          for numbers c and d
    Where(mask, x, -inf), Add(x, mask)  →  CausalMask(x)                   for a causal mask of many keys

Results are rounded differently, by about as much. Half precision stays as it is: what a model rounds to half precision
in between is part of its meaning.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.graph import Graph, Node, Value, producers, users
from tilewright.graph.pattern import number
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ir.dtype import DType
from tilewright.ops.core.arithmetic import Add, Div, Mul
from tilewright.ops.core.causal_mask import CausalMask
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.logic import And, Comparison, Not, Where
from tilewright.ops.core.movement import Reshape, Transpose
from tilewright.ops.core.norm import LayerNormalization
from tilewright.ops.core.reduce import Reduction
from tilewright.ops.core.softmax import Softmax
from tilewright.ops.core.softmax_parts import SoftmaxParts
from tilewright.ops.opdef import Kind
from tilewright.support.arrays import Array

_MOST_NODES = 24  # of a chain; what models have is less than ten
_WIDE = (DType.F32, DType.F64)
_LEAST_KEYS = 256  # of which some are worth leaving out
_LOWEST = -1e30  # what hides a score: below all that there are
_MOST_COMPARED = 1 << 26  # elements of a comparison that is made at compile time


@dataclass(frozen=True, slots=True, eq=False)
class ChainNodes:
    """The nodes from the first MatMul to the last, in the order of the graph."""

    nodes: tuple[Node, ...]

    @property
    def scores(self) -> Node:
        return self.nodes[0]

    @property
    def matmul(self) -> Node:
        return self.nodes[-1]


def contraction_chains(graph: Graph) -> list[ChainNodes]:
    """All such chains; they have no node in common."""
    search = _Search(graph)
    found = [search.try_chain(n) for n in graph.nodes if isinstance(n.op, MatMul)]
    return [c for c in found if c is not None]


class _Search:
    def __init__(self, graph: Graph) -> None:
        self._producer, self._users = producers(graph), users(graph)
        self._results = set(graph.outputs)
        self._index = {n: i for i, n in enumerate(graph.nodes)}

    def try_chain(self, matmul: Node) -> ChainNodes | None:
        """The chain that ends with this MatMul, if there is one."""
        weights = matmul.inputs[0]
        if weights.type.dtype not in _WIDE or not _are_matrices(matmul):
            return None
        before = self._before(weights)
        heads = [n for n in before if isinstance(n.op, MatMul)]
        if len(heads) != 1 or not _are_matrices(heads[0]):
            return None
        inside = self._after(heads[0], before)
        is_reduced = any(reduced_axes(n) is not None for n in inside)
        if not is_reduced or self._producer[weights] not in inside or not self._is_closed(inside, matmul):
            return None
        return ChainNodes((*sorted(inside, key=self._index.__getitem__), matmul))

    def _before(self, weights: Value) -> list[Node]:
        """What may be inside: rows of the same length, and values of whole rows, back to MatMuls."""
        found: dict[Node, None] = {}
        stack = [weights]
        while stack and len(found) <= _MOST_NODES:
            node = self._producer.get(stack.pop())
            if node is None or node in found or not _is_along_rows(node, weights.shape):
                continue
            found[node] = None
            if not isinstance(node.op, MatMul):
                stack.extend(node.inputs)
        return list(found)

    def _after(self, head: Node, candidates: Sequence[Node]) -> list[Node]:
        """Those of the candidates that depend on `head`, and itself."""
        made, inside = set(head.outputs), [head]
        for n in sorted(candidates, key=self._index.__getitem__):
            if n is not head and any(v in made for v in n.inputs):
                made.update(n.outputs)
                inside.append(n)
        return inside

    def _is_closed(self, inside: Sequence[Node], matmul: Node) -> bool:
        """Does everybody who reads what is made inside belong to it? By the factors of rows the MatMul is scaled."""
        own = {*inside, matmul}
        if any(v in matmul.inputs[1:] for n in inside for v in n.outputs):
            return False
        for n in inside:
            if any(v in self._results or v.type.dtype not in (*_WIDE, DType.BOOL) for v in n.outputs):
                return False
            for v in n.outputs[:1]:
                if any(u not in own for u in self._users[v]):
                    return False
        return True


def _are_matrices(node: Node) -> bool:
    """A MatMul of a single row, as of one new token, has nothing that stays near for others."""
    return all(len(v.shape) > 1 and min(v.shape[-2:]) > 1 for v in (*node.inputs, *node.outputs))


def _is_along_rows(node: Node, shape: tuple[int, ...]) -> bool:
    """Is the output of the node of this shape, or a value for each row, each row of it made from one of such inputs?"""
    rank, last = len(shape), len(shape) - 1
    out = node.outputs[0].shape
    if out != shape and out != (*shape[:-1], 1):
        return False
    axes = reduced_axes(node)
    if axes is not None:
        return axes == (last,) and len(node.inputs[0].shape) == rank
    return out == shape if isinstance(node.op, MatMul) else node.op.kind is Kind.ELEMENTWISE


def reduced_axes(node: Node) -> tuple[int, ...] | None:
    """The axes along which a node reduces its first input, if it keeps or restores them."""
    match node.op:
        case Softmax(axes=axes):
            return axes
        case SoftmaxParts(axis=axis):
            return (axis,)
        case LayerNormalization(axis=axis):
            return tuple(range(axis, len(node.inputs[0].shape)))
        case Reduction(axes=axes, keep=True):
            return axes
        case _:
            return None


# ------------------------------------------------------------------------------------------------------ rewriting


def prepare_attention(graph: Graph) -> Graph:
    chains = contraction_chains(graph)
    # The values of nodes that are kept stay the same while the graph is rewritten.
    scores = {c.scores.outputs[0] for c in chains}
    matmuls = {c.matmul.outputs[0] for c in chains}
    between = {v for c in chains for n in c.nodes[1:-1] for v in n.outputs if v.shape[-1] >= _LEAST_KEYS}

    def rule(state: Sweep, node: Node) -> Sequence[Value] | None:
        out = node.outputs[0] if node.outputs else None
        if out in scores:
            return _scale_scores(state, node)
        if out in between:
            return _hide_following(state, node)
        return _scale_matmul(state, node) if out in matmuls else None

    return sweep(graph, rule) if chains else graph


def _scale_matmul(state: Sweep, node: Node) -> Sequence[Value] | None:
    weights = state.producer(node.inputs[0])
    if weights is None or not isinstance(weights.op, Softmax) or weights.op.log:
        return None
    powers, scale = state.add(SoftmaxParts(weights.op.axes[0]), weights.inputs, weights)
    matmul = state.add_piece(node.op, (powers, node.inputs[1]), node)
    return state.add(Mul(), (matmul, scale), node)


def _scale_scores(state: Sweep, node: Node) -> Sequence[Value] | None:
    (q, by), (k, and_by) = (_unscaled(state, v, node) for v in node.inputs)
    factor = by * and_by
    if (q, k) == node.inputs or not np.isfinite(factor):
        return None
    matmul = state.add_piece(node.op, (q, k), node)
    dtype = node.outputs[0].type.dtype.numpy
    number = state.add_constant(f"{node.outputs[0].name}~scale", np.array(factor, dtype))
    return state.add(Mul(), (matmul, number), node)


def _unscaled(state: Sweep, value: Value, node: Node) -> tuple[Value, float]:
    """The operand without the number that it is multiplied with, and that number. Moving and multiplying commute."""
    moves: list[Node] = []
    made = value
    while (before := state.producer(made)) is not None and isinstance(before.op, Reshape | Transpose):
        moves.append(before)
        made = before.inputs[0]
    if before is None or not isinstance(before.op, Mul | Div):
        return value, 1.0
    orders = (before.inputs, before.inputs[::-1]) if isinstance(before.op, Mul) else (before.inputs,)
    for source, factor in orders:
        array = state.known(factor)
        if array is not None and array.size == 1 and source.type == made.type:
            for move in reversed(moves):
                source = state.add_piece(move.op, (source,), node)
            by = float(array.item())
            return source, by if isinstance(before.op, Mul) else 1 / by if by else np.inf
    return value, 1.0


# ---------------------------------------------------------------------------------------------------------------- masks


def _hide_following(state: Sweep, node: Node) -> Sequence[Value] | None:
    """A mask known at compile time that hides from each row the keys that follow it, as an op without the mask."""
    out = node.outputs[0]
    match node:
        case Node(op=Where(), inputs=(cond, a, b)):
            for x, low, is_seen in ((a, b, True), (b, a, False)):
                lowest, seen = number(state, low), _known_mask(state, cond)
                if x.type == out.type and lowest is not None and lowest <= _LOWEST and seen is not None:
                    return _hidden(state, node, x, seen == is_seen, lowest)
        case Node(op=Add(), inputs=(a, b)):
            for x, mask in ((a, b), (b, a)):
                added = state.known(mask)
                if x.type == out.type and added is not None and added.ndim >= 2 and added.size > 1:
                    low = float(added.min())
                    if low <= _LOWEST and bool(np.all((added == 0) | (added == low))):
                        return _hidden(state, node, x, added == 0, low)
        case _:
            pass
    return None


def _hidden(state: Sweep, node: Node, x: Value, seen: Array, low: float) -> Sequence[Value] | None:
    rows, keys = x.shape[-2:]
    if seen.size != rows * keys or seen.shape[-2:] != (rows, keys):
        return None
    seen = seen.reshape(rows, keys)
    counts = seen.sum(1)
    cut = np.flatnonzero((counts > 0) & (counts < keys))
    if not len(cut):
        return None
    offset = int(counts[cut[0]] - 1 - cut[0])
    if not np.array_equal(seen, np.arange(keys) <= np.arange(rows)[:, None] + offset):
        return None
    return state.add(CausalMask(offset, low), (x,), node)


def _known_mask(state: Sweep, value: Value) -> Array | None:
    """A mask that is known, or a comparison of what is."""
    known = state.known(value)
    if known is not None or value.size > _MOST_COMPARED:
        return known
    node = state.producer(value)
    if node is None or not isinstance(node.op, Comparison | And | Not):
        return None
    inputs = [_known_mask(state, v) for v in node.inputs]
    found = [a for a in inputs if a is not None]
    return node.op.reference(found)[0] if len(found) == len(inputs) else None
