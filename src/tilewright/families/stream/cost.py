"""The time of a graph by its plan, in closed form: what its sweeps compute, or what memory brings, whichever is
longer.
"""

from dataclasses import dataclass
from math import ceil, log2

from tilewright.cost.caches import l2_room
from tilewright.cost.stream import pass_seconds
from tilewright.cost.work import instructions_of
from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.plan import find_lanes, memory_accesses, strides
from tilewright.ir.expr import Buffer, Expr, Load, walk
from tilewright.ir.rewrite import replace_loads
from tilewright.target.machine import Machine

# Swept (docs/results/constants.md).
_ROW = 4.0  # cycles to come to the next row
_LOOP = 1.0  # cycles of a step of a sweep beside its arithmetic: addresses and the loop
# Of the arithmetic of one vector, which every step takes more: what the next step cannot begin before. Measured on
# softmax of rows of 128 to 4096 elements, which with 8 vectors in a step takes 0.78 to 0.90 of the time with 2.
_DRAIN = 0.5
# Times as long as in order: stripes of a vector of rows, each of which begins on another page. Measured on sums
# over the first axis of 1024 x 1024 and 16384 x 1024.
_STRIPES = 2.0


@dataclass(frozen=True, slots=True)
class SweepWork:
    """What happens to an element."""

    instructions: float
    loads: int  # of vectors
    stores: int
    folds: int


def _bytes_touched(graph: FlowGraph) -> int:
    """Of memory: of a table from which rows are chosen, no more than these."""
    touched: dict[Buffer, int] = {}
    for buffer, _, axes in memory_accesses(graph):
        touched[buffer] = touched.get(buffer, 0) + graph.size(axes) * buffer.dtype.bytes
    return sum(min(b.bytes, n) for b, n in touched.items())


class StreamCost:
    def __init__(self, graph: FlowGraph, lanes: int, machine: Machine) -> None:
        self._graph, self._lanes, self._machine = graph, lanes, machine
        self._span = find_lanes(graph)
        self._in_rows = self._span[0] in graph.rows
        self._sweeps = {keep: self._all_sweeps(keep) for keep in (False, True)}
        self._bytes = _bytes_touched(graph)

    def seconds(self, width: int, *, keep: bool, split: int = 1, panel: bool = False) -> float:
        """Of vectors of `width` elements. `panel`: all vectors of rows together; `split`: rows in as many parts."""
        m, g = self._machine, self._graph
        vectors = max(width / self._lanes, 1.0)
        elements = g.size(g.inner)
        span = 1 if self._in_rows else g.size(self._span)
        steps = elements if self._in_rows else elements // span * ceil(span / width)
        cycles = 0.0
        for s in self._sweeps[keep]:
            # Partial results of a panel are not registers.
            loads, stores = (s.loads + s.folds, s.stores + s.folds) if panel else (s.loads, s.stores)
            work = max(s.instructions / m.fma_per_cycle, loads / m.loads_per_cycle, float(stores))
            step = (vectors + _DRAIN) * work + _LOOP
            cycles += steps * max(step, m.fma_latency if s.folds and not panel else 0.0)
            if not self._in_rows:
                cycles += s.folds * log2(max(width, 2)) * (m.fma_latency + 1)
        rows = g.size(g.rows)
        if self._in_rows:
            extent = g.extents[self._span[0]]
            rows = rows // extent * ceil(extent / width)
        busy = rows * (cycles + _ROW) / m.hertz
        phases = 1 if split == 1 else 2 + (len(self._sweeps[keep]) > 1)
        busy += (
            sum(s.folds for s in self._sweeps[keep])
            * split
            * g.size(g.rows)
            / self._lanes
            / m.hertz
            * (split > 1)
        )
        return phases * m.meeting_seconds + max(busy, self._streamed(width, panel=panel))

    def _streamed(self, width: int, *, panel: bool) -> float:
        """All that memory brings: a row once, if it stays near until its last sweep."""
        m, g = self._machine, self._graph
        row = self._bytes / max(g.size(g.rows), 1) * (width if self._in_rows else 1)
        passes = len(self._sweeps[True]) if row > l2_room(m) else 1
        in_order = 1.0 if panel or not self._in_rows else _STRIPES
        return passes * in_order * pass_seconds(self._bytes, m)

    def _all_sweeps(self, keep: bool) -> list[SweepWork]:
        kept = set(self._graph.read_later) if keep else set[FlowNode]()
        found: list[SweepWork] = []
        for k in range(max(self._graph.sweeps.values()) + 1):
            made = [
                n
                for n in self._graph.nodes
                if self._graph.sweeps[n] == k and not self._graph.is_scalar(n)
                and (n.is_fold or n in self._graph.outputs or n in kept)
            ]  # fmt: skip
            if made:
                found.append(self._sweep(made, kept, k))
        return found

    def _sweep(self, made: list[FlowNode], kept: set[FlowNode], k: int) -> SweepWork:
        values = [self._opened(n.value, kept, k) for n in made]
        nodes = {e for v in values for e in walk(v)}
        loads = [e for e in nodes if isinstance(e, Load)]
        folds = sum(n.is_fold for n in made)
        instructions = sum(instructions_of(e) for e in nodes) + folds
        near = sum(self._is_vector(ld) for ld in loads)
        return SweepWork(instructions, near, len(made) - folds, folds)

    def _opened(self, e: Expr, kept: set[FlowNode], k: int) -> Expr:
        makers = self._graph.makers

        def opened(ld: Load) -> Expr | None:
            node = makers.get(ld.buffer)
            if (
                node is None
                or node.is_fold
                or self._graph.is_scalar(node)
                or (node in kept and self._graph.sweeps[node] < k)
            ):
                return None
            return self._opened(node.value, kept, k)

        return replace_loads(e, opened, {})

    def _is_vector(self, ld: Load) -> bool:
        maker = self._graph.makers.get(ld.buffer)
        if maker is not None:
            return not maker.is_fold and not self._graph.is_scalar(maker)
        steps = strides(self._graph, ld.buffer, ld.indices)
        return steps is None or any(a in steps for a in self._span)
