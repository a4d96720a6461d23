"""The elements of one block without a reduction, wherever its nest stands: over its own loops, with the values of those
around it as they are.

Where the block reads or writes at quotients of a loop (an image cut into windows), the loop is split, if lanes lie
better along what it is split into.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilewright.gir.elements import fused_axes, piece_of
from tilewright.gir.open_pieces import by_open_rows
from tilewright.gir.pieces import ElementBox
from tilewright.ir.expr import Binary, BinaryOp, Const, Expr, Var, free_vars, loads, walk
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.support.errors import ScheduleError
from tilewright.tir.stmt import Block, For, LoopKind, Stmt, Store

_MOST_SPLITS = 8


@dataclass(frozen=True, slots=True)
class ElementNest:
    nest: Stmt  # what it was made of
    piece: ElementBox
    around: Mapping[Var, int]  # the loops around it that it depends on

    @property
    def extents(self) -> dict[Var, int]:
        return {**self.around, **self.piece.axes}


def element_nest(path: tuple[Stmt, ...], lanes: int) -> ElementNest:
    """Of the block at the end of a path down from the body of a Func. ScheduleError if it is more than elements."""
    block = path[-1]
    assert isinstance(block, Block)
    store = block.try_store
    if store is None or block.is_reduction or block.init is not None:
        raise ScheduleError(f"{block.name} is not one store of elements")
    if any(ld.buffer is store.buffer for e in (*store.indices, store.value) for ld in loads(e)):
        raise ScheduleError(f"{block.name} reads what it makes")
    own: list[For] = []
    for n in reversed(path[:-1]):
        if not isinstance(n, For) or n.kind is not LoopKind.SERIAL or n.annotations:
            break
        own.insert(0, n)
    axes = {n.var: n.extent for n in own}
    simplify = Simplifier({v: Interval(0, e - 1) for v, e in (_extents(path) | axes).items()})
    values = {it.var: b for it, b in zip(block.iters, block.bindings, strict=True)}

    def at(e: Expr) -> Expr:
        return simplify(substitute(e, values))

    made = Store(store.buffer, tuple(map(at, store.indices)), at(store.value))
    condition = simplify(block.predicate)
    stored = {v for i in made.indices for v in free_vars(i)}
    if any(e > 1 and v not in stored for v, e in axes.items()):
        raise ScheduleError(f"{block.name} stores one element several times")
    if prod(axes.values()) == 0:
        raise ScheduleError(f"{block.name} has no elements")
    whole = piece_of((made,), axes, condition, simplify)
    used = {v for e in (*made.indices, made.value, condition) for v in free_vars(e)} - set(axes)
    around = {v: e for v, e in _extents(path).items() if v in used}
    return ElementNest(own[0] if own else block, _split(whole, lanes, simplify), around)


def _extents(path: tuple[Stmt, ...]) -> dict[Var, int]:
    found: dict[Var, int] = {}
    for n in path[:-1]:
        match n:
            case For():
                found[n.var] = n.extent
            case Block():
                found |= {it.var: it.extent for it in n.iters}
            case _:
                pass
    return found


def _split(piece: ElementBox, lanes: int, simplify: Simplifier) -> ElementBox:
    best, cost = piece, fused_axes(piece, lanes)[1]
    rows = by_open_rows(piece, simplify)
    if rows is not None:
        rows = piece_of(rows.stores, rows.axes, rows.condition, simplify)
        if fused_axes(rows, lanes)[1] < cost:
            return rows
    for _ in range(_MOST_SPLITS):
        found = _quotient(piece)
        if found is None:
            break
        axis, factor = found
        high, low = Var(f"{axis.name}_q"), Var(f"{axis.name}_r")
        extent = piece.axes[axis]
        simplify.learn({high: Interval(0, extent // factor - 1), low: Interval(0, factor - 1)})
        axes: dict[Var, int] = {}
        for a, e in piece.axes.items():
            axes |= {high: extent // factor, low: factor} if a is axis else {a: e}
        moved = piece.moved({axis: high * factor + low}, axes, simplify)
        piece = piece_of(moved.stores, axes, moved.condition, simplify)
        now = fused_axes(piece, lanes)[1]
        if now < cost:
            best, cost = piece, now
    return best


def _quotient(piece: ElementBox) -> tuple[Var, int] | None:
    """An axis, and what some access divides it by."""
    for _, indices in piece.accesses():
        for e in (e for i in indices for e in walk(i)):
            match e:
                case Binary(op=BinaryOp.FLOORDIV | BinaryOp.MOD, a=Var() as v, b=Const(value=k)) if (
                    v in piece.axes and 1 < k < piece.axes[v] and piece.axes[v] % k == 0
                ):
                    return v, int(k)
                case _:
                    pass
    return None
