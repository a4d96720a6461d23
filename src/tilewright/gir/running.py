"""Folds that depend on each other, in one pass over a row: chunk by chunk, each with the results so far.

    m = -inf; s = 0
    for chunk in range(16):
        old = m;  m = max(m, the maximum of the chunk)
        s = s · exp(old - m)                            # the repair of `gir/repair.py`: s was summed up with the old m
        s = s + the sum over the chunk of exp(x - m)

A chunk is near when the second fold sweeps it, however long the row is. The algebra holds for any m, so values that
make no sense as one are replaced while folds run: a maximum of nothing is -inf, and counts as 0; a sum so far is scaled
up to the length of the row, so that a mean is the mean of what was seen.
"""

from tilewright.gir.flow_graph import FlowNode
from tilewright.gir.repair import Algebra, Recentre, Repair, Shift
from tilewright.gir.row import Row
from tilewright.ir.expr import (
    BinaryOp,
    Buffer,
    Expr,
    Load,
    Var,
    as_index,
    cast,
    const,
    equal,
    loads,
    select,
)
from tilewright.ir.rewrite import replace_loads, substitute
from tilewright.support.errors import ScheduleError
from tilewright.tir.stmt import For, Stmt, Store, seq


def running_folds(row: Row) -> list[Stmt]:
    """All folds of the row; their results are in their places then."""
    return _Running(row).stmts()


class _Running:
    def __init__(self, row: Row) -> None:
        self._row, graph = row, row.graph
        if any(n.is_scan for n in graph.nodes):
            raise ScheduleError(f"{graph.name} has a scan, which is not taken up in chunks")
        self._folds = [n for n in graph.nodes if n.is_fold]
        self._total = graph.size(graph.inner)
        first = graph.inner if row.lane is None else graph.inner[:1]
        if row.plan.lanes != first and row.lane is None:
            raise ScheduleError(f"{graph.name}: its rows do not lie side by side, to be taken up in chunks")
        self._length = graph.size(first)
        # Values of folds over elements and results of folds alone.
        self._values = {n: row.opened(n.value, row.graph.sweeps[n]) for n in self._folds}
        made = {n.out for n in self._folds}
        self._results = {ld.buffer for v in self._values.values() for ld in loads(v) if ld.buffer in made}
        algebra = Algebra(graph.inner, self._results)
        self._repairs: dict[FlowNode, Repair] = {}
        for n, value in self._values.items():
            if algebra.has_result(value):
                repair = algebra.find_repair(value, n.combine, n.start)
                if repair is None:
                    raise ScheduleError(f"{n.name} cannot be repaired when what it depends on changes")
                self._repairs[n] = repair
        self._run = {n.out: row.register(f"{n.name}_row", n.out) for n in self._folds}
        self._old = {b: row.register(f"{graph.makers[b].name}_old", b) for b in self._results}
        self._used = {b: row.register(f"{graph.makers[b].name}_used", b) for b in self._results}
        # What is moved was computed with a number, though there was no extreme yet.
        moving = [n for n, r in self._repairs.items() if isinstance(r, Shift | Recentre)]
        moved_by = {ld.buffer for n in moving for ld in loads(self._values[n])} & self._results
        self._prior = {b: row.register(f"{graph.makers[b].name}_prior", b) for b in moved_by}
        self._around = {
            n: row.register(f"{n.name}_around", n.out)
            for n, r in self._repairs.items()
            if isinstance(r, Recentre)
        }

    def stmts(self) -> list[Stmt]:
        row = self._row
        start = [self._store(self._run[n.out], n.start) for n in self._folds]
        start += [self._store(self._used[b], const(0, b.dtype)) for b in self._results]
        start += [self._store(around, const(0, around.dtype)) for around in self._around.values()]
        out = [row.over_rows(s) for s in start]
        size = min(row.plan.chunk, self._length)
        full, rest = divmod(self._length, size)
        chunk = row.names.var("chunk", full)
        out.append(For(chunk, full, seq(*self._chunk(chunk, size, size))))
        if rest:
            out += self._chunk(as_index(full), size, rest)
        for n in self._folds:
            out.append(row.written(n, self._run[n.out]))
        return out

    def _store(self, place: Load, value: Expr) -> Stmt:
        return Store(place.buffer, place.indices, value)

    def _chunk(self, number: Expr, size: int, count: int) -> list[Stmt]:
        row, out = self._row, list[Stmt]()
        per_element = self._total // self._length
        before, after = number * (size * per_element), (number * size + count) * per_element
        for b in self._results:
            summed = row.graph.makers[b].combine is BinaryOp.ADD
            out.append(row.over_rows(self._store(self._old[b], (self._used if summed else self._run)[b])))
            if b in self._prior:
                out.append(row.over_rows(self._store(self._prior[b], self._used[b])))
        for k in sorted({row.graph.sweeps[n] for n in self._folds}):
            folds = [n for n in self._folds if row.graph.sweeps[n] == k]
            for n in folds:
                out += self._repaired(n, before)
            around = [n for n in folds if n in self._around]
            out += row.fold(folds, lambda n, at: self._now(self._values[n], at), None, (number * size, count))
            for n in folds:
                value = n.combined(self._run[n.out], row.folded(n))
                out.append(row.over_rows(self._store(self._run[n.out], value)))
            for n in around:
                out += self._take_up_around(n, number * size, count)
            for n in folds:
                if n.out in self._results:
                    out.append(row.over_rows(self._store(self._used[n.out], self._usable(n, after))))
        return out

    def _take_up_around(self, node: FlowNode, start: Expr, count: int) -> list[Stmt]:
        """The sum of what is squared."""
        row, repair = self._row, self._repairs[node]
        assert isinstance(repair, Recentre)
        out = row.fold([node], lambda _, at: self._now(repair.around, at), None, (start, count))
        place = self._around[node]
        return [*out, row.over_rows(self._store(place, place + row.folded(node)))]

    def _usable(self, node: FlowNode, count: Expr) -> Expr:
        """A result so far, as one of the whole row."""
        run = self._run[node.out]
        if node.combine is BinaryOp.ADD:
            return run * (const(self._total, run.dtype) / cast(run.dtype, count))
        if node.combine in (BinaryOp.MAX, BinaryOp.MIN) and run.dtype.is_float:
            return select(equal(run, node.start), const(0, run.dtype), run)
        return run

    def _now(self, e: Expr, at: dict[Var, Expr]) -> Expr:
        return self._row.names.simplify(substitute(_put(e, self._used), at))

    def _repaired(self, node: FlowNode, before: Expr) -> list[Stmt]:
        repair, run, row = self._repairs.get(node), self._run[node.out], self._row
        if repair is None:
            return []

        def old(e: Expr) -> Expr:
            return _put(e, self._prior if isinstance(repair, Shift | Recentre) else self._old)

        def new(e: Expr) -> Expr:
            return _put(e, self._used)

        if not isinstance(repair, Recentre):
            return [row.over_rows(self._store(run, substitute(repair.repaired(run, old, new), row.at)))]
        moved, place = row.register(f"{node.name}_moved", node.out), self._around[node]
        squares, around = repair.repaired(run, place, moved, cast(run.dtype, before))
        return [
            row.over_rows(self._store(moved, substitute(repair.change(old, new), row.at))),
            row.over_rows(self._store(run, squares)),
            row.over_rows(self._store(place, around)),
        ]


def _put(e: Expr, places: dict[Buffer, Load]) -> Expr:
    return replace_loads(e, lambda ld: places.get(ld.buffer), {})
