"""Elements without folds as loops: elementwise chains, copies, transposes, paddings, rows that data chooses.

    for i, j: y[i, j] = x[i, j] + b[j]      ──>      for part in parallel(16):
                                                         for i in range(8):
                                                             for step: for lane in vectorized(16): y[…] = x[…] + b[…]

Loops run in the order of the output's memory, cut where a condition on them changes (`gir/pieces.py`). The innermost
of them, fused while that makes no access worse, become vectors; squares of transposed operands go through registers
(`gir/tiles.py`). What is outside is divided among workers. The rest is said by an `ElementPlan`.

An axis that is open (`Buffer.sizes`) is fused with axes inside of it only: of a fused loop the first iterations are in
use then, and it stops where they end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import ceil, prod
from typing import TypeAlias

from tilewright.gir.names import Names
from tilewright.gir.open_pieces import open_parts
from tilewright.gir.pieces import ElementBox, find_cut, steps_of
from tilewright.gir.tiles import Squares, TileShape, find_transposed
from tilewright.ir.expr import TRUE, Buffer, Expr, Indices, Load, Var, as_index, equal, free_vars, loads
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.tir.passes.open_bounds import open_stores
from tilewright.tir.rewrite import substitute_stmt
from tilewright.tir.stmt import (
    PREFETCH,
    STREAM,
    Annotations,
    Block,
    For,
    If,
    Iter,
    LoopKind,
    Stmt,
    Store,
    seq,
)

_LINE_BYTES = 64  # bytes of a line; given
_LEAST_LINES = 4  # lines of a row that data chooses; bound: shorter ones are over before the next is there
_MOST_PARTS = 4  # times as many as are wanted; bound
# In loads or stores of a vector, counted, when axes are fused: what a vector costs beside, and a division of an index.
_VECTOR = 2.0
_DIVISION = 1.0
_STREAMED: Annotations = ((STREAM, 1),)


@dataclass(frozen=True, slots=True)
class ElementPlan:
    lanes: int  # elements of a vector
    vectors: int = 1  # computed in turn: what one waits for the others do not
    tile: TileShape = field(default=TileShape(16, 16))  # where operands are transposed
    streams: bool = False  # do results go to memory past the caches?
    parts: int = 1  # at least as many are wanted; 1: nobody shares the work


def lower_elements(piece: ElementBox, around: Mapping[Var, int], plan: ElementPlan, names: Names) -> Stmt:
    """All of a piece; `around` are the loops that it is inside of, which nothing here divides."""
    nests = _Elements(plan, names).nest(piece, plan.parts > 1)
    if plan.parts > 1:
        return seq(*nests)
    iters = {v: names.var(v.name, e) for v, e in around.items()}
    body = substitute_stmt(seq(*nests), iters)
    own = tuple(Iter(v, e) for v, e in zip(iters.values(), around.values(), strict=True))
    return Block(names.part(), own, tuple(around), body)


class _Elements:
    def __init__(self, plan: ElementPlan, names: Names) -> None:
        self._plan, self._names = plan, names

    def nest(self, piece: ElementBox, is_shared: bool) -> list[Stmt]:
        """The nests of a piece; if they are shared, each is one of blocks."""
        parts = open_parts(piece, self._names.simplify)
        if parts is not None:
            above = {a: e for a, e in piece.axes.items() if all(a in p.axes for p in parts)}
            above = dict(list(above.items())[: next(n for n, a in enumerate(piece.axes) if a not in above)])
            return self._each(parts, above, is_shared)
        found = find_transposed(piece, self._plan.lanes, self._names.simplify)
        cut = find_cut(piece, () if found is None else (found.across, found.inner), self._plan.lanes)
        if cut is None:
            if found is not None:
                plan, parts = self._plan, self._plan.parts if is_shared else 1
                squares = Squares(piece, found, plan.tile, plan.lanes, parts, self._names)
                return [self._loops(squares.loops, self._streamed(squares.block()), is_shared)]
            return [self._vectors(piece, is_shared)]
        bounds = [0, *cut.points, piece.axes[cut.axis]]
        cuts: list[ElementBox] = []
        for start, end in pairwise(bounds):
            own = self._names.var(cut.axis.name, end - start)
            axes = {
                own if a is cut.axis else a: end - start if a is cut.axis else e
                for a, e in piece.axes.items()
            }
            cuts.append(piece.moved({cut.axis: start + own}, axes, self._names.simplify))
        return self._each(cuts, dict(list(piece.axes.items())[: cut.own]), is_shared)

    def _each(self, parts: Sequence[ElementBox], above: Mapping[Var, int], is_shared: bool) -> list[Stmt]:
        """The nests of parts of a piece, in common loops over the axes `above`."""
        if is_shared and prod(above.values()) < self._plan.parts:
            above = {}  # too few to be shared: every part has all loops
        nests: list[Stmt] = []
        for part in parts:
            inside = {a: e for a, e in part.axes.items() if a not in above}
            nests += self.nest(part.within(inside), is_shared and not above)
        return [self._loops(above, seq(*nests), is_shared)] if above else nests

    def _streamed(self, s: Stmt) -> Stmt:
        """Its stores go past the caches, if the plan says so."""
        match s:
            case For() if self._plan.streams:
                return For(s.var, s.extent, s.body, s.kind, _STREAMED)
            case _:
                return s

    # -------------------------------------------------------------------------------------------------------- vectors

    def _vectors(self, piece: ElementBox, is_shared: bool) -> Stmt:
        plan, names = self._plan, self._names
        depth = fused_axes(piece, plan.lanes)[0]
        most = plan.lanes * plan.vectors
        if _divisions_by_lane(piece, depth, most) > _divisions_by_lane(piece, depth, plan.lanes):
            most = plan.lanes  # a vector lies along a row; several would go on in the next
        order = list(piece.axes.items())
        outer, fused = dict(order[:-depth] if depth else order), dict(order[len(order) - depth :])
        total, start, parts = prod(fused.values()), 0, list[tuple[int, int, int]]()
        for width in (most, plan.lanes):
            if total - start >= width and width != (parts[-1][2] if parts else 0):
                parts.append((start, (total - start) // width, width))
                start += parts[-1][1] * width
        if start < total:
            parts.append((start, 1, total - start))
        chunks = self._chunks(parts[0][1], prod(outer.values())) if is_shared else 1
        if chunks == 1:
            body = seq(*(self._steps(piece, fused, *p) for p in parts))
            return self._loops(
                outer, body, is_shared, fetches=_chooses_rows(piece, outer, fused, names.simplify)
            )
        first, steps, width = parts[0]
        chunk, each = names.var("chunk", chunks), ceil(steps / chunks)
        step = names.var("step", each)
        at = chunk * each + step
        vector: Stmt = self._vector(piece, fused, first + at * width, width)
        if steps % chunks:
            vector = If(at < steps, vector)
        rest = [self._steps(piece, fused, *p) for p in parts[1:]]
        last = [If(equal(chunk, as_index(chunks - 1)), seq(*rest))] if rest else []
        body = seq(self._streamed(For(step, each, vector)), *last)
        return self._loops({**outer, chunk: chunks}, body, is_shared)

    def _steps(self, piece: ElementBox, fused: Mapping[Var, int], start: int, steps: int, width: int) -> Stmt:
        if not fused or steps == 1:
            return self._vector(piece, fused, as_index(start), width)
        step = self._names.var("step", steps)
        return self._streamed(For(step, steps, self._vector(piece, fused, start + step * width, width)))

    def _vector(self, piece: ElementBox, fused: Mapping[Var, int], first: Expr, width: int) -> Stmt:
        names = self._names
        lane = names.var("lane", width)
        at = spread(fused, first + lane, names.simplify)
        own = piece.moved(at, {}, names.simplify)
        body: Stmt = seq(*own.stores)
        if own.condition is not TRUE:
            body = If(own.condition, body)
        return For(lane, width, body, LoopKind.VECTORIZED) if fused else body

    def _chunks(self, steps: int, outer: int) -> int:
        """Into how many parts to divide the steps, if there are too few loops around them."""
        wanted = ceil(self._plan.parts / outer)
        if wanted == 1 or steps < 2 * wanted:
            return 1
        exact = [n for n in range(wanted, _MOST_PARTS * wanted + 1) if steps % n == 0]
        return exact[0] if exact else 2 * wanted

    # ---------------------------------------------------------------------------------------------------------- loops

    def _loops(self, axes: Mapping[Var, int], body: Stmt, is_shared: bool, *, fetches: bool = False) -> Stmt:
        """`body` for all points of the axes; if it is shared, in blocks that are parts. `fetches`: what data chooses in
        the next iteration of the last axis is asked for in this one.
        """
        order = [(a, e) for a, e in axes.items() if e > 1]
        zero: dict[Var, Expr] = {a: as_index(0) for a, e in axes.items() if e == 1}
        if zero:
            body = substitute_stmt(body, zero)
        notes: Annotations = ((PREFETCH, 1),) if fetches else ()
        prefix: dict[Var, int] = {}
        open_axes = _stored_open(body) if is_shared else frozenset[Var]()
        while is_shared and order and prod(prefix.values()) < self._plan.parts:
            if prefix and order[0][0] in open_axes:  # divided by itself: those before it are loops inside
                order[:1], prefix = prefix.items(), dict(order[:1])
                break
            prefix |= dict([order.pop(0)])
        for n, (a, e) in enumerate(reversed(order)):
            own = self._names.var(a.name, e)
            body = For(own, e, substitute_stmt(body, {a: own}), LoopKind.SERIAL, notes if not n else ())
        return self._parts(prefix, body, notes if not order else ()) if is_shared else body

    def _parts(self, prefix: Mapping[Var, int], body: Stmt, notes: Annotations) -> Stmt:
        """Parts of as many iterations each, over all points of the axes."""
        names, total = self._names, prod(prefix.values())
        most = _MOST_PARTS * self._plan.parts
        exact = [n for n in range(min(self._plan.parts, total), most + 1) if total % n == 0]
        parts = total if total <= most else exact[0] if exact else 2 * self._plan.parts
        grain = ceil(total / parts)
        part, own = names.var("vpart", parts), names.var("own", grain)
        at = spread(prefix, part * grain + own, names.simplify)
        inside = substitute_stmt(body, at)
        if total % parts:
            inside = If(part * grain + own < total, inside)
        loop = names.var("part", parts)
        block = Block(
            names.part(),
            (Iter(part, parts),),
            (loop,),
            For(own, grain, inside, LoopKind.SERIAL, notes),
        )
        return For(loop, parts, block, LoopKind.PARALLEL if parts > 1 else LoopKind.SERIAL)


def spread(axes: Mapping[Var, int], number: Expr, simplify: Callable[[Expr], Expr]) -> dict[Var, Expr]:
    """The values of axes, fused into one, at an element of it."""
    out: dict[Var, Expr] = {}
    for a, e in reversed(list(axes.items())[1:]):
        out[a] = simplify(number % e)
        number = number // e
    if axes:
        out[next(iter(axes))] = simplify(number)
    return out


def fused_axes(piece: ElementBox, lanes: int) -> tuple[int, float]:
    """How many of the innermost axes to fuse before taking vectors off, and the loads and stores that an element costs
    then.
    """
    best = (min(len(piece.axes), 1), _access_cost(piece, min(len(piece.axes), 1), lanes))
    order = list(piece.axes)
    for depth in range(2, len(piece.axes) + 1):
        if order[1 - depth] in piece.open_axes:
            break
        cost = _access_cost(piece, depth, lanes)
        if cost <= best[1]:
            best = depth, cost
    return best


def _stored_open(s: Stmt) -> frozenset[Var]:
    """The variables that move what is stored along open dimensions."""
    return frozenset(
        v
        for leaf in open_stores(s)
        for d, i in enumerate(leaf.indices)
        if leaf.store.buffer.is_open(d)
        for v in free_vars(i)
    )


def _access_cost(piece: ElementBox, depth: int, lanes: int) -> float:
    axes, lane, addresses = _addresses(piece, depth, lanes)
    cost = _VECTOR
    for terms in addresses:
        cost += 1.0 if _is_plain(terms, lane) else lanes
        cost += _DIVISION * sum(not isinstance(atom, Var | Load) for atom, _ in terms)
    size = prod(axes.values())
    full, rest = divmod(size, lanes)
    return cost * (full + (rest > 0)) / size


def _divisions_by_lane(piece: ElementBox, depth: int, lanes: int) -> int:
    """How many divisions of indices differ from lane to lane."""
    _, lane, addresses = _addresses(piece, depth, lanes)
    return sum(atom is not lane and lane in free_vars(atom) for terms in addresses for atom, _ in terms)


_Addresses: TypeAlias = tuple[Mapping[Var, int], Var, tuple[Sequence[tuple[Expr, int]], ...]]


def _addresses(piece: ElementBox, depth: int, lanes: int) -> _Addresses:
    """The innermost axes, and the addresses of all accesses as sums of terms, if these axes become vectors; over the
    lane that is returned too.
    """
    return _known_addresses(piece.stores, tuple(piece.axes.items()), piece.condition, depth, lanes)


@lru_cache(maxsize=128)  # a nest is asked about by its cost, by how it is split, and again when it is made
def _known_addresses(
    stores: tuple[Store, ...], extents: tuple[tuple[Var, int], ...], condition: Expr, depth: int, lanes: int
) -> _Addresses:
    piece = ElementBox(stores, dict(extents), condition)
    axes = dict(list(piece.axes.items())[len(piece.axes) - depth :])
    lane, vector = Var("lane"), Var("vector")
    inside = Simplifier(
        {
            **{a: Interval(0, e - 1) for a, e in piece.axes.items()},
            lane: Interval(0, lanes - 1),
            vector: Interval(0, max(prod(axes.values()) // lanes - 1, 0)),
        }
    )
    moved = piece.moved(spread(axes, vector * lanes + lane, inside), {}, inside)
    return axes, lane, tuple(inside.weighted(at, b.strides).terms for b, at in moved.accesses())


def _is_plain(terms: Sequence[tuple[Expr, int]], lane: Var) -> bool:
    """Does the address move by one per lane, or not at all?"""
    return all(k == 1 if atom is lane else lane not in free_vars(atom) for atom, k in terms)


def _chooses_rows(
    piece: ElementBox, outer: Mapping[Var, int], fused: Mapping[Var, int], simplify: Simplifier
) -> bool:
    """Does data choose what is read in each iteration of the last of `outer`, and the fused axes run along it?"""
    if not outer or not fused:
        return False
    row, inner = list(outer)[-1], list(fused)[-1]
    nbytes = prod(fused.values()) * piece.stores[0].buffer.dtype.bytes
    if nbytes < _LEAST_LINES * _LINE_BYTES:
        return False
    return any(_is_row(ld.buffer, ld.indices, row, inner, simplify) for ld in piece.reads())


def _is_row(buffer: Buffer, indices: Indices, row: Var, inner: Var, simplify: Simplifier) -> bool:
    chosen = [i for i in indices if loads(i)]
    along = steps_of(buffer, indices, simplify).get(inner) == 1
    return (
        along and any(row in free_vars(i) for i in chosen) and not any(inner in free_vars(i) for i in chosen)
    )


def piece_of(
    stores: Sequence[Store], axes: Mapping[Var, int], condition: Expr, simplify: Simplifier
) -> ElementBox:
    """With axes in the order of the first output's memory, the outermost first."""
    out = stores[0]
    steps: dict[Var, int] = {}
    for index, stride in zip(out.indices, out.buffer.strides, strict=True):
        for atom, k in simplify.linear(index).terms:
            for v in free_vars(atom):
                steps[v] = max(steps.get(v, 0), abs(k) * stride)
    kept = {a: e for a, e in axes.items() if e > 1}
    order = sorted(kept, key=lambda a: -steps.get(a, 0))
    zero: dict[Var, Expr] = {a: as_index(0) for a, e in axes.items() if e == 1}
    whole = ElementBox(tuple(stores), {a: kept[a] for a in order}, condition)
    return whole.moved(zero, whole.axes, simplify)
