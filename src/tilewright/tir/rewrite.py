"""Rewriting statements, with expressions inside them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeAlias, assert_never

from tilewright.ir.expr import TRUE, Buffer, Cast, Expr, Indices, Load, Var
from tilewright.ir.rewrite import Memo, replace_loads, transform_where
from tilewright.ir.rewrite import substitute as substitute_expr
from tilewright.tir.stmt import Alloc, Block, Emit, For, If, Iter, Repeat, Seq, Stmt, Store, seq
from tilewright.tir.touched import touched

ExprFn: TypeAlias = Callable[[Expr], Expr]
StmtFn: TypeAlias = Callable[[Stmt], Stmt | None]
PlaceFn: TypeAlias = Callable[[Buffer, Indices], Indices]


def map_exprs(s: Stmt, fn: ExprFn) -> Stmt:
    """Apply `fn` to every outermost expression in `s`. Parts that do not change keep their identity."""

    def child(c: Stmt) -> Stmt:
        return _map_parts(c, fn, child)

    return child(s)


def _map_parts(s: Stmt, fn: ExprFn, child: Callable[[Stmt], Stmt]) -> Stmt:
    """Apply `fn` to the expressions directly in `s`, and `child` to the statements."""
    match s:
        case Store():
            indices = tuple([fn(i) for i in s.indices])
            value = fn(s.value)
            if value is s.value and indices == s.indices:  # equality of expressions is identity
                return s
            return Store(s.buffer, indices, value)
        case For():
            body, limit = child(s.body), None if s.limit is None else fn(s.limit)
            if body is s.body and limit is s.limit:
                return s
            return For(s.var, s.extent, body, s.kind, s.annotations, limit)
        case Alloc():
            body = child(s.body)
            return s if body is s.body else Alloc(s.buffer, body)
        case Emit():
            operands = tuple([tuple([_load(fn(e)) for e in places]) for places in s.operands])
            body = child(s.body)
            return s if body is s.body and operands == s.operands else Emit(s.intrinsic, operands, body)
        case Seq():
            stmts = tuple([child(c) for c in s.stmts])
            return s if all(a is b for a, b in zip(stmts, s.stmts, strict=True)) else Seq(stmts)
        case If():
            cond, then = fn(s.cond), child(s.then)
            return s if cond is s.cond and then is s.then else If(cond, then)
        case Repeat():
            cond, body = fn(s.cond), child(s.body)
            return s if cond is s.cond and body is s.body else Repeat(cond, body)
        case Block():
            bindings = tuple([fn(b) for b in s.bindings])
            predicate = s.predicate if s.predicate is TRUE else fn(s.predicate)
            init = None if s.init is None else child(s.init)
            body = child(s.body)
            iters = _map_sizes(s.iters, fn)
            same = init is s.init and body is s.body and predicate is s.predicate and iters is s.iters
            if same and bindings == s.bindings:
                return s
            return Block(s.name, iters, bindings, body, init, predicate, s.annotations)
        case _:
            assert_never(s)


def _map_sizes(iters: tuple[Iter, ...], fn: ExprFn) -> tuple[Iter, ...]:
    if all(it.size is None for it in iters):
        return iters
    return tuple([it if it.size is None else replace(it, size=fn(it.size)) for it in iters])


def _load(e: Expr) -> Load:
    """Where an operand is. Widening what is loaded there is no matter of the place."""
    e = e.a if isinstance(e, Cast) else e
    assert isinstance(e, Load), "an operand of a tensor intrinsic is in memory or in registers"
    return e


def map_children(s: Stmt, fn: Callable[[Stmt], Stmt]) -> Stmt:
    """Rebuild `s` over `fn(child)` for its direct children; `s` itself if none changed."""
    match s:
        case Store():
            return s
        case For():
            body = fn(s.body)
            return s if body is s.body else For(s.var, s.extent, body, s.kind, s.annotations, s.limit)
        case Alloc():
            body = fn(s.body)
            return s if body is s.body else Alloc(s.buffer, body)
        case Emit():
            body = fn(s.body)
            return s if body is s.body else Emit(s.intrinsic, s.operands, body)
        case Seq():
            stmts = tuple([fn(c) for c in s.stmts])
            return s if all(a is b for a, b in zip(stmts, s.stmts, strict=True)) else seq(*stmts)
        case If():
            then = fn(s.then)
            return s if then is s.then else If(s.cond, then)
        case Repeat():
            body = fn(s.body)
            return s if body is s.body else Repeat(s.cond, body)
        case Block():
            init = None if s.init is None else fn(s.init)
            body = fn(s.body)
            if init is s.init and body is s.body:
                return s
            return Block(s.name, s.iters, s.bindings, body, init, s.predicate, s.annotations)
        case _:
            assert_never(s)


def transform_stmt(s: Stmt, fn: StmtFn) -> Stmt:
    """Rebuild `s` from its leaves up; `fn(stmt)` may replace a statement whose children are done (None: keep)."""
    node = map_children(s, lambda c: transform_stmt(c, fn))
    out = fn(node)
    return node if out is None else out


def substitute_stmt(s: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """Replace variables everywhere in `s`. The caller makes sure that `s` does not bind them."""
    memo: Memo = {}
    return map_exprs(s, lambda e: substitute_expr(e, values, memo))


def bound_store(block: Block) -> Store:
    """The block's single store, over what its iterators are bound to."""
    store, values = block.store, dict(zip((it.var for it in block.iters), block.bindings, strict=True))
    memo: Memo = {}
    indices = tuple(substitute_expr(i, values, memo) for i in store.indices)
    return Store(store.buffer, indices, substitute_expr(store.value, values, memo))


def map_loads(s: Stmt, buffers: Collection[Buffer], fn: Callable[[Load], Expr]) -> Stmt:
    """Replace the loads from these buffers."""
    memo: Memo = {}

    def load(n: Load) -> Expr | None:
        return fn(n) if n.buffer in buffers else None

    return _map_touching(s, buffers, lambda e: replace_loads(e, load, memo), lambda n: n)


def redirect(s: Stmt, buffers: Mapping[Buffer, Buffer], place: PlaceFn | None = None) -> Stmt:
    """Access other buffers: at the same indices, or where `place` says."""

    def placed(b: Buffer, indices: Indices) -> Indices:
        return indices if place is None else place(b, indices)

    def load(n: Load) -> Expr | None:
        return Load(buffers[n.buffer], placed(n.buffer, n.indices)) if n.buffer in buffers else None

    def holder(n: Store | Alloc) -> Stmt:
        if n.buffer not in buffers:
            return n
        if isinstance(n, Alloc):
            return Alloc(buffers[n.buffer], n.body)
        return Store(buffers[n.buffer], placed(n.buffer, n.indices), n.value)

    memo: Memo = {}
    return _map_touching(s, buffers, lambda e: replace_loads(e, load, memo), holder)


def rewrite_where(s: Stmt, kinds: int, fn: Callable[[Expr], Expr | None]) -> Stmt:
    """Apply a rule that concerns expressions of these `traits` to every node; None: it stays."""
    memo: Memo = {}
    return _map_where(s, kinds, lambda e: transform_where(e, kinds, fn, memo))


def _map_where(s: Stmt, kinds: int, fn: ExprFn) -> Stmt:
    if not isinstance(s, Store) and not touched(s).kinds & kinds:
        return s
    return _map_parts(s, fn, lambda c: _map_where(c, kinds, fn))


def _map_touching(
    s: Stmt, buffers: Collection[Buffer], fn: ExprFn, holder: Callable[[Store | Alloc], Stmt]
) -> Stmt:
    """As `map_exprs`, and `holder` for what names a buffer; of the parts that touch one of `buffers`."""
    if isinstance(s, Store):
        done = map_exprs(s, fn)
        assert isinstance(done, Store)
        return holder(done)
    if not touched(s).any_of(buffers):
        return s
    match s:
        case Alloc():
            body = _map_touching(s.body, buffers, fn, holder)
            return holder(s if body is s.body else Alloc(s.buffer, body))
        case Seq():
            return map_children(s, lambda c: _map_touching(c, buffers, fn, holder))
        case For() | If() | Repeat() | Emit() | Block():
            return _map_parts(s, fn, lambda c: _map_touching(c, buffers, fn, holder))
