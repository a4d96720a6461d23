"""The time of a graph by its plan, in closed form: what its sweeps compute, or what memory brings, whichever is
longer.
"""

from dataclasses import dataclass
from math import ceil, log2

from tilewright.cost.caches import l2_room
from tilewright.cost.stream import pass_seconds
from tilewright.cost.work import instructions_of
from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.plan import accesses, find_lanes, later_read, stages, strides
from tilewright.ir.expr import Expr, Load, walk
from tilewright.ir.rewrite import replace_loads
from tilewright.target.machine import Machine

_LOOP = 1.0  # cycles of a step of a sweep beside its arithmetic: addresses and the loop
# Of the arithmetic of one vector, which every step takes more: what the next step cannot begin before. By softmax of
# rows of 128 to 4096 elements, which with 8 vectors in a step takes 0.78 to 0.90 of the time with 2.
_DRAIN = 0.5
_LINE = 64.0  # bytes


@dataclass(frozen=True, slots=True)
class SweepWork:
    """What happens to an element."""

    instructions: float
    loads: int  # of vectors
    stores: int
    folds: int


class StreamCost:
    def __init__(self, graph: FlowGraph, lanes: int, machine: Machine) -> None:
        self._graph, self._lanes, self._machine = graph, lanes, machine
        self._when = stages(graph)
        self._span = find_lanes(graph)
        self._in_rows = self._span[0] in graph.rows
        self._sweeps = {keep: self._all_sweeps(keep) for keep in (False, True)}
        self._bytes = sum(b.bytes for b in dict.fromkeys(b for b, _, _ in accesses(graph)))

    def seconds(self, width: int, *, keep: bool) -> float:
        m, r = self._machine, self._graph
        vectors = max(width / self._lanes, 1.0)
        elements = r.size(r.inner)
        span = 1 if self._in_rows else r.size(self._span)
        steps = elements if self._in_rows else elements // span * ceil(span / width)
        cycles = 0.0
        for s in self._sweeps[keep]:
            work = max(s.instructions / m.fma_per_cycle, s.loads / m.loads_per_cycle, float(s.stores))
            step = (vectors + _DRAIN) * work + _LOOP
            cycles += steps * max(step, m.fma_latency if s.folds else 0.0)
            if not self._in_rows:
                cycles += s.folds * log2(max(width, 2)) * (m.fma_latency + 1)
        rows = r.size(r.rows)
        if self._in_rows:
            extent = r.extents[self._span[0]]
            rows = rows // extent * ceil(extent / width)
        busy = rows * cycles / m.hertz
        return m.meeting_seconds + max(busy, self._streamed(width))

    def _streamed(self, width: int) -> float:
        """All that memory brings: a row once, if it stays near until its last sweep."""
        m, r = self._machine, self._graph
        passes = 1
        row = self._bytes / max(r.size(r.rows), 1) * (width if self._in_rows else 1)
        if row > l2_room(m):
            passes = len(self._sweeps[True])
        seconds = passes * pass_seconds(self._bytes, m)
        if self._in_rows:  # lines that are only partly in the vectors of a block come several times
            seconds *= 1.0 + _LINE / (4 * width)
        return seconds

    def _all_sweeps(self, keep: bool) -> list[SweepWork]:
        kept = set(later_read(self._graph, self._when)) if keep else set[FlowNode]()
        found: list[SweepWork] = []
        for k in range(max(self._when.values()) + 1):
            made = [
                n
                for n in self._graph.nodes
                if self._when[n] == k and not self._graph.is_scalar(n)
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
                or (node in kept and self._when[node] < k)
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
