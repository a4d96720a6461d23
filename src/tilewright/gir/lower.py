"""The Func of a graph and a plan: loops over parts and rows, sweeps of vectors, partial results in registers.

    for part in parallel(16):
        for row in range(64):
            for lane in vectorized(32): acc[lane] = -inf                        # a sweep
            for step in range(32):
                for lane in vectorized(32): acc[lane] = max(acc[lane], x[row, step * 32 + lane])
            m[0] = the maximum of acc, half by half
            …

Sums of lanes are put together in another order than the graph says; otherwise it computes the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType

from tilewright.gir.flow_graph import FlowGraph
from tilewright.gir.names import Names
from tilewright.gir.plan import Plan, find_lanes
from tilewright.gir.row import Row, Values
from tilewright.gir.running import running_folds
from tilewright.gir.split import split_folds
from tilewright.ir.expr import TRUE, Expr, Load, Scope, Var, as_index, loads
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.stmt import PREFETCH, Annotations, Block, For, Iter, LoopKind, Stmt, seq

NO_LOOPS: Mapping[Var, Var] = MappingProxyType({})
_BLOCK = Var("vector_of_rows")


def lower_flow_graph(graph: FlowGraph, plan: Plan, loops: Mapping[Var, Var] = NO_LOOPS) -> Func:
    """ScheduleError if nodes move windows over each other, or have predicates: that is done in stages. `loops` are
    those around it, by the names of their values in the graph.
    """
    if any(n.where is not TRUE for n in graph.nodes) or not _reads_its_own(graph):
        raise ScheduleError(f"{graph.name} has windows or predicates: see gir/stages.py")
    names = Names(graph.nodes[-1].name, {**graph.extents, **graph.around})
    graphs = (graph,) if plan.split == 1 else split_folds(graph, plan.split)
    nests: list[Stmt] = []
    for g in graphs:
        lanes = plan.lanes if g is graph else find_lanes(g)
        rows = _Rows(g, replace(plan, lanes=lanes), names, loops)
        nests.append(rows.run_in_steps() if plan.depth else rows.run())
    # What one of the graphs makes for the next is memory of the Func.
    shared = dict.fromkeys(b for g in graphs for b in g.params if b not in graph.params)
    return Func(
        graph.name, graph.params, (*shared, *names.locals), seq(*nests), tuple(n.out for n in graph.outputs)
    )


class _Rows:
    def __init__(self, graph: FlowGraph, plan: Plan, names: Names, loops: Mapping[Var, Var]) -> None:
        self._graph, self._plan, self._names, self._loops = graph, plan, names, loops

    def run(self) -> Stmt:
        """All rows; of vectors of them, the last may be shorter."""
        graph, plan = self._graph, self._plan
        if plan.lanes[0] not in graph.rows:
            return self._parts(
                graph.rows, None, lambda at, here: _row(Row(graph, plan, self._names, at, here, plan.width))
            )
        (axis,) = plan.lanes
        others = tuple(a for a in graph.rows if a is not axis)
        width = min(plan.width, graph.extents[axis])
        vectors, rest = divmod(graph.extents[axis], width)
        steps = max(n for n in range(1, min(plan.panel, vectors) + 1) if vectors % n == 0)

        def body(at: Values, here: dict[Var, int]) -> Stmt:
            lane, step = self._names.var("lane", width), self._names.var("step", steps) if steps > 1 else None
            first = at.pop(_BLOCK) * (steps * width)
            at[axis] = first + lane if step is None else first + step * width + lane
            return _row(Row(graph, plan, self._names, at, here, width, lane, step, steps))

        nests = [self._parts(others, vectors // steps, body)]
        if rest:
            nests.append(self._parts(others, 1, self._last_rows(axis, vectors * width, rest)))
        return seq(*nests)

    def run_in_steps(self) -> Stmt:
        """All rows, some elements of each before the next."""
        graph, plan, names = self._graph, self._plan, self._names
        if plan.lanes[0] not in graph.rows or any(n.is_fold for n in graph.nodes):
            raise ScheduleError(f"{graph.name} does not only scan rows that lie side by side")
        (axis,), (along,) = plan.lanes, graph.inner
        if plan.depth >= graph.extents[along]:
            return self.run()
        width, depth = min(plan.width, graph.extents[axis]), plan.depth
        vectors, rest = divmod(graph.extents[axis], width)
        steps = max(n for n in range(1, min(plan.panel, vectors) + 1) if vectors % n == 0)
        others = tuple(a for a in graph.rows if a is not axis)
        shape = tuple(graph.extents[a] for a in (*others, axis))
        scans = [n for n in graph.nodes if n.is_scan]
        so_far = {n: names.local(f"{n.name}_so_far", shape, n.out, Scope.GLOBAL) for n in scans}

        def taken_up(first: Expr, count: int) -> Callable[[Values, dict[Var, int]], Stmt]:
            def body(at: Values, here: dict[Var, int]) -> Stmt:
                lane, step = names.var("lane", width), names.var("step", steps)
                at[axis] = at.pop(_BLOCK) * (steps * width) + step * width + lane
                suffix = "" if count == depth else "_short"
                row = Row(graph, plan, names, at, here, width, lane, step, steps, suffix)
                place = tuple(at[a] for a in (*others, axis))
                held = {n: Load(b, place) for n, b in so_far.items()}
                return seq(*row.scalars(0), row.taken_up(first, count, held))

            return body

        full, short = divmod(graph.extents[along], depth)
        block = names.var("vblock", full)
        nests = [self._parts(others, vectors // steps, taken_up(block * depth, depth), (block, full))]
        if short:
            nests.append(self._parts(others, vectors // steps, taken_up(as_index(full * depth), short)))
        if rest:
            nests.append(self._parts(others, 1, self._last_rows(axis, vectors * width, rest)))
        return seq(*nests)

    def _last_rows(self, axis: Var, first: int, count: int) -> Callable[[Values, dict[Var, int]], Stmt]:
        """Those that are no whole vector."""

        def body(at: Values, here: dict[Var, int]) -> Stmt:
            lane = self._names.var("lane", count)
            at[axis] = at.pop(_BLOCK) * count + first + lane
            return _row(Row(self._graph, self._plan, self._names, at, here, count, lane, suffix="_rest"))

        return body

    def _parts(
        self,
        rows: tuple[Var, ...],
        vectors: int | None,
        body: Callable[[Values, dict[Var, int]], Stmt],
        steps: tuple[Var, int] | None = None,
    ) -> Stmt:
        """Parts of rows, or of vectors of rows; in each of a number of steps. Rows along an open axis are outside of
        all others: of a fused loop the first iterations are in use then.
        """
        names, open_axes = self._names, _open_axes(self._graph)
        outside_first = sorted(rows, key=lambda a: a not in open_axes)
        extents = {a: self._graph.extents[a] for a in outside_first}
        if vectors is not None:
            extents[_BLOCK] = vectors
        total = prod(extents.values())
        grain = max(n for n in range(1, min(self._plan.grain, total) + 1) if total % n == 0)
        part, own = names.var("vpart", total // grain), names.var("row", grain)
        number: Expr = part * grain + own
        at: Values = {}
        for a, e in reversed(extents.items()):
            at[a] = names.simplify(number % e)
            number = names.simplify(number // e)
        notes: Annotations = ((PREFETCH, 1),) if self._plan.ahead else ()
        row = body(at, {**self._graph.around, part: total // grain, own: grain})
        inside = For(own, grain, row, LoopKind.SERIAL, notes)
        # Steps and analyses know what a block reads and writes, whatever it does inside.
        loop = names.var("part", total // grain)
        kind = LoopKind.PARALLEL if total > grain else LoopKind.SERIAL
        if steps is None:
            return For(loop, total // grain, self._block({part: (total // grain, loop)}, inside), kind)
        step, count = steps
        turn = names.var("block", count)
        block = self._block({step: (count, turn), part: (total // grain, loop)}, inside)
        return For(turn, count, For(loop, total // grain, block, kind))

    def _block(self, iters: Mapping[Var, tuple[int, Var]], inside: Stmt) -> Block:
        """Of iterators with their extents and loops, and of the loops around."""
        names, values = self._names, dict[Var, Expr]()
        every = dict(iters)
        for v, extent in self._graph.around.items():
            own = names.var("v", extent)  # of this block alone
            values[v] = own
            every[own] = (extent, self._loops[v])
        return Block(
            names.block("rows"),
            tuple(Iter(v, extent) for v, (extent, _) in every.items()),
            tuple(loop for _, loop in every.values()),
            substitute_stmt(inside, values) if values else inside,
        )


def _open_axes(graph: FlowGraph) -> set[Expr]:
    return {
        a for n in graph.nodes for a, size in zip(n.indices, n.out.sizes, strict=False) if size is not None
    }


def _reads_its_own(graph: FlowGraph) -> bool:
    """Do nodes read each other at their own elements alone?"""
    makers = graph.makers
    inside = [ld for n in graph.nodes for ld in loads(n.value) if ld.buffer in makers]
    return all(ld.indices == makers[ld.buffer].indices for ld in inside)


def _row(row: Row) -> Stmt:
    out = running_folds(row) if row.plan.chunk else []
    for k in range(max(row.graph.sweeps.values()) + 1):
        out += row.scalars(k)
        out += row.sweep(k, with_folds=not row.plan.chunk)
    return seq(*out)
