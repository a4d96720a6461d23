"""The time of a graph by its plan, in closed form: of each sweep, what it computes, or what memory brings and takes
meanwhile, whichever is longer.
"""

from dataclasses import dataclass
from enum import IntEnum, unique
from math import ceil, log2

from tilewright.cost.caches import l2_room, result_room
from tilewright.cost.stream import pass_seconds, pass_term
from tilewright.cost.terms import Ledger
from tilewright.cost.work import instructions_of
from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.plan import find_lanes, memory_accesses, result_place, strides
from tilewright.ir.expr import Buffer, Expr, Load, walk
from tilewright.ir.rewrite import replace_loads
from tilewright.target.machine import Machine

# Swept (docs/results/constants.md).
_ROW = 4.0  # cycles to come to the next row
_LOOP = 1.0  # cycles of a step of a sweep beside its arithmetic: addresses and the loop
# Of the arithmetic of one vector, which every step takes more: what the next step cannot begin before. Measured on
# softmax of rows of 128 to 4096 elements, which with 8 vectors in a step takes 0.78 to 0.90 of the time with 2.
_DRAIN = 0.5
_CARRIED = 2.0  # shuffles of a vector along which a scan goes: its last lane, for all of the next; counted
# Times as long as in order: stripes of a vector of rows, each of which begins on another page. Measured on sums
# over the first axis of 1024 x 1024 and 16384 x 1024.
_STRIPES = 2.0
_LONG = 10.0  # instructions of an element, from which on a sweep is long; measured, on what follows
# Times as long as counted: a long step of more bytes of vectors than this. Measured with AVX-512: 128 elements take
# 1.38 (GroupNorm with GELU) and 1.05 to 1.16 times (softmax) as long as 64; in the short sweeps of norms 0.96 times.
_CROWDED = 1.2  # of the cycles
_CROWDED_BYTES = 256  # bytes; measured, likewise
_ELEMENT = 4  # bytes; given: lanes are counted for such elements
# Of a long sweep that takes less time than what is moved meanwhile, what that does not hide. Measured on softmax of
# 4096 x 4096: computing powers again while memory took the results made it 1.05 to 1.07 times as long.
_EXPOSED = 0.1  # of its cycles
_GATHERED = 2  # for a lane whose neighbour is far: a load, and what puts it into the vector; counted
_SHUFFLED = 4  # elements apart, up to which whole vectors are loaded and shuffled; given by code generation
# Of scans across rows that lie side by side, times as long as in order; measured on cumulative sums over the first axis
# of 1024 x 1024.
_SO_FAR = 1.05  # times: of whole rows, with results so far in scratch
_RUN_BYTES = 256  # bytes side by side that a turn of a vector of rows needs, in blocks of rows
_SHORT_RUN = 0.25  # of the time, for half of that, and again for each time that it is less


@unique
class KeptPlace(IntEnum):
    """Where values are from one sweep to the next."""

    NOWHERE = 0  # they are computed again
    IN_SCRATCH = 1
    IN_PLACE = 2  # of the result, the one that may be there; others are computed again


@dataclass(frozen=True, slots=True)
class SweepWork:
    """What happens to an element."""

    number: int  # of the sweep
    instructions: float
    loads: int  # of vectors
    stores: int
    folds: int
    scans: int
    memory: frozenset[Buffer]  # that is read
    is_stored: bool  # are results stored, or what is kept in their place?


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The knobs that the time depends on; words as those of `gir.plan.Plan`."""

    width: int
    keep: KeptPlace = KeptPlace.NOWHERE
    split: int = 1
    panel: bool = False  # are all vectors of rows taken together?
    ahead: int = 0
    streams: bool = False
    depth: int = 0


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
        self._sweeps = {keep: self._all_sweeps(keep) for keep in KeptPlace}
        self._written = float(sum(n.out.bytes for n in graph.outputs))
        self._read = max(_bytes_touched(graph) - self._written, 0.0)

    @property
    def later_sweeps(self) -> tuple[int, ...]:
        """Those that read again what the first did, as it lies in memory."""
        first, *others = self._sweeps[KeptPlace.NOWHERE]
        return () if self._in_rows else tuple(s.number for s in others if s.memory >= first.memory)

    def computing_seconds(self, p: RowPlan) -> float:
        """Of all rows, if what they read is near."""
        rows = self._rows(p)
        cycles = rows * (_ROW + sum(self._sweep_cycles(s, p) for s in self._sweeps[p.keep]))
        return cycles / self._machine.hertz

    def sweeps(self, keep: KeptPlace) -> int:
        """How often a row is gone over."""
        return len(self._sweeps[keep])

    def _rows(self, p: RowPlan) -> int:
        """Of them, or of vectors of them."""
        rows = self._graph.size(self._graph.rows)
        if not self._in_rows:
            return rows
        extent = self._graph.extents[self._span[0]]
        return rows // extent * ceil(extent / p.width)

    def seconds(self, p: RowPlan, told: Ledger | None = None) -> float:
        """`told` is told what they are made of."""
        m, g = self._machine, self._graph
        sweeps, rows = self._sweeps[p.keep], self._rows(p)
        busy = [rows * self._sweep_cycles(s, p) / m.hertz for s in sweeps]
        meetings = ceil(g.size(g.inner) / p.depth) if p.depth else 1
        phases = meetings if p.split == 1 else 2 + (len(sweeps) > 1)
        parts = sum(s.folds for s in sweeps) * p.split * g.size(g.rows) / self._lanes if p.split > 1 else 0.0
        beside = phases * m.meeting_seconds + (rows * _ROW + parts) / m.hertz
        if told is not None:  # what is divided is put together for the sake of teams
            told.add("team", phases * m.meeting_seconds + parts / m.hertz)
            told.add("edges", rows * _ROW / m.hertz)
        read, written = self._moved(p)
        row = (self._read + self._written) / max(g.size(g.rows), 1) * (p.width if self._in_rows else 1)
        passes = len(self._sweeps[KeptPlace.IN_SCRATCH]) if row > l2_room(m) else 1
        if passes > 1 or self._in_rows:
            total = max(sum(busy), passes * (read + written))
            if told is not None:
                self._tell(told, p, total, 0.0, (sum(busy), passes * read, passes * written))
            return beside + total
        # Memory brings a row while the sweep runs that asks for it, and lines of results with the first stores to them.
        asked = next((s for s in sweeps if s.number == p.ahead and s.memory >= sweeps[0].memory), sweeps[0])
        stored = next((s for s in sweeps if s.is_stored), sweeps[-1])
        for s, computed in zip(sweeps, busy, strict=True):
            brought, taken = (s is asked) * read, (s is stored) * written
            moved = brought + taken
            exposed = _EXPOSED * min(computed, moved) if s.instructions > _LONG else 0.0
            beside += max(computed, moved) + exposed
            if told is not None:
                self._tell(told, p, max(computed, moved), exposed, (computed, brought, taken))
        return beside

    def _tell(
        self, told: Ledger, p: RowPlan, longer: float, exposed: float, times: tuple[float, float, float]
    ) -> None:
        """Of a sweep, or of all: what it computes and what is moved meanwhile, of which one is longer."""
        computed, read, written = times
        is_moved = read + written > computed
        told.add("arithmetic", exposed if is_moved else longer)
        if read + written:
            share = (longer if is_moved else exposed) / (read + written)
            where = pass_term(self._read + self._written, self._machine)
            told.add(where, share * read)
            told.add("far" if p.streams else where, share * written)

    def _moved(self, p: RowPlan) -> tuple[float, float]:
        """Seconds in which memory brings what is read, and takes results. What is written comes from memory first,
        unless it goes past the caches; that only pays for results of which no cache holds what the next kernel begins
        with.
        """
        m, total = self._machine, self._read + self._written
        each = self._in_order(p) * pass_seconds(total, m) / total
        read, written = each * self._read, each * self._written
        if p.streams and self._written <= result_room(m):
            return read, 2 * written + self._written / m.memory_rate
        comes_first = self._written > result_room(m) and not p.streams and not self._in_rows
        return read, 2 * written if comes_first else written

    def _in_order(self, p: RowPlan) -> float:
        """Times as long as memory takes in order."""
        if not self._in_rows or p.width >= self._graph.extents[self._span[0]]:
            return 1.0
        if p.depth:
            run = p.width * self._graph.nodes[-1].out.dtype.bytes
            return 1.0 + _SHORT_RUN * max(_RUN_BYTES / run - 1.0, 0.0)
        if not p.panel:
            return _STRIPES
        return _SO_FAR if any(s.scans for s in self._sweeps[KeptPlace.NOWHERE]) else 1.0

    def _sweep_cycles(self, s: SweepWork, p: RowPlan) -> float:
        """Of a sweep over a row, or over a vector of rows."""
        m, g, width, panel = self._machine, self._graph, p.width, p.panel
        fetches = 0 < s.number == p.ahead
        vectors = max(width / self._lanes, 1.0)
        elements = g.size(g.inner)
        span = 1 if self._in_rows else g.size(self._span)
        steps = elements if self._in_rows else elements // span * ceil(span / width)
        # Partial results of a panel are not registers.
        partial = s.folds + s.scans if panel and not p.depth else 0
        loads, stores = s.loads + partial + fetches, float(s.stores + partial)
        # Along lanes, what is shifted is combined, as often as lanes double; a shuffle is one a cycle.
        shifts = 0.0 if self._in_rows else s.scans * (log2(max(width, 2)) + _CARRIED)
        arithmetic = (s.instructions + shifts) / m.fma_per_cycle
        work = max(arithmetic, loads / m.loads_per_cycle, stores, shifts)
        step = (vectors + _DRAIN) * work + _LOOP
        if vectors * self._lanes * _ELEMENT > _CROWDED_BYTES and s.instructions > _LONG:
            step *= _CROWDED
        waits = (s.folds or s.scans) and not panel
        cycles = steps * max(step, m.fma_latency if waits else 0.0)
        if not self._in_rows:
            cycles += s.folds * log2(max(width, 2)) * (m.fma_latency + 1)
        return cycles

    def kept(self, keep: KeptPlace) -> tuple[FlowNode, ...]:
        match keep:
            case KeptPlace.NOWHERE:
                return ()
            case KeptPlace.IN_SCRATCH:
                return self._graph.read_later
            case KeptPlace.IN_PLACE:
                found = result_place(self._graph)
                return () if found is None else found[:1]

    def _all_sweeps(self, keep: KeptPlace) -> list[SweepWork]:
        kept = set(self.kept(keep))
        found: list[SweepWork] = []
        for k in range(max(self._graph.sweeps.values()) + 1):
            made = [
                n
                for n in self._graph.nodes
                if self._graph.sweeps[n] == k and not self._graph.is_scalar(n)
                and (n.is_fold or n.is_scan or n in self._graph.outputs or n in kept)
            ]  # fmt: skip
            if made:
                found.append(self._sweep(made, kept, k, is_in_place=keep is KeptPlace.IN_PLACE))
        return found

    def _sweep(self, made: list[FlowNode], kept: set[FlowNode], k: int, *, is_in_place: bool) -> SweepWork:
        values = [self._opened(n.value, kept, k) for n in made]
        nodes = {e for v in values for e in walk(v)}
        loads = [e for e in nodes if isinstance(e, Load)]
        folds, scans = sum(n.is_fold for n in made), sum(n.is_scan for n in made)
        instructions = sum(instructions_of(e) for e in nodes) + folds + scans
        near = sum(self._vector_loads(ld) for ld in loads)
        memory = frozenset(ld.buffer for ld in loads if ld.buffer not in self._graph.makers)
        stored = kept if is_in_place else set(self._graph.outputs)
        is_stored = any(n in stored and not n.is_fold for n in made)
        stores = sum(not n.is_fold and (n in self._graph.outputs or n in kept) for n in made)
        return SweepWork(k, instructions, near, stores, folds, scans, memory, is_stored)

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

    def _vector_loads(self, ld: Load) -> int:
        """Loads for a vector of elements: one, if they are side by side; of those that are farther apart, several
        whole vectors, or one for each lane and its way into the vector."""
        maker = self._graph.makers.get(ld.buffer)
        if maker is not None:
            return int(not maker.is_fold and not self._graph.is_scalar(maker))
        steps = strides(self._graph, ld.buffer, ld.indices)
        if steps is None:
            return 1
        moved = [abs(steps[a]) for a in self._span if a in steps]
        if not moved:
            return 0
        step = min(moved)
        return step if step <= _SHUFFLED else _GATHERED * self._lanes
