"""Changing a Func: statements replaced, inserted, taken out, and put under loops."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    TRUE,
    Expr,
    Var,
    as_index,
)
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.find import loop_names, path_to, ranges_above, top_level
from tilewright.schedule.names import check_fresh
from tilewright.tir.analysis.regions import Span
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import (
    Block,
    For,
    Seq,
    Stmt,
    seq,
)


def insert_nest(func: Func, at: int, nest: Stmt) -> Func:
    """`nest` as the top-level statement number `at`."""
    stmts = top_level(func)
    return func.with_body(seq(*stmts[:at], nest, *stmts[at:]))


def without_block(s: Stmt, block: Block) -> Stmt | None:
    """`s` without `block` and the loops that are empty then; None if nothing is left."""
    if s is block:
        return None
    if isinstance(s, Seq):
        kept = [c for c in (without_block(c, block) for c in s.stmts) if c is not None]
        return seq(*kept) if kept else None
    if isinstance(s, For):
        body = without_block(s.body, block)
        return s if body is s.body else None if body is None else replace(s, body=body)
    return map_children(s, lambda c: without_block(c, block) or Seq(()))


def with_loop_body(s: Stmt, var: Var, fn: Callable[[Stmt], Stmt]) -> Stmt:
    """`s` with the body of the loop over `var` rewritten."""
    if isinstance(s, For) and s.var is var:
        return replace(s, body=fn(s.body))
    return map_children(s, lambda c: with_loop_body(c, var, fn))


def under_new_loops(
    func: Func, rest: Stmt, block: Block, spans: Sequence[Span | None], simplify: Simplifier
) -> Stmt:
    """`block` under loops that run its iterators over `spans` (None: the whole domain), cut to their domains; `rest` is
    the body of `func` without it.
    """
    names = loop_names(block)
    check_fresh(func.with_body(rest), names)
    extents: list[int] = []
    bindings: list[Expr] = []
    for name, it, span in zip(names, block.iters, spans, strict=True):
        start, extent = span if span is not None else Span(as_index(0), it.extent)
        extents.append(extent)
        bindings.append(start + Var(name))
        simplify.learn({Var(name): Interval(0, extent - 1)})
    predicate: Expr = TRUE
    for it, binding in zip(block.iters, bindings, strict=True):
        for inside in (as_index(0) <= binding, binding < it.extent):
            predicate = logical_and(predicate, simplify(inside))
    nest: Stmt = replace(block, bindings=tuple([simplify(b) for b in bindings]), predicate=predicate)
    for name, extent in zip(reversed(names), reversed(extents), strict=True):
        nest = For(Var(name), extent, nest)
    return nest


def replace_stmt(func: Func, old: Stmt, new: Stmt) -> Func:
    """`func` with the statement `old` (found by identity) replaced by `new`."""
    return func.with_body(swap_stmt(func.body, old, new))


def swap_stmt(body: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """`body` with the statement `old` (found by identity) replaced by `new`."""
    return _replace(path_to(body, old), new)


def _replace(path: Sequence[Stmt], new: Stmt) -> Stmt:
    for parent, child in zip(reversed(path[:-1]), reversed(path), strict=False):
        new = map_children(parent, _swap(child, new))
    return new


def _swap(old: Stmt, new: Stmt) -> Callable[[Stmt], Stmt]:
    return lambda c: new if c is old else c


def replace_nest(func: Func, old: Stmt, new: Stmt) -> Func:
    """As `replace_stmt`, with the bindings and predicates in `new` simplified."""
    path = path_to(func.body, old)
    simplify = Simplifier(ranges_above(path[:-1]) | ranges(new))
    return func.with_body(_replace(path, simplify_nest(new, simplify)))


def simplify_nest(s: Stmt, simplify: Simplifier) -> Stmt:
    """Bindings and predicates of the outermost blocks in `s` simplified."""
    if not isinstance(s, Block):
        return map_children(s, lambda c: simplify_nest(c, simplify))
    bindings, predicate = tuple([simplify(b) for b in s.bindings]), simplify(s.predicate)
    if predicate is s.predicate and bindings == s.bindings:  # equality of nodes is identity
        return s
    return Block(s.name, s.iters, bindings, s.body, s.init, predicate, s.annotations)


def wrap(nest: Iterable[For], body: Stmt) -> Stmt:
    """`body` in loops like those of `nest` (outermost first): same variable, extent, kind and annotations."""
    for loop in reversed(list(nest)):
        body = For(loop.var, loop.extent, body, loop.kind, loop.annotations)
    return body
