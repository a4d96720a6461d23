"""Windows as loops: one node after the other, for some rows at a time that stay near.

    for part in parallel(16):
        for row in range(8):
            for h in range(20):                                                     # a stage
                for lane in vectorized(16): lines[h, lane] = max(x[h, …], x[h + 1, …], …)
            for h in range(20):                                                     # the next, of what that has made
                for lane in vectorized(16): y[h, lane] = max(lines[h, lane], lines[h, lane + 1], …)

Axes that all nodes have, and read each other at, are divided among workers. What a node makes of the others is scratch.
Lanes are what lies side by side in the result. A predicate on places alone cuts the loop over them; one on windows is
asked before each value, but for rows where it surely holds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import TypeAlias

from tilewright.gir.flow_graph import FlowGraph, FlowNode
from tilewright.gir.names import Names
from tilewright.gir.pieces import turning_points
from tilewright.gir.printer import indexed_axes
from tilewright.gir.row import Values
from tilewright.ir.condition import conjuncts, logical_and
from tilewright.ir.expr import (
    FALSE,
    TRUE,
    Binary,
    Buffer,
    Expr,
    Indices,
    Load,
    Scope,
    UnaryOp,
    Var,
    as_index,
    free_vars,
    loads,
    unary,
)
from tilewright.ir.rewrite import replace_loads, substitute
from tilewright.support.errors import ScheduleError
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, For, If, Iter, LoopKind, Stmt, Store, seq

_MOST_TAKEN = 16  # values of a fold that are written out; bound

_Made: TypeAlias = Callable[[Values], Expr]
_Body: TypeAlias = Callable[[Values, Var], list[Stmt]]
_AccBody: TypeAlias = Callable[[Values, Var, Buffer], list[Stmt]]


@dataclass(frozen=True, slots=True)
class WindowPlan:
    lanes: int  # elements of a vector
    vectors: int = 4  # computed together: what one waits for the others do not
    rows: int = 1  # of the innermost axis that all nodes have: taken by a stage before the next begins
    grain: int = 1  # times as many in a part


def lower_stages(graph: FlowGraph, plan: WindowPlan) -> Func:
    """ScheduleError if nodes read each other at more than windows, or one has nothing in lanes."""
    if any(n.is_scan for n in graph.nodes):
        raise ScheduleError(f"{graph.name} has a scan, which is no stage")
    names = Names(graph.nodes[-1].name, graph.extents)
    body = _Stages(graph, plan, names).run()
    return Func(graph.name, graph.params, tuple(names.locals), body, tuple(n.out for n in graph.outputs))


def shared_axes(graph: FlowGraph) -> tuple[Var, ...]:
    """The axes that all nodes have, and at which they read each other; but for what is in lanes."""
    *found, _ = indexed_axes(graph.outputs[-1].indices)
    for n in graph.nodes:
        found = [a for a in found if a in n.axes]
        for ld in loads(n.value):
            maker = graph.makers.get(ld.buffer)
            if maker is not None:
                own = {i: at for i, at in zip(maker.indices, ld.indices, strict=True)}
                found = [a for a in found if own.get(a) is a]
    return tuple(found)


class _Stages:
    def __init__(self, graph: FlowGraph, plan: WindowPlan, names: Names) -> None:
        self._graph, self._plan, self._names = graph, plan, names
        self._outer = shared_axes(graph)
        self._here: dict[Var, int] = {}  # the loops that choose rows
        self._at: Values = {}
        self._scratch: dict[Buffer, Buffer] = {}
        self._blocked = self._outer[-1] if self._outer else None  # of this axis, a stage takes some at a time

    def run(self) -> Stmt:
        names, plan, graph = self._names, self._plan, self._graph
        extents = {a: graph.extents[a] for a in self._outer}
        if self._blocked is not None:
            if extents[self._blocked] % plan.rows:
                raise ScheduleError(f"{extents[self._blocked]} rows are not taken {plan.rows} at a time")
            extents[self._blocked] //= plan.rows
        total = prod(extents.values())
        grain = max(n for n in range(1, min(plan.grain, total) + 1) if total % n == 0)
        part, own = names.var("vpart", total // grain), names.var("row", grain)
        number: Expr = part * grain + own
        for a, e in reversed(extents.items()):
            self._at[a] = names.simplify(number % e)
            number = names.simplify(number // e)
        if self._blocked is not None:
            self._at[self._blocked] = self._at[self._blocked] * plan.rows
        self._here = {part: total // grain, own: grain}
        stages = [self._stage(n, after) for n, after in self._with_followers()]
        loop = names.var("part", total // grain)
        block = Block(names.part(), (Iter(part, total // grain),), (loop,), For(own, grain, seq(*stages)))
        return For(loop, total // grain, block, LoopKind.PARALLEL if total > grain else LoopKind.SERIAL)

    def _with_followers(self) -> Iterator[tuple[FlowNode, list[FlowNode]]]:
        """Nodes, and what is made of each element of the last fold at once."""
        folds = [k for k, n in enumerate(self._graph.nodes) if n.is_fold]
        last = folds[-1] if folds else len(self._graph.nodes) - 1
        for n in self._graph.nodes[:last]:
            yield n, []
        yield self._graph.nodes[last], list(self._graph.nodes[last + 1 :])

    # -------------------------------------------------------------------------------------------------------- stages

    def _stage(self, node: FlowNode, after: list[FlowNode]) -> Stmt:
        inner = tuple(a for a in indexed_axes(node.indices) if a not in self._outer)
        if not inner:
            raise ScheduleError(f"{node.name} has one value for each row: nothing in lanes")
        loops = {a: self._graph.extents[a] for a in inner}
        if self._blocked is not None:
            loops = {self._blocked: self._plan.rows, **loops}
        if node.out not in self._graph.params and (after == [] or self._is_read_apart(node, after)):
            shape = (*self._here.values(), *loops.values())
            self._scratch[node.out] = self._names.local(node.name, shape, node.out, Scope.LOCAL)
        return seq(*(self._box(node, after, box) for box in self._boxes(node, inner)))

    def _is_read_apart(self, node: FlowNode, after: list[FlowNode]) -> bool:
        """Do others read what it makes at other elements than their own?"""
        return any(
            ld.buffer is node.out and ld.indices != node.indices for n in after for ld in loads(n.value)
        )

    def _boxes(self, node: FlowNode, inner: Sequence[Var]) -> Iterator[dict[Var, tuple[int, int]]]:
        """Cut where a predicate on one place changes."""
        ranges: list[list[tuple[int, int]]] = []
        for a in inner:
            extent = self._graph.extents[a]
            points = {
                p
                for c in conjuncts(node.where)
                if free_vars(c) == frozenset({a})
                for p in turning_points(c, a, extent)
            }
            ranges.append([*pairwise([0, *sorted(points), extent])])
        yield from (dict(zip(inner, box, strict=True)) for box in product(*ranges))

    def _box(self, node: FlowNode, after: list[FlowNode], box: Mapping[Var, tuple[int, int]]) -> Stmt:
        names, at, loops = self._names, dict(self._at), list[tuple[Var, int]]()
        if self._blocked is not None:
            own = names.var("own", self._plan.rows)
            at[self._blocked] = at[self._blocked] + own
            loops.append((own, self._plan.rows))
        *others, lanes = box
        for a in others:
            start, end = box[a]
            loops.append((names.var(a.name, end - start), end - start))
            at[a] = start + loops[-1][0]
        start, end = box[lanes]
        body = seq(*self._tiles(node, after, at, lanes, start, end))
        for var, extent in reversed(loops):
            body = For(var, extent, body)
        return body

    def _tiles(
        self, node: FlowNode, after: list[FlowNode], at: Values, lanes: Var, start: int, end: int
    ) -> Iterator[Stmt]:
        """As many vectors as are computed together, and what is left over."""
        plan = self._plan
        size = plan.lanes * plan.vectors
        count, rest = divmod(end - start, size)
        whole = [(n * plan.lanes, plan.lanes) for n in range(plan.vectors)]
        if count > 1:
            step = self._names.var("step", count)
            yield For(step, count, _Tile(self, node, after, at, lanes, start + step * size, whole).run())
        elif count:
            yield _Tile(self, node, after, at, lanes, as_index(start), whole).run()
        last = [(n, min(plan.lanes, rest - n)) for n in range(0, rest, plan.lanes)]
        if last:
            yield _Tile(self, node, after, at, lanes, as_index(start + count * size), last).run()

    # -------------------------------------------------------------------------------------------------------- values

    @property
    def names(self) -> Names:
        return self._names

    @property
    def graph(self) -> FlowGraph:
        return self._graph

    def value(self, e: Expr, at: Values) -> Expr:
        """An expression over axes where these have the values `at`."""

        def near(ld: Load) -> Expr | None:
            found = self._scratch.get(ld.buffer)
            if found is None:
                return None
            own = {a: i for a, i in zip(self._graph.makers[ld.buffer].indices, ld.indices, strict=True)}
            return Load(found, self._near(self._graph.makers[ld.buffer], own))

        return self._names.simplify(substitute(replace_loads(e, near, {}), at))

    def _near(self, node: FlowNode, own: Mapping[Expr, Expr]) -> Indices:
        """Where scratch has a value."""
        axes = [a for a in indexed_axes(node.indices) if a not in self._outer]
        if any(a not in own for a in axes):
            raise ScheduleError(f"{node.name} is not stored at its axes, but at sums of them")
        inner = [own[a] for a in axes]
        if self._blocked is not None:
            inner.insert(0, self._blocked - self._at[self._blocked])
        return (*self._here, *inner)

    def stores(self, node: FlowNode, after: list[FlowNode], made: Expr, at: Values) -> list[Stmt]:
        """What becomes of an element."""
        out: list[Stmt] = []
        if node.out in self._graph.params:
            out.append(Store(node.out, self._indices(node.indices, at), made))
        elif node.out in self._scratch:
            at_own = self._near(node, {i: i for i in node.indices})
            out.append(Store(self._scratch[node.out], self._indices(at_own, at), made))
        values = {node.out: made}
        for n in after:
            value = replace_loads(n.value, lambda ld: values.get(ld.buffer), {})
            values[n.out] = self.value(value, at)
            if n.out in self._graph.params:
                out.append(Store(n.out, self._indices(n.indices, at), values[n.out]))
        return out

    def _indices(self, indices: Indices, at: Values) -> Indices:
        return tuple(self._names.simplify(substitute(i, at)) for i in indices)


class _Tile:
    """Some vectors of a node, from `first` on; `widths` are (offset, elements) of each."""

    def __init__(
        self,
        stages: _Stages,
        node: FlowNode,
        after: list[FlowNode],
        at: Values,
        lanes: Var,
        first: Expr,
        widths: Sequence[tuple[int, int]],
    ) -> None:
        self._stages, self._node, self._after = stages, node, after
        self._at, self._lanes, self._first, self._widths = at, lanes, first, widths
        offset, width = widths[-1]
        self._any_lane = stages.names.var("lane", offset + width)
        self._anywhere = self._place(0, self._any_lane)  # in the tile

    def run(self) -> Stmt:
        node, extents = self._node, self._stages.graph.extents
        where = self._value(node.where, self._anywhere)
        if where is FALSE:
            return self._every(lambda at: node.start)
        if not node.is_fold:
            return self._every(lambda at: self._value(node.value, at))
        is_short = prod(extents[a] for a in node.over) <= _MOST_TAKEN
        if where is TRUE and is_short:
            return self._every(self._written_out)
        sure = self._surely() if is_short else None
        if sure is None:
            return self._one_by_one()
        quick = self._every(self._written_out)
        return seq(If(sure, quick), If(unary(UnaryOp.NOT, sure), self._one_by_one()))

    def _place(self, offset: int, lane: Var) -> Values:
        return {**self._at, self._lanes: self._first + offset + lane}

    def _value(self, e: Expr, at: Values) -> Expr:
        return self._stages.value(e, at)

    def _vector(self, offset: int, width: int, body: _Body) -> Stmt:
        lane = self._stages.names.var("lane", width)
        return For(lane, width, seq(*body(self._place(offset, lane), lane)), LoopKind.VECTORIZED)

    def _every(self, made: _Made) -> Stmt:
        def body(at: Values, lane: Var) -> list[Stmt]:
            return self._stages.stores(self._node, self._after, made(at), at)

        return seq(*(self._vector(offset, width, body) for offset, width in self._widths))

    def _points(self) -> Iterator[Values]:
        extents = self._stages.graph.extents
        for point in product(*(range(extents[a]) for a in self._node.over)):
            yield {a: as_index(n) for a, n in zip(self._node.over, point, strict=True)}

    def _written_out(self, at: Values) -> Expr:
        node, so_far = self._node, None
        for point in self._points():
            value = self._value(node.value, {**at, **point})
            # The neutral element of a maximum changes nothing; a zero may change the sign of one.
            is_first = so_far is None and node.combination in ("max", "min")
            so_far = value if is_first else node.combined(so_far if so_far is not None else node.start, value)
        assert so_far is not None
        return so_far

    def _surely(self) -> Expr | None:
        """The predicate for all values of the window, if that is one: at the worst of them."""
        terms: list[Expr] = []
        for c in conjuncts(self._node.where):
            worst = self._worst(c)
            if worst is None:
                return None
            terms.append(worst)
        found = self._value(logical_and(*terms), self._anywhere)
        return None if self._any_lane in free_vars(found) or found is FALSE else found

    def _worst(self, c: Expr) -> Expr | None:
        if not isinstance(c, Binary) or loads(c):
            return None
        extents, values = self._stages.graph.extents, dict[Var, Expr]()
        terms = dict(self._stages.names.simplify.linear(c.a - c.b).terms)
        for a in self._node.over:
            values[a] = as_index(extents[a] - 1 if terms.get(a, 0) > 0 else 0)
        made = self._stages.names.simplify(substitute(c, values))
        return None if set(self._node.over) & free_vars(made) else made

    def _one_by_one(self) -> Stmt:
        """With results so far in registers."""
        node, stages = self._node, self._stages
        name = stages.names.block("acc")
        accs = [
            stages.names.local(f"{name}_{n}", (width,), node.out, Scope.REGISTER)
            for n, (_, width) in enumerate(self._widths)
        ]
        loops = [(stages.names.var(a.name, stages.graph.extents[a]), a) for a in node.over]
        point: Values = {a: v for v, a in loops}

        def started(at: Values, lane: Var, acc: Buffer) -> list[Stmt]:
            return [Store(acc, (lane,), node.start)]

        def taken(at: Values, lane: Var, acc: Buffer) -> list[Stmt]:
            here = {**at, **point}
            so_far = Load(acc, (lane,))
            made: Stmt = Store(acc, (lane,), node.combined(so_far, self._value(node.value, here)))
            where = self._value(logical_and(*by_lane), here)
            return [made if where is TRUE else If(where, made)]

        def done(at: Values, lane: Var, acc: Buffer) -> list[Stmt]:
            return stages.stores(node, self._after, Load(acc, (lane,)), at)

        def all_of(body: _AccBody) -> Stmt:
            return seq(
                *(
                    self._vector(offset, width, lambda at, lane, acc=acc: body(at, lane, acc))
                    for (offset, width), acc in zip(self._widths, accs, strict=True)
                )
            )

        anywhere = {**self._anywhere, **point}
        asked = [c for c in conjuncts(node.where) if self._value(c, anywhere) is not TRUE]
        by_lane = [c for c in asked if self._any_lane in free_vars(self._value(c, anywhere))]
        inside = all_of(taken)
        where = self._value(logical_and(*(c for c in asked if c not in by_lane)), anywhere)
        if where is not TRUE:
            inside = If(where, inside)
        for var, a in reversed(loops):
            inside = For(var, stages.graph.extents[a], inside)
        return seq(all_of(started), inside, all_of(done))
