"""The scan that a block is: it combines every element with what it has stored a place before.

    y[i, k] = select(k == 0, x[i, k], y[i, k - 1] + x[i, k])            y[i, k] = cumsum[k](x[i, k])
    y[i, k] = select(k == 0, 0.0, y[i, k - 1] + x[i, k - 1])    ──>     y[i, k] = cumsum[k](x[i, k], exclusive=True)
    y[i, 9 - k] = select(k == 0, x[i, 9 - k],
                         y[i, 10 - k] + x[i, 9 - k])                    y[i, k] = cumsum[k](x[i, k], reverse=True)

What is read at the first place though no side of the condition needs it, such as `y[i, max(k - 1, 0)]`, is what it is
at the others. Iterators of scans go over places of memory, whichever way the block went.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tilewright.gir.flow_graph import COMBINATIONS
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Const,
    Expr,
    Fma,
    Indices,
    Load,
    Select,
    Var,
    as_index,
    binary,
    loads,
)
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import identity
from tilewright.tir.stmt import Block, Store


class ScanBlock(NamedTuple):
    """`combine` is None if there is one element, and nothing is combined."""

    indices: Indices
    value: Expr
    along: Var
    combine: BinaryOp | None
    exclusive: bool
    reverse: bool


def reads_own(store: Store) -> bool:
    """Does a block read what it stores?"""
    return any(ld.buffer is store.buffer for e in (*store.indices, store.value) for ld in loads(e))


def scan_of(block: Block) -> ScanBlock:
    """ScheduleError if it is none."""
    return _Scan(block, {it.var: it.extent for it in block.iters}).found()


class _Scan:
    def __init__(self, block: Block, extents: Mapping[Var, int]) -> None:
        self._name, self._store, self._extents = block.name, block.store, extents

    def found(self) -> ScanBlock:
        store = self._store
        match store.value:
            case Select(cond=Binary(op=BinaryOp.EQ, a=Var() as k, b=Const(value=0)), a=first, b=rest) if (
                k in self._extents and not self._own(first)
            ):
                pass
            case _:
                raise self._none()
        if self._extents[k] == 1:
            simplify = self._within(k, 0, 0)
            return ScanBlock(tuple(map(simplify, store.indices)), simplify(first), k, None, False, False)
        dim, reverse = self._axis(k)
        combine, new = self._combined(k, dim, rest)
        exclusive = not self._is_same_at_start(k, first, new)
        if exclusive:
            if first is not identity(COMBINATIONS[combine], store.buffer.dtype):
                raise self._none()
            new = substitute(new, {k: k + 1})
        last = as_index(self._extents[k] - 1)
        mirrored: dict[Var, Expr] = {k: last - k} if reverse else {}
        # What an exclusive scan has at its last place nobody needs; it must be there all the same.
        simplify = self._within(k, 0, self._extents[k] - 1)
        value = simplify(substitute(new, mirrored))
        indices = tuple(simplify(substitute(i, mirrored)) for i in store.indices)
        if exclusive and not all(self._is_inside(ld, simplify) for ld in loads(value)):
            raise self._none()
        return ScanBlock(indices, value, k, combine, exclusive, reverse)

    def _axis(self, k: Var) -> tuple[int, bool]:
        """The dimension that the scan goes along, and whether from its end."""
        store, extent = self._store, self._extents[k]
        simplify = self._within(k, 0, extent - 1)
        for dim, index in enumerate(store.indices):
            form = simplify.linear(index)
            if form.terms == ((k, 1),) and form.const == 0:
                return dim, False
            if form.terms == ((k, -1),) and form.const == extent - 1:
                return dim, True
        raise self._none()

    def _combined(self, k: Var, dim: int, rest: Expr) -> tuple[BinaryOp, Expr]:
        """How, and what, at all places but the first."""
        # One place more than there is: where there are two, the iterator would become a number.
        store, simplify = self._store, self._within(k, 1, self._extents[k])
        rest = simplify(rest)
        before = tuple(
            simplify(substitute(i, {k: k - 1}) if d == dim else i) for d, i in enumerate(store.indices)
        )
        so_far = Load(store.buffer, before)
        match rest:
            case Fma(a=a, b=b, c=c) if c is so_far:
                op, new = BinaryOp.ADD, binary(BinaryOp.MUL, a, b)
            case Binary(op=op, a=a, b=b) if (a is so_far) != (b is so_far):
                new = b if a is so_far else a
            case _:
                raise self._none()
        if op not in COMBINATIONS or self._own(new):
            raise self._none()
        return op, new

    def _is_same_at_start(self, k: Var, first: Expr, new: Expr) -> bool:
        simplify, at = self._within(k, 0, 0), {k: as_index(0)}
        return simplify(substitute(first, at)) is simplify(substitute(new, at))

    def _own(self, e: Expr) -> bool:
        return any(ld.buffer is self._store.buffer for ld in loads(e))

    def _within(self, k: Var, low: int, high: int) -> Simplifier:
        ranges = {v: Interval(0, e - 1) for v, e in self._extents.items()}
        return Simplifier({**ranges, k: Interval(low, high)})

    def _is_inside(self, ld: Load, simplify: Simplifier) -> bool:
        found = [simplify.bounds(i) for i in ld.indices]
        return all(b.lo >= 0 and b.hi < n for b, n in zip(found, ld.buffer.shape, strict=True))

    def _none(self) -> ScheduleError:
        return ScheduleError(f"{self._name} reads what it makes, and is no scan")
