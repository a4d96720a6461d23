"""The time of windows by their stages, in closed form: what these compute, or what memory moves, whichever is
longer.
"""

from math import ceil, prod

from tilewright.cost.caches import l1_room
from tilewright.cost.stream import pass_seconds, pass_term
from tilewright.cost.terms import Ledger
from tilewright.cost.work import instructions
from tilewright.families.window.cost import MAXIMUM
from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.plan import memory_accesses, strides
from tilewright.gir.printer import indexed_axes
from tilewright.ir.expr import BinaryOp, Load, loads
from tilewright.target.machine import Machine

# Cycles to come to the next row. Measured on maxima of 5 x 5 and 9 x 9 of 128 x 20 x 20: 20 and 41 us, and if they are
# halved 24 and 34 us.
_ROW = 1.5
_STORE = 0.5  # cycles for a vector that a stage makes: what neither arithmetic nor loads hide; likewise
_NEAR = 4  # elements: a step up to this is served by whole vectors; given by `codegen/strided.py`


class WindowCost:
    def __init__(self, graph: FlowGraph, lanes: int, machine: Machine) -> None:
        self._graph, self._lanes, self._machine = graph, lanes, machine

    def seconds(self, points: int, told: Ledger | None = None) -> float:
        """Of stages that run so often. `told` is told what they are made of."""
        g, m = self._graph, self._machine
        cycles = [self._cycles(n) for n in g.nodes]
        busy = sum(total for total, _ in cycles) / m.hertz
        scratch = sum(n.out.bytes for n in g.nodes if n.out not in g.params)
        handed_on = 0.0
        if scratch / points > l1_room(m):
            handed_on = pass_seconds(2 * scratch / points, m) * points  # written, and read by the next stage
        nbytes = sum(b.bytes for b in dict.fromkeys(b for b, _, _ in memory_accesses(g) if b in g.params))
        moved = pass_seconds(nbytes, m)
        if told is not None:
            told.add("team", m.meeting_seconds)
            if busy + handed_on >= moved:
                edges = sum(row for _, row in cycles) / m.hertz
                told.add("arithmetic", busy - edges)
                told.add("edges", edges)
                told.add(pass_term(2 * scratch / points, m), handed_on)
            else:
                told.add(pass_term(nbytes, m), moved)
        return m.meeting_seconds + max(busy + handed_on, moved)

    def _cycles(self, node: FlowNode) -> tuple[float, float]:
        """All, and of them those to come to the next row."""
        g, m = self._graph, self._machine
        *outer, lanes = indexed_axes(node.indices)
        rows, vectors = g.size(outer), ceil(g.extents[lanes] / self._lanes)
        taken = prod(g.extents[a] for a in node.over)
        reads = [self._vectors(node, ld) for ld in loads(node.value)]
        shuffles = sum(n for n in reads if n > 1)
        work = taken * (instructions(node.value) + shuffles) + self._combining(node, taken)
        vector = max(work / m.fma_per_cycle, taken * sum(reads) / m.loads_per_cycle) + _STORE
        return rows * (vectors * vector + _ROW), rows * _ROW

    def _combining(self, node: FlowNode, taken: int) -> float:
        """A maximum begins with its first value, a sum with zero."""
        if not node.is_fold:
            return 0.0
        if node.combine not in (BinaryOp.MAX, BinaryOp.MIN):
            return float(taken)
        return (MAXIMUM if node.out.dtype.is_float else 1.0) * (taken - 1)

    def _vectors(self, node: FlowNode, ld: Load) -> float:
        """That are loaded for one: of those that a stride leaves out elements of, several."""
        *_, lanes = indexed_axes(node.indices)
        steps = strides(self._graph, ld.buffer, ld.indices)
        step = self._lanes if steps is None else abs(steps.get(lanes, 0))
        return float(max(step, 1) if step <= _NEAR else self._lanes)
