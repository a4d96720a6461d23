"""The buffers that a statement reads and writes, remembered: most of a program does not touch the one in question."""

from collections.abc import Collection
from typing import NamedTuple

from tilewright.ir.expr import Buffer, Expr, loads
from tilewright.ir.traits import traits
from tilewright.tir.stmt import Emit, Stmt, Store, children, stmt_exprs


class Touched(NamedTuple):
    """Buffers in program order, each once. Shared by all who ask: not to be changed."""

    reads: dict[Buffer, None]
    writes: dict[Buffer, None]
    kinds: int = 0  # the `traits` of all expressions

    def any_of(self, buffers: Collection[Buffer]) -> bool:
        return not (self.reads.keys().isdisjoint(buffers) and self.writes.keys().isdisjoint(buffers))


def touched(s: Stmt) -> Touched:
    """What `s` and all below it touch."""
    if isinstance(s, Store):
        reads, kinds = _of((*s.indices, s.value))
        return Touched(reads, {s.buffer: None}, kinds)
    try:
        return s.known_touched
    except AttributeError:
        found = _below(s)
        object.__setattr__(s, "known_touched", found)
        return found


def _below(s: Stmt) -> Touched:
    below = children(s)
    own = (*(ld for place in s.operands for ld in place),) if isinstance(s, Emit) else stmt_exprs(s)
    if len(below) == 1 and not own:
        return touched(below[0])
    (reads, kinds), writes = _of(own), dict[Buffer, None]()
    for c in below:
        if isinstance(c, Store):  # not remembered, so not made
            kinds |= _add((*c.indices, c.value), reads)
            writes[c.buffer] = None
            continue
        part = touched(c)
        reads.update(part.reads)
        writes.update(part.writes)
        kinds |= part.kinds
    return Touched(reads, writes, kinds)


def _of(exprs: tuple[Expr, ...]) -> tuple[dict[Buffer, None], int]:
    """What they read, and their `traits`."""
    reads = dict[Buffer, None]()
    return reads, _add(exprs, reads)


def _add(exprs: tuple[Expr, ...], reads: dict[Buffer, None]) -> int:
    """Add what they read; their `traits`."""
    kinds = 0
    for e in exprs:
        for ld in loads(e):
            reads[ld.buffer] = None
        kinds |= traits(e)
    return kinds
