"""Which values of a graph are known at compile time, worked out on demand.

A value is known if it is a constant, has no elements, or comes from a node whose inputs are all known and which fits
the budget. The meaning of a node is its op's `reference`. The budget is counted in bytes touched, weighted by what an
op of that kind costs per byte, rather than in seconds: the same graph always folds to the same graph. Ops whose work
does not follow from the sizes of their inputs and outputs are never evaluated.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.graph.graph import Node, Value
from tilewright.graph.open_values import is_open_node
from tilewright.graph.work import multiplications
from tilewright.ops.core.col2im import Col2Im
from tilewright.ops.core.conv import Conv, ConvTranspose
from tilewright.ops.core.deform import DeformConv
from tilewright.ops.core.dft import DFT, STFT
from tilewright.ops.core.einsum import Einsum
from tilewright.ops.core.lp_pool import LpPool
from tilewright.ops.core.pool import AveragePool, MaxPool
from tilewright.ops.core.resize import Resize
from tilewright.ops.core.roi import RoiAlign
from tilewright.ops.opdef import Kind
from tilewright.ops.outside import Outside
from tilewright.support.arrays import Array
from tilewright.support.sizes import is_open

_WEIGHT = {Kind.MOVEMENT: 1, Kind.ELEMENTWISE: 4, Kind.REDUCTION: 16, Kind.CONTRACTION: 16}

# A huge window or padding on a small input is little to write down and a lot to compute.
_UNBOUNDED = (
    AveragePool,
    Col2Im,
    Conv,
    ConvTranspose,
    DFT,
    DeformConv,
    Einsum,
    LpPool,
    MaxPool,
    Outside,
    Resize,
    RoiAlign,
    STFT,
)


@dataclass(frozen=True, slots=True)
class Budget:
    """`node` bounds the weighted bytes of one node, `total` of all, `growth` how many bytes a result may add."""

    node: int
    total: int
    growth: int


# Shapes, axes, masks: what an importer asks for.
SMALL = Budget(node=1 << 24, total=1 << 30, growth=1 << 20)


class KnownValues:
    """Nodes are added in graph order; `get` evaluates what it needs, and remembers."""

    def __init__(self, constants: Mapping[Value, Array], budget: Budget = SMALL) -> None:
        self._known: dict[Value, Array] = dict(constants)
        self._unknown: set[Value] = set()
        self._producer: dict[Value, Node] = {}
        self._budget = budget
        self._spent = 0

    def add_constant(self, value: Value, array: Array) -> None:
        self._known[value] = array

    def add(self, node: Node) -> None:
        for v in node.outputs:
            self._producer[v] = node

    def get(self, value: Value) -> Array | None:
        # Depth first without recursion: chains in a model may be longer than Python's stack.
        stack = [value]
        while stack:
            v = stack[-1]
            if v in self._known or v in self._unknown:
                stack.pop()
                continue
            node = self._producer.get(v)
            if v.size == 0 and not is_open(v.shape):
                self._known[v] = np.empty(v.shape, v.type.dtype.numpy)
            elif node is None or any(i in self._unknown for i in node.inputs):
                self._unknown.add(v)
            else:
                missing = [i for i in node.inputs if i not in self._known]
                if missing:
                    stack.extend(missing)
                    continue
                self._evaluate(node)
            stack.pop()
        return self._known.get(value)

    def _evaluate(self, node: Node) -> None:
        read, written = (sum(v.bytes for v in vs) for vs in (node.inputs, node.outputs))
        cost = _cost(node, read + written)
        fits = cost <= self._budget.node and written <= read + self._budget.growth
        if (
            isinstance(node.op, _UNBOUNDED)
            or is_open_node(node)
            or not fits
            or self._spent + cost > self._budget.total
        ):
            self._unknown.update(node.outputs)
            return
        self._spent += cost
        try:
            with np.errstate(all="ignore"):
                results = node.op.reference([self._known[v] for v in node.inputs])
        except (ArithmeticError, LookupError, ValueError):
            # An index out of range, an integer division by zero: left to run time, where it may be unreachable.
            self._unknown.update(node.outputs)
            return
        for v, array in zip(node.outputs, results, strict=True):
            self._known[v] = np.ascontiguousarray(array).reshape(array.shape)


def _cost(node: Node, touched: int) -> int:
    return max(touched, multiplications(node)) * _WEIGHT[node.op.kind]
