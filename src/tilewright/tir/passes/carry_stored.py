"""carry_stored: what an iteration stores and the next one reads stays in a register.

for k in range(7):                          total[0] = y[0]
    y[k + 1] = y[k] + x[k + 1]     ──>      for k in range(7):
                                                total[0] = total[0] + x[k + 1]
                                                y[k + 1] = total[0]

A processor that reads what it has just stored waits several times as long as for the sum itself. The loop's body must
be stores, each perhaps of vectors; the elements that one of them carries are stored by no other.
"""

from dataclasses import replace

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Load, Scope, Select, Var, as_index, loads, walk
from tilewright.ir.rewrite import replace_loads, substitute
from tilewright.ir.simplify import Linear, Simplifier
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Alloc, For, LoopKind, Seq, Stmt, Store, seq, walk_stmts

_MOST = 12  # values that are carried: more do not fit the registers


def carry_stored(func: Func) -> Func:
    if not any(_reads_own(n) for n in walk_stmts(func.body)):
        return func
    return func.with_body(_Carrying(Simplifier(ranges(func.body))).stmt(func.body))


def _reads_own(s: Stmt) -> bool:
    return isinstance(s, Store) and any(ld.buffer is s.buffer for ld in loads(s.value))


class _Carrying:
    def __init__(self, simplify: Simplifier) -> None:
        self._simplify, self._count = simplify, 0

    def stmt(self, s: Stmt) -> Stmt:
        s = map_children(s, self.stmt)
        if not isinstance(s, For) or s.kind is not LoopKind.SERIAL or s.extent < 2:
            return s
        body = s.body.stmts if isinstance(s.body, Seq) else (s.body,)
        if any(_store_of(n) is None for n in body):
            return s
        carried = {n: ld for n in body if (ld := self._carried(n, body, s.var)) is not None}
        if not 0 < len(carried) <= _MOST:
            return s
        first, inside, made = list[Stmt](), list[Stmt](), list[Buffer]()
        for n in body:
            old = carried.get(n)
            if old is None:
                inside.append(n)
                continue
            total, start, new, back = self._in_register(n, old, s.var)
            made.append(total)
            first.append(start)
            inside += [new, back]
        out: Stmt = seq(*first, replace(s, body=seq(*inside)))
        for total in made:
            out = Alloc(total, out)
        return out

    def _in_register(self, n: Stmt, old: Load, var: Var) -> tuple[Buffer, Stmt, Stmt, Stmt]:
        """(the register, its first value, the next one, the store of it) for a statement that reads `old`."""
        store, lanes = _store_of(n), _lanes_of(n)
        assert store is not None
        self._count += 1
        name, width = f"{store.buffer.name}_carried{self._count}", 1 if lanes is None else lanes.extent
        total = Buffer(name, (width,), store.buffer.dtype, Scope.REGISTER)
        place = (as_index(0) if lanes is None else lanes.var,)
        start = Load(old.buffer, tuple(substitute(i, {var: as_index(0)}) for i in old.indices))
        value = replace_loads(store.value, lambda ld: total[place] if ld is old else None, {})
        stores = (
            Store(total, place, start),
            Store(total, place, value),
            Store(store.buffer, store.indices, total[place]),
        )
        first, new, back = (_in_lanes(lanes, x) for x in stores)
        return total, first, new, back

    def _carried(self, n: Stmt, body: tuple[Stmt, ...], var: Var) -> Load | None:
        """What the statement reads that it has stored an iteration before."""
        store = _store_of(n)
        if store is None or not _reads_own(store) or store.buffer.dtype is DType.BOOL:
            return None
        if any(isinstance(e, Select) and loads(e) for e in walk(store.value)):
            return None  # what is read on one side only need not be there before the first iteration
        here, step = self._place(store.buffer, store.indices), 0
        for atom, k in here.terms:
            step = k if atom is var else step
        later = {var: var + 1}
        for ld in loads(store.value):
            if ld.buffer is store.buffer and step:
                place = self._place(ld.buffer, tuple(substitute(i, later) for i in ld.indices))
                if place == here and all(
                    m is n or self._is_apart(n, m, here, step) for m in body if _buffer_of(m) is store.buffer
                ):
                    return ld
        return None

    def _is_apart(self, n: Stmt, other: Stmt, here: Linear, step: int) -> bool:
        """Does `other` leave alone what `n` stores until the next iteration?"""
        store = _store_of(other)
        assert store is not None
        there = self._place(store.buffer, store.indices)
        mine, its = _lanes_of(n), _lanes_of(other)
        if mine is not None and its is not None and mine.var is not its.var:
            return False
        width = max(1 if x is None else x.extent for x in (mine, its))
        apart = there.const - here.const
        return there.terms == here.terms and abs(apart) >= width and abs(apart + step) >= width

    def _place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Linear:
        return self._simplify.weighted(indices, buffer.strides)


def _store_of(s: Stmt) -> Store | None:
    """A store, or one of vectors."""
    inner = s.body if isinstance(s, For) and s.kind is LoopKind.VECTORIZED else s
    return inner if isinstance(inner, Store) and inner.buffer.scope is not Scope.REGISTER else None


def _buffer_of(s: Stmt) -> Buffer | None:
    store = _store_of(s)
    return None if store is None else store.buffer


def _lanes_of(s: Stmt) -> For | None:
    return s if isinstance(s, For) else None


def _in_lanes(lanes: For | None, s: Stmt) -> Stmt:
    return s if lanes is None else replace(lanes, body=s)
