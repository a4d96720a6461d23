"""Buffers that go round: a serial loop computes rows ahead of their use, into as many as are in use at once.

    T[r % 3] = …                        rows before the loop
    for y in range(10):
        T[(y + 2) % 3] = …              the rows that are new in this iteration
        … = T[y % 3] + T[(y + 2) % 3]   the window: the new rows and those before them that are still there

`going_round` makes such a buffer out of one that has all rows. `try_rolled` recognises one: each row is written once,
and stays until it is read last, as if the buffer had them all.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tilewright.ir.expr import Binary, BinaryOp, Buffer, Expr, Indices, Var, as_index, is_const, loads
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.find import contains_block, find_block, find_loop, loops_above
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.analysis.regions import Access, Span, accesses, box, contains, loop_extents
from tilewright.tir.func import Func
from tilewright.tir.rewrite import redirect
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, Stmt, Store, stmt_exprs, walk_stmts


class Rolled(NamedTuple):
    """In iteration y of the loop the rows `step`·y + `new` … + `step` - 1 are computed; those before `new` are there
    when it starts.
    """

    buffer: Buffer
    dim: int
    step: int
    new: int

    @property
    def rows(self) -> int:
        """How many rows, up to the last new one, are in the buffer at once."""
        return self.buffer.shape[self.dim]

    @property
    def first(self) -> int:
        """Where the window of the first iteration starts; perhaps before the first row there is."""
        return self.new + self.step - self.rows

    def reads_ahead_only(self, nest: Stmt) -> bool:
        """Is what `nest` reads of the buffer there when the loop starts?"""
        ahead = Span(as_index(self.first), self.rows - self.step)
        simplify, ranging = Simplifier(ranges(nest)), loop_extents(nest)
        straight = _straight(nest, self.buffer, self.dim)
        spans = [
            box(a, ranging, simplify).spans[self.dim] for a in accesses(straight) if a.buffer is self.buffer
        ]
        return all(s is not None and contains(ahead, s, self.new + 1, simplify) for s in spans)


def going_round(body: Stmt, old: Buffer, new: Buffer, dim: int) -> Stmt:
    """Accesses to `old` become accesses to `new`, with remainders as indices of dimension `dim`."""
    return _moved(body, old, new, dim, lambda index: index % new.shape[dim])


def try_rolled(func: Func, flow: Dataflow, buffer: Buffer, loop: For) -> Rolled | None:
    """How `buffer` goes round in `loop`; None if it is not known to."""
    inside = [w for w in flow.writers(buffer) if contains_block(loop, w)]
    before = [w for w in flow.writers(buffer) if not contains_block(loop, w)]
    if len(inside) != 1 or len(before) > 1 or buffer in func.params:
        return None
    if before and flow.position(before[0]) > flow.position(inside[0]):
        return None
    for dim, size in enumerate(buffer.shape):
        if all(_is_remainder(indices[dim], size) for indices in _indices(func.body, buffer)):
            straight = func.with_body(_straight(func.body, buffer, dim))
            head = find_block(straight, before[0].name) if before else None
            return _try_window(
                straight, buffer, dim, find_loop(straight, loop.var.name), inside[0].name, head
            )
    return None


def _try_window(
    func: Func, buffer: Buffer, dim: int, loop: For, writer: str, head: Block | None
) -> Rolled | None:
    """`func` is the program as if the buffer had all rows."""
    simplify, ranging = Simplifier(ranges(func.body)), loop_extents(loop.body)
    touched = [a for a in accesses(loop.body) if a.buffer is buffer]
    written = {_exact_rows(a, dim, ranging, simplify) for a in touched if a.is_write}
    new = written.pop() if len(written) == 1 else None
    if new is None:
        return None
    start, terms = simplify.linear(new.min)
    if terms != ((loop.var, new.extent),):  # each row once
        return None
    rolled = Rolled(buffer, dim, new.extent, start)
    window = Span(loop.var * rolled.step + rolled.first, rolled.rows)
    for a in touched:
        if not a.is_write and (a.block is None or a.block.name != writer):
            rows = box(a, ranging, simplify).spans[dim]
            if rows is None or not contains(window, rows, start + rolled.step * loop.extent, simplify):
                return None
    return rolled if _is_there(func, rolled, loop, head, simplify) else None


def _is_there(func: Func, rolled: Rolled, loop: For, head: Block | None, simplify: Simplifier) -> bool:
    """Has `head` computed the rows that the first iteration does not?"""
    if rolled.new <= 0:
        return True
    if head is None:
        return False
    around = {n.var for n in loops_above(func, loop)}
    ranging = {n.var: n.extent for n in loops_above(func, head) if n.var not in around}
    for a in accesses(func.body, reads=False):
        if a.buffer is rolled.buffer and a.block is head:
            rows = _exact_rows(a, rolled.dim, ranging, simplify)
            low = None if rows is None else simplify.constant(rows.min)
            if rows is None or low is None or low > max(rolled.first, 0) or low + rows.extent < rolled.new:
                return False
    return True


def _exact_rows(a: Access, dim: int, ranging: Mapping[Var, int], simplify: Simplifier) -> Span | None:
    """The rows that a store fills, as far as they exist."""
    found = box(a, ranging, simplify)
    known = found.exact and all(a.keeps_domain(c, simplify) for c in found.conditions)
    return found.spans[dim] if known else None


# ------------------------------------------------------------------------------------------------------ straightening


def _is_remainder(index: Expr, size: int) -> bool:
    return isinstance(index, Binary) and index.op is BinaryOp.MOD and is_const(index.b, size)


def _straight(body: Stmt, buffer: Buffer, dim: int) -> Stmt:
    """`body` as if the buffer had all rows: for analysis only."""

    def index(i: Expr) -> Expr:
        assert isinstance(i, Binary)
        return i.a

    return _moved(body, buffer, buffer, dim, index)


def _indices(body: Stmt, buffer: Buffer) -> Iterator[Indices]:
    for s in walk_stmts(body):
        if isinstance(s, Store) and s.buffer is buffer:
            yield s.indices
        for e in stmt_exprs(s):
            yield from (n.indices for n in loads(e) if n.buffer is buffer)


def _moved(body: Stmt, old: Buffer, new: Buffer, dim: int, fn: Callable[[Expr], Expr]) -> Stmt:
    """Accesses to `old` become accesses to `new`, with the index of dimension `dim` changed."""

    def place(_: Buffer, indices: Indices) -> Indices:
        return tuple(fn(i) if d == dim else i for d, i in enumerate(indices))

    return redirect(body, {old: new}, place)
