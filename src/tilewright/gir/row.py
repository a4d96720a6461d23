"""One row of a graph, or one vector of rows, as statements."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.plan import Plan, result_place
from tilewright.ir.expr import Buffer, Expr, Indices, Load, Scope, Var, as_index, binary
from tilewright.ir.rewrite import replace_loads, substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.stmt import PREFETCH_ROW, STREAM, Annotations, For, If, LoopKind, Stmt, Store, seq

ZERO = as_index(0)
Values: TypeAlias = dict[Var, Expr]  # of axes
Combined: TypeAlias = Callable[
    [Values, Indices], Iterator[Stmt]
]  # of an element, and where its partial result is
Others: TypeAlias = Callable[[Values], Iterator[Stmt]]


class Names:
    """The loops and buffers of a kernel, as they are made."""

    def __init__(self, prefix: str, extents: Mapping[Var, int]) -> None:
        self._prefix, self._count, self._parts = prefix, 0, 0
        self.locals: dict[Buffer, None] = {}
        self.simplify = Simplifier({a: Interval(0, e - 1) for a, e in extents.items()})

    def var(self, name: str, extent: int) -> Var:
        self._count += 1
        made = Var(f"{self._prefix}_{name}{self._count}")
        self.simplify.learn({made: Interval(0, extent - 1)})
        return made

    def block(self, name: str) -> str:
        self._count += 1
        return f"{self._prefix}_{name}{self._count}"

    def part(self) -> str:
        """The name of a block that is a part of the whole: the first has that of the whole."""
        self._parts += 1
        return self._prefix if self._parts == 1 else f"{self._prefix}_p{self._parts - 1}"

    def local(self, name: str, shape: tuple[int, ...], like: Buffer, scope: Scope) -> Buffer:
        made = Buffer(name, shape, like.dtype, scope)
        self.locals[made] = None
        return made


class Row:
    """`at` are the values of the row axes, over the loops `here` (and their extents) that choose a row. If `lane` is
    given, its iterations are rows, and `steps` times as many are taken together; otherwise lanes are elements of the
    row. Values of one vector of rows are registers, of more they are in scratch.
    """

    def __init__(
        self,
        graph: FlowGraph,
        plan: Plan,
        names: Names,
        at: Values,
        here: dict[Var, int],
        width: int,
        lane: Var | None = None,
        step: Var | None = None,
        steps: int = 1,
        suffix: str = "",
    ) -> None:
        self.graph, self.plan, self.names, self.at = graph, plan, names, at
        self.width, self.lane = width, lane
        self._step, self._steps = step, steps
        self.small: dict[Buffer, Buffer] = {}  # what has one value for each row
        self._here, self._suffix = here, suffix
        self._kept = [n for n in graph.read_later if n.name in plan.kept]
        self._scratch: dict[Buffer, Buffer] = {}
        self._in_place = dict([found]) if plan.in_place and (found := result_place(graph)) else {}
        self._partial: dict[Buffer, Buffer] = {}
        self._notes: Annotations = ()  # of the innermost loop of the sweep

    # ----------------------------------------------------------------------------------------- one value for each row

    def register(self, name: str, like: Buffer) -> Load:
        """One value, or those of a vector of rows."""
        name = f"{name}{self._suffix}"
        if self._step is not None:
            shape = (*self._here.values(), self._steps * self.width)
            return Load(self.names.local(name, shape, like, Scope.LOCAL), self._own_place)
        lanes = 1 if self.lane is None else self.width
        return Load(self.names.local(name, (lanes,), like, Scope.REGISTER), self._own_place)

    @property
    def _own_row(self) -> Expr:
        """Which of the rows that are taken together it is."""
        if self.lane is None:
            return ZERO
        return self.lane if self._step is None else self._step * self.width + self.lane

    @property
    def _own_place(self) -> Indices:
        return (self._own_row,) if self._step is None else (*self._here, self._own_row)

    def place(self, node: FlowNode) -> Load:
        """Where the value of the row is."""
        found = self.register(f"{node.name}_row", node.out)
        self.small[node.out] = found.buffer
        return found

    def scalars(self, k: int) -> list[Stmt]:
        """What is computed before sweep number k."""
        chosen = [n for n in self.graph.nodes if self.graph.is_scalar(n) and self.graph.sweeps[n] == k]
        return [self.written(n, self.value(n.value, k, self.at)) for n in chosen]

    def written(self, node: FlowNode, value: Expr) -> Stmt:
        """The value of a row stored in its place, if anybody reads it, and in memory if it is a result."""
        stores: list[Stmt] = []
        place = self.place(node)
        if any(node in self.graph.inner_reads(n) for n in self.graph.nodes):
            stores.append(Store(place.buffer, place.indices, value))
            value = place
        if node in self.graph.outputs:
            stores.append(Store(node.out, self._indices(node.indices, self.at), value))
        return self.over_rows(seq(*stores))

    def over_rows(self, s: Stmt) -> Stmt:
        if self.lane is None:
            return s
        lane = self.names.var("lane", self.width)  # of this loop alone
        own: Values = {self.lane: lane}
        if self._step is None:
            return For(lane, self.width, substitute_stmt(s, own), LoopKind.VECTORIZED)
        step = self.names.var("step", self._steps)
        own[self._step] = step
        return For(step, self._steps, For(lane, self.width, substitute_stmt(s, own), LoopKind.VECTORIZED))

    # ------------------------------------------------------------------------------------------------------- values

    def value(self, e: Expr, k: int, at: Values) -> Expr:
        """An expression over axes, in sweep number k, where these have the values `at`."""
        return self.names.simplify(substitute(self.opened(e, k), at))

    def opened(self, e: Expr, k: int) -> Expr:
        """An expression over axes with all nodes that it reads in it, but for those that are stored somewhere."""
        makers = self.graph.makers

        def inside(ld: Load) -> Expr | None:
            node = makers.get(ld.buffer)
            if node is None:
                return None
            if node.out in self.small:
                return Load(self.small[node.out], self._own_place)
            if node.is_fold:
                return None
            if node in self._kept and self.graph.sweeps[node] < k:
                return Load(self._scratch[node.out], self._kept_at(node))
            return self.opened(node.value, k)

        return replace_loads(e, inside, {})

    def _kept_at(self, node: FlowNode) -> Indices:
        """Where scratch has a value: by row, inner axes, and by lane if these are rows; or where its result will be."""
        if node in self._in_place:
            return self._in_place[node].indices
        inner = tuple(a for a in node.axes if a in self.graph.inner)
        return (*self._here, *inner, *(() if self.lane is None else (self._own_row,)))

    def _indices(self, indices: Indices, at: Values) -> Indices:
        return tuple(self.names.simplify(substitute(i, at)) for i in indices)

    # -------------------------------------------------------------------------------------------------------- sweeps

    def sweep(self, k: int, *, with_folds: bool) -> list[Stmt]:
        graph = self.graph
        folds = [n for n in graph.nodes if n.is_fold and self.graph.sweeps[n] == k and with_folds]
        maps = [
            n for n in graph.outputs if not n.is_fold and not graph.is_scalar(n) and self.graph.sweeps[n] == k
        ]
        kept = [n for n in self._kept if self.graph.sweeps[n] == k]
        if not folds and not maps and not kept:
            return []
        for n in kept:
            if n in self._in_place:
                self._scratch[n.out] = self._in_place[n].out
                continue
            inner = tuple(graph.extents[a] for a in n.axes if a in graph.inner)
            rows = () if self.lane is None else (self._steps * self.width,)
            shape = (*self._here.values(), *inner, *rows)
            name = f"{n.name}_kept{self._suffix}"
            self._scratch[n.out] = self.names.local(name, shape, n.out, Scope.LOCAL)

        def others(at: Values) -> Iterator[Stmt]:
            for n in kept:
                indices = self._indices(self._kept_at(n), at)
                yield Store(self._scratch[n.out], indices, self.value(n.value, k, at))
            for n in maps:
                yield Store(n.out, self._indices(n.indices, at), self.value(n.value, k, at))

        fetches: Annotations = ((PREFETCH_ROW, 1),) if k and k == self.plan.ahead else ()
        past: Annotations = ((STREAM, 1),) if self.plan.streams and maps and not folds else ()
        self._notes = (*fetches, *past)
        out = self.fold(folds, lambda n, at: self.value(n.value, k, at), others if maps or kept else None)
        return [*out, *(self.written(n, self.folded(n)) for n in folds)]

    def fold(
        self,
        folds: Sequence[FlowNode],
        value: Callable[[FlowNode, Values], Expr],
        others: Others | None = None,
        part: tuple[Expr, int] | None = None,
    ) -> list[Stmt]:
        """A sweep over elements of the row: folds, whose results are `folded` then, and `others`, what else is done to
        an element. `part`: the first element, and how many.
        """
        accs = {n: self._accumulator(n) for n in folds}
        out: list[Stmt] = [self._started(n, acc) for n, acc in accs.items()]

        def combined(at: Values, place: Indices) -> Iterator[Stmt]:
            for n, acc in accs.items():
                so_far = Load(acc, place)
                yield Store(acc, so_far.indices, n.combined(so_far, value(n, at)))

        start, count = part or (ZERO, None)
        loops = self._over_elements if self.lane is None else self._over_vectors_of_rows
        out.append(loops(combined, others or (lambda _: iter(())), start, count))
        for n, acc in accs.items():
            out += self._halved(n, acc)
        return out

    def _over_vectors_of_rows(
        self, combined: Combined, others: Others, start: Expr, count: int | None
    ) -> Stmt:
        graph = self.graph
        assert self.lane is not None
        extents = {a: graph.extents[a] for a in graph.inner}
        at = dict(self.at)
        loops: list[tuple[Var, int]] = []
        for n, (a, extent) in enumerate(extents.items()):
            extent = extent if n or count is None else count
            loops.append((self.names.var(a.name, extent), extent))
            at[a] = loops[-1][0] if n else start + loops[-1][0]
        body = self.over_rows(seq(*combined(at, self._own_place), *others(at)))
        return _wrapped(body, loops, self._notes)

    def _over_elements(self, combined: Combined, others: Others, start: Expr, count: int | None) -> Stmt:
        graph, span = self.graph, self.plan.lanes
        outer = {a: self.names.var(a.name, graph.extents[a]) for a in graph.inner if a not in span}
        at = {**self.at, **outer}
        width, total = self.width, graph.size(span) if count is None else count
        full, rest = divmod(total, width)
        parts: list[Stmt] = []
        if full:
            step, lane = self.names.var("step", full), self.names.var("lane", width)
            here = self._spread(at, start + step * width + lane)
            both = seq(*combined(here, (lane,)), *others(here))
            vector = For(lane, width, both, LoopKind.VECTORIZED)
            parts.append(For(step, full, vector, LoopKind.SERIAL, self._notes))
        if rest:
            # Partial results are whole vectors: the lanes that have no element leave theirs as it is.
            lane = self.names.var("lane", width)
            folded = [*combined(self._spread(at, start + lane + full * width), (lane,))]
            if folded:
                parts.append(For(lane, width, If(lane < rest, seq(*folded)), LoopKind.VECTORIZED))
            lane = self.names.var("lane", rest)
            stored = [*others(self._spread(at, start + lane + full * width))]
            if stored:
                parts.append(For(lane, rest, seq(*stored), LoopKind.VECTORIZED))
        return _wrapped(seq(*parts), [(v, graph.extents[a]) for a, v in outer.items()])

    def _spread(self, at: Values, number: Expr) -> Values:
        """With the values of the fused axes at an element of them."""
        out = dict(at)
        first, *others = self.plan.lanes
        for a in reversed(others):
            out[a] = self.names.simplify(number % self.graph.extents[a])
            number = number // self.graph.extents[a]
        return {**out, first: self.names.simplify(number)}

    # ---------------------------------------------------------------------------------------------- partial results

    def _accumulator(self, node: FlowNode) -> Buffer:
        if self.lane is not None:
            return self.register(f"{node.name}_acc", node.out).buffer
        return self.names.local(f"{node.name}_acc{self._suffix}", (self.width,), node.out, Scope.REGISTER)

    def _started(self, node: FlowNode, acc: Buffer) -> Stmt:
        if self.lane is not None:
            return self.over_rows(Store(acc, self._own_place, node.start))
        lane = self.names.var("lane", self.width)
        return For(lane, self.width, Store(acc, (lane,), node.start), LoopKind.VECTORIZED)

    def _halved(self, node: FlowNode, acc: Buffer) -> list[Stmt]:
        """The partial results of lanes, combined half by half."""
        out: list[Stmt] = []
        width = self.width
        while self.lane is None and width > 2 and width % 2 == 0:
            width //= 2
            name = f"{node.name}_acc{width}{self._suffix}"
            half, lane = (
                self.names.local(name, (width,), node.out, Scope.REGISTER),
                self.names.var("lane", width),
            )
            both = binary(node.combine, Load(acc, (lane,)), Load(acc, (lane + width,)))
            out.append(For(lane, width, Store(half, (lane,), both), LoopKind.VECTORIZED))
            acc = half
        self._partial[node.out] = acc
        return out

    def folded(self, node: FlowNode) -> Expr:
        """What the last sweep folded."""
        acc = self._partial[node.out]
        if self.lane is not None:
            return Load(acc, self._own_place)
        value: Expr = Load(acc, (ZERO,))
        for n in range(1, acc.shape[0]):
            value = binary(node.combine, value, Load(acc, (as_index(n),)))
        return value


def _wrapped(body: Stmt, loops: Sequence[tuple[Var, int]], notes: Annotations = ()) -> Stmt:
    """`notes` are those of the innermost loop."""
    for var, extent in reversed(loops):
        body = For(var, extent, body, LoopKind.SERIAL, notes)
        notes = ()
    return body
