"""Do not compute columns of a MatMul that nobody reads.

    s = MatMul(q, k)                  f32[m, 512]     s' = MatMul(q, k[:, 128:384])      f32[m, 256]
    y = GatherElements(s, at)                      →  y = GatherElements(s', at - 128)

where `at` is known, and lies between 128 and 383. Attention with relative positions is written so: scores of all
positions there could be, of which a sequence has only those from minus to plus its length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.graph import Graph, Node, Value, users
from tilewright.graph.rewrite import Sweep, sweep
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.gather import GatherElements
from tilewright.ops.core.movement import Expand
from tilewright.support.arrays import Array

_GRAIN = 16  # columns: two vectors of floats, so that what is left of them is no remainder


def drop_unread_columns(graph: Graph) -> Graph:
    readers = users(graph)
    shared = {v for v, nodes in readers.items() if len(nodes) > 1 or v in graph.outputs}

    def rule(state: Sweep, node: Node) -> Sequence[Value] | None:
        if not isinstance(node.op, GatherElements) or node.inputs[0] in shared:
            return None
        read = _Read.find(state, node, node.op.axis)
        return None if read is None else read.narrowed(state, node)

    return sweep(graph, rule)


@dataclass(frozen=True, slots=True)
class _Read:
    """A MatMul with known weights, and the places of its columns that are read."""

    matmul: Node
    weights: Array
    places: Array
    widened: Expand | None  # of the places

    @classmethod
    def find(cls, state: Sweep, node: Node, axis: int) -> "_Read | None":
        data, at = node.inputs
        matmul, widened = state.producer(data), None
        if matmul is None or not isinstance(matmul.op, MatMul) or axis != len(data.shape) - 1:
            return None
        before = state.producer(at)
        if before is not None and isinstance(before.op, Expand):
            at, widened = before.inputs[0], before.op
        weights, places = state.known(matmul.inputs[1]), state.known(at)
        if weights is None or weights.ndim < 2 or places is None or not places.size:
            return None
        return cls(matmul, weights, places, widened)

    def narrowed(self, state: Sweep, node: Node) -> Sequence[Value] | None:
        columns = self.weights.shape[-1]
        places = np.where(self.places < 0, self.places + columns, self.places)
        first, last = int(places.min()), int(places.max())
        if first < 0 or last >= columns:
            return None  # an error, which is the run's to find
        first -= first % _GRAIN
        end = min(columns, -(-(last + 1) // _GRAIN) * _GRAIN)
        if end - first == columns:
            return None
        x, w = self.matmul.inputs
        narrow = state.add_constant(w.name, self.weights[..., first:end])
        matmul = state.add_piece(self.matmul.op, (x, narrow), self.matmul)
        at = state.add_constant(node.inputs[1].name, (places - first).astype(self.places.dtype))
        if self.widened is not None:
            at = state.add_piece(self.widened, (at,), node)
        return state.add(node.op, (matmul, at), node)
