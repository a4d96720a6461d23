"""The buffers that a statement reads and writes, remembered: most of a program does not touch the one in question."""

from collections.abc import Collection
from typing import NamedTuple

from tilewright.ir.expr import Buffer, Expr, loads
from tilewright.tir.stmt import Emit, Stmt, Store, children, stmt_exprs


class Touched(NamedTuple):
    """In program order, each once. Shared by all who ask: not to be changed."""

    reads: dict[Buffer, None]
    writes: dict[Buffer, None]

    def any_of(self, buffers: Collection[Buffer]) -> bool:
        return not (self.reads.keys().isdisjoint(buffers) and self.writes.keys().isdisjoint(buffers))


def touched(s: Stmt) -> Touched:
    """What `s` and all below it touch."""
    if isinstance(s, Store):
        return Touched(_read((*s.indices, s.value)), {s.buffer: None})
    try:
        return s.known_touched
    except AttributeError:
        found = _below(s)
        object.__setattr__(s, "known_touched", found)
        return found


def _below(s: Stmt) -> Touched:
    below = children(s)
    own = (*(ld for place in s.operands for ld in place),) if isinstance(s, Emit) else stmt_exprs(s)
    read = _read(own)
    if len(below) == 1 and not read:
        return touched(below[0])
    found = Touched(read, {})
    for reads, writes in map(touched, below):
        found.reads.update(reads)
        found.writes.update(writes)
    return found


def _read(exprs: tuple[Expr, ...]) -> dict[Buffer, None]:
    return dict.fromkeys([ld.buffer for e in exprs for ld in loads(e)])
