"""One row of a graph, or one vector of rows, as statements."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.names import Names
from tilewright.gir.plan import Plan, result_place
from tilewright.gir.prefix_scan import PrefixScan
from tilewright.ir.expr import Buffer, Expr, Indices, Load, Scope, Var, as_index, binary, equal, select
from tilewright.ir.rewrite import replace_loads, substitute
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.stmt import PREFETCH_ROW, STREAM, Annotations, For, If, LoopKind, Stmt, Store, seq

ZERO = as_index(0)
Values: TypeAlias = dict[Var, Expr]  # of axes
Others: TypeAlias = Callable[[Values], Iterator[Stmt]]
# Lanes of each of several vectors that are one, whose lanes are no power of two; bound: two vectors of AVX-512. What
# has no element in it is left out.
_MOST_LANES = 32
_LANE = Var("lane_of_elements")  # where lanes are elements of a row: which of them it is


@dataclass(frozen=True, slots=True)
class SweptElements:
    """What a sweep does to elements: `count` of them from `start` on, or all."""

    folds: Sequence[FlowNode]
    scans: Sequence[FlowNode]
    value: Callable[[FlowNode, Values], Expr]
    others: Others
    start: Expr
    count: int | None


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
        self._current: dict[Buffer, Load] = {}  # of scans: what they have at the element of this sweep

    # ----------------------------------------------------------------------------------------- one value for each row

    def register(self, name: str, like: Buffer) -> Load:
        """One value, or those of a vector of rows."""
        name = f"{name}{self._suffix}"
        if self._step is not None:
            shape = (*self._here.values(), self._steps * self.width)
            return Load(self.names.local(name, shape, like, Scope.LOCAL), self._own_place)
        width, count = (1, 1) if self.lane is None else _whole_vectors(self.width)
        return Load(self.names.local(name, (width * count,), like, Scope.REGISTER), self._own_place)

    @property
    def _own_row(self) -> Expr:
        """Which of the rows that are taken together it is."""
        if self.lane is None:
            return ZERO
        return self.lane if self._step is None else self._step * self.width + self.lane

    @property
    def _own_place(self) -> Indices:
        return (self._own_row,) if self._step is None else (*self._here, self._own_row)

    @property
    def _lane_place(self) -> Indices:
        return (ZERO if self.lane is None else self.lane,)

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
        if self._step is None:
            return self._over_one_vector(self.lane, s)
        lane = self.names.var("lane", self.width)  # of this loop alone
        own: Values = {self.lane: lane}
        step = self.names.var("step", self._steps)
        own[self._step] = step
        return For(step, self._steps, For(lane, self.width, substitute_stmt(s, own), LoopKind.VECTORIZED))

    def _over_one_vector(self, mine: Var, s: Stmt) -> Stmt:
        """For all rows of a vector; several that are whole ones if it has no power of two lanes."""
        width, count = _whole_vectors(self.width)
        lane, vector = self.names.var("lane", width), self.names.var("vector", count)
        own: Expr = lane if count == 1 else vector * width + lane
        body = substitute_stmt(s, {mine: own})
        if width * count > self.width:
            body = If(own < self.width, body)
        body = For(lane, width, body, LoopKind.VECTORIZED)
        return body if count == 1 else For(vector, count, body, LoopKind.UNROLLED)

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
            return self._current[node.out] if node.is_scan else self.opened(node.value, k)

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
            inner = {a: graph.extents[a] for a in n.axes if a in graph.inner}
            rows = () if self.lane is None else (self._steps * self.width,)
            shape = (*self._here.values(), *inner.values(), *rows)
            # Where an axis is open, nobody reads beyond its size: loops may stop there.
            sized = dict(zip(n.indices, n.out.sizes, strict=False))
            sizes = (*(None for _ in self._here), *(sized.get(a) for a in inner), *(None for _ in rows))
            name = f"{n.name}_kept{self._suffix}"
            self._scratch[n.out] = self.names.local(name, shape, n.out, Scope.LOCAL, sizes)

        def others(at: Values) -> Iterator[Stmt]:
            for n in kept:
                indices = self._indices(self._kept_at(n), at)
                yield Store(self._scratch[n.out], indices, self._made(n, k, at))
            for n in maps:
                yield Store(n.out, self._indices(n.indices, at), self._made(n, k, at))

        scans = self._scans([*folds, *maps, *kept], k)
        fetches: Annotations = ((PREFETCH_ROW, 1),) if k and k == self.plan.ahead else ()
        past: Annotations = ((STREAM, 1),) if self.plan.streams and maps and not folds and not scans else ()
        self._notes = (*fetches, *past)
        out = self.fold(
            folds, lambda n, at: self.value(n.value, k, at), others if maps or kept else None, scans=scans
        )
        return [*out, *(self.written(n, self.folded(n)) for n in folds)]

    def _made(self, node: FlowNode, k: int, at: Values) -> Expr:
        """What a map or a scan has at an element."""
        return self.value(Load(node.out, node.indices) if node.is_scan else node.value, k, at)

    def _scans(self, made: Sequence[FlowNode], k: int) -> list[FlowNode]:
        """The scans that run in sweep number k for what is made there: those that are not kept from an earlier one."""
        found: set[FlowNode] = set()
        stack = list(made)
        while stack:
            n = stack.pop()
            if n in found or (n in self._kept and self.graph.sweeps[n] < k):
                continue
            if n.is_fold and n not in made:
                continue
            if n.is_scan:
                found.add(n)
            stack += self.graph.inner_reads(n)
        return [n for n in self.graph.nodes if n in found]

    def fold(
        self,
        folds: Sequence[FlowNode],
        value: Callable[[FlowNode, Values], Expr],
        others: Others | None = None,
        part: tuple[Expr, int] | None = None,
        scans: Sequence[FlowNode] = (),
    ) -> list[Stmt]:
        """A sweep over elements of the row: folds, whose results are `folded` then, and `others`, what else is done to
        an element. `part`: the first element, and how many. `scans` are at each element before anything else.
        """
        work = SweptElements(folds, scans, value, others or _nothing, *(part or (ZERO, None)))
        if self.lane is None:
            accs = {n: self._accumulator(n) for n in folds}
            out: list[Stmt] = [self._started(n, acc) for n, acc in accs.items()]
            out += self._over_elements(work, accs)
        else:
            accs = {n: self._accumulator(n) for n in (*folds, *scans)}
            out = [self._started(n, acc) for n, acc in accs.items()]
            out.append(self._over_vectors_of_rows(work, accs))
        for n in folds:
            out += self._halved(n, accs[n])
        return out

    # ------------------------------------------------------------------------------------------- lanes that are rows

    def _over_vectors_of_rows(self, work: "SweptElements", accs: dict[FlowNode, Buffer]) -> Stmt:
        """All elements of as many rows, in the order of the inner axes. In a panel, vectors of rows take turns after
        each element, with their results so far in scratch.
        """
        graph = self.graph
        extents = {a: graph.extents[a] for a in graph.inner}
        if work.count is not None:
            extents[graph.inner[0]] = work.count
        *outer, last = extents
        at, loops = dict(self.at), list[tuple[Var, int]]()
        for a in outer:
            loops.append((self.names.var(a.name, extents[a]), extents[a]))
            at[a] = loops[-1][0]
        var = self.names.var(last.name, extents[last])
        at[last] = var
        body = self.over_rows(seq(*self._at_rows(work, accs, self._placed(at, work), self._own_place)))
        return _wrapped(body, [*loops, (var, extents[last])], self._notes)

    def taken_up(self, first: Expr, count: int, so_far: Mapping[FlowNode, Load]) -> Stmt:
        """Some elements of rows that scan, `count` from `first` on in the order of the scans, by one vector of rows
        after the other. Results so far are in registers meanwhile; where they are before and afterwards is given, and
        there is nothing yet before the first element.
        """
        mine, its_step, (axis,) = self.lane, self._step, self.graph.inner
        assert mine is not None and its_step is not None
        made = [n for n in self.graph.outputs if not self.graph.is_scalar(n)]
        scans = self._scans(made, 0)

        def others(at: Values) -> Iterator[Stmt]:
            for n in made:
                yield Store(n.out, self._indices(n.indices, at), self._made(n, 0, at))

        def value(n: FlowNode, at: Values) -> Expr:
            return self.value(n.value, 0, at)

        work = SweptElements((), scans, value, others, ZERO, None)
        near = {
            n: self.names.local(f"{n.name}_near{self._suffix}", (self.width,), n.out, Scope.REGISTER)
            for n in scans
        }
        own, step = self.names.var(axis.name, count), self.names.var("step", self._steps)

        def vectors(stmts: Iterable[Stmt]) -> Stmt:
            lane = self.names.var("lane", self.width)
            body = substitute_stmt(seq(*stmts), {mine: lane, its_step: step})
            return For(lane, self.width, body, LoopKind.VECTORIZED)

        def before(n: FlowNode) -> Expr:
            return select(equal(first, 0), n.start, so_far[n])

        here = self._placed({**self.at, axis: first + own}, work)
        turn = seq(
            vectors(Store(near[n], self._lane_place, before(n)) for n in scans),
            For(own, count, vectors(self._at_rows(work, near, here, self._lane_place))),
            vectors(
                Store(so_far[n].buffer, so_far[n].indices, Load(near[n], self._lane_place)) for n in scans
            ),
        )
        return For(step, self._steps, turn)

    def _placed(self, at: Values, work: "SweptElements") -> Values:
        """At the element that is the next: the first is where the sweep begins, or it goes backwards."""
        first, *others = self.graph.inner
        if any(n.reverse for n in work.scans):
            assert not others
            return {**at, first: self.names.simplify(as_index(self.graph.extents[first] - 1) - at[first])}
        return {**at, first: work.start + at[first]}

    def _at_rows(
        self, work: "SweptElements", accs: dict[FlowNode, Buffer], at: Values, place: Indices
    ) -> Iterator[Stmt]:
        """What is done to an element of each row. A scan has what it read so far: with the element, if it takes that up
        before anybody reads the scan; or without it, if nobody does afterwards.
        """

        def taken_up(n: FlowNode) -> Stmt:
            return Store(accs[n], place, n.combined(Load(accs[n], place), work.value(n, at)))

        self._current |= {n.out: Load(accs[n], place) for n in work.scans}
        yield from (taken_up(n) for n in work.scans if not n.exclusive)
        yield from map(taken_up, work.folds)
        yield from work.others(at)
        yield from (taken_up(n) for n in reversed(work.scans) if n.exclusive)

    # ------------------------------------------------------------------------------- lanes that are elements of a row

    def _over_elements(self, work: "SweptElements", accs: dict[FlowNode, Buffer]) -> list[Stmt]:
        graph, span = self.graph, self.plan.lanes
        outer = {a: self.names.var(a.name, graph.extents[a]) for a in graph.inner if a not in span}
        at = {**self.at, **outer}
        width, total = self.width, graph.size(span) if work.count is None else work.count
        full, rest = divmod(total, width)
        backwards = any(n.reverse for n in work.scans)
        scans = [PrefixScan(self.names, n, width, f"{n.name}{self._suffix}") for n in work.scans]
        parts: list[Stmt] = []

        def scanned(first: Expr, count: int) -> list[Stmt]:
            """The scans of a vector, or of as many elements."""
            out: list[Stmt] = []
            for s in scans:
                out += s.taken_up(lambda lane, s=s: work.value(s.node, self._spread(at, first, lane)), count)
                self._current[s.node.out] = Load(s.now, (_LANE,))
            return out

        def folded(here: Values, lane: Var) -> Iterator[Stmt]:
            for n, acc in accs.items():
                yield Store(acc, (lane,), n.combined(Load(acc, (lane,)), work.value(n, here)))

        if full:
            step, lane = self.names.var("step", full), self.names.var("lane", width)
            first = as_index(total - width) - step * width if backwards else work.start + step * width
            before = scanned(first, width)
            here = self._spread(at, first, lane)
            both = seq(*folded(here, lane), *work.others(here))
            vectors = seq(*before, For(lane, width, both, LoopKind.VECTORIZED))
            parts.append(For(step, full, vectors, LoopKind.SERIAL, self._notes))
        if rest:
            # Partial results are whole vectors: the lanes that have no element leave theirs as it is.
            first = ZERO if backwards else work.start + full * width
            parts += scanned(first, rest)
            lane = self.names.var("lane", width)
            taken = [*folded(self._spread(at, first, lane), lane)]
            if taken:
                parts.append(For(lane, width, If(lane < rest, seq(*taken)), LoopKind.VECTORIZED))
            lane = self.names.var("lane", rest)
            stored = [*work.others(self._spread(at, first, lane))]
            if stored:
                parts.append(For(lane, rest, seq(*stored), LoopKind.VECTORIZED))
        body = _wrapped(seq(*parts), [(v, graph.extents[a]) for a, v in outer.items()])
        return [*(s.started() for s in scans), body]

    def _spread(self, at: Values, start: Expr, lane: Var) -> Values:
        """With the values of the fused axes at an element of them."""
        out, number = {**at, _LANE: lane}, start + lane
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


def _whole_vectors(lanes: int) -> tuple[int, int]:
    """Lanes of each vector, a power of two, and how many have room for as many lanes. Code generators pass vectors of
    other sizes from block to block element by element.
    """
    width = 1 << (lanes - 1).bit_length()
    if width == lanes:
        return lanes, 1
    width = min(width, _MOST_LANES)
    return width, ceil(lanes / width)


def _wrapped(body: Stmt, loops: Sequence[tuple[Var, int]], notes: Annotations = ()) -> Stmt:
    """`notes` are those of the innermost loop."""
    for var, extent in reversed(loops):
        body = For(var, extent, body, LoopKind.SERIAL, notes)
        notes = ()
    return body


def _nothing(_: Values) -> Iterator[Stmt]:
    return iter(())
