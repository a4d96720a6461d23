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
        exprs = (*s.indices, s.value)
        return Touched(_read(exprs), {s.buffer: None}, _kinds(exprs))
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
    reads, writes, kinds = _read(own), dict[Buffer, None](), _kinds(own)
    for part in map(touched, below):
        reads.update(part.reads)
        writes.update(part.writes)
        kinds |= part.kinds
    return Touched(reads, writes, kinds)


def _read(exprs: tuple[Expr, ...]) -> dict[Buffer, None]:
    return dict.fromkeys([ld.buffer for e in exprs for ld in loads(e)])


def _kinds(exprs: tuple[Expr, ...]) -> int:
    found = 0
    for e in exprs:
        found |= traits(e)
    return found
