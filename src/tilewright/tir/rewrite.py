"""Rewriting statements, with expressions inside them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias, assert_never

from tilewright.ir.expr import TRUE, Buffer, Expr, Load, Var
from tilewright.ir.rewrite import Memo
from tilewright.ir.rewrite import substitute as substitute_expr
from tilewright.ir.rewrite import transform as transform_expr
from tilewright.tir.stmt import Alloc, Block, Emit, For, If, Seq, Stmt, Store, seq

ExprFn: TypeAlias = Callable[[Expr], Expr]
StmtFn: TypeAlias = Callable[[Stmt], Stmt | None]


def map_exprs(s: Stmt, fn: ExprFn) -> Stmt:
    """Apply `fn` to every whole expression in `s`. Parts that do not change keep their identity."""
    match s:
        case Store():
            indices = tuple([fn(i) for i in s.indices])
            value = fn(s.value)
            if value is s.value and all(a is b for a, b in zip(indices, s.indices, strict=True)):
                return s
            return Store(s.buffer, indices, value)
        case For() | Alloc():
            body = map_exprs(s.body, fn)
            return s if body is s.body else replace(s, body=body)
        case Emit():
            operands = tuple([tuple([_load(fn(e)) for e in places]) for places in s.operands])
            body = map_exprs(s.body, fn)
            return s if body is s.body and operands == s.operands else Emit(s.intrinsic, operands, body)
        case Seq():
            stmts = tuple([map_exprs(c, fn) for c in s.stmts])
            return s if all(a is b for a, b in zip(stmts, s.stmts, strict=True)) else Seq(stmts)
        case If():
            cond, then = fn(s.cond), map_exprs(s.then, fn)
            return s if cond is s.cond and then is s.then else If(cond, then)
        case Block():
            bindings = tuple([fn(b) for b in s.bindings])
            predicate = s.predicate if s.predicate is TRUE else fn(s.predicate)
            init = None if s.init is None else map_exprs(s.init, fn)
            body = map_exprs(s.body, fn)
            same = init is s.init and body is s.body and predicate is s.predicate
            if same and all(a is b for a, b in zip(bindings, s.bindings, strict=True)):
                return s
            return replace(s, bindings=bindings, predicate=predicate, init=init, body=body)
        case _:
            assert_never(s)


def _load(e: Expr) -> Load:
    assert isinstance(e, Load), "an operand of a tensor intrinsic is in memory or in registers"
    return e


def map_children(s: Stmt, fn: Callable[[Stmt], Stmt]) -> Stmt:
    """Rebuild `s` over `fn(child)` for its direct children; `s` itself if none changed."""
    match s:
        case Store():
            return s
        case For() | Alloc() | Emit():
            body = fn(s.body)
            return s if body is s.body else replace(s, body=body)
        case Seq():
            stmts = tuple([fn(c) for c in s.stmts])
            return s if all(a is b for a, b in zip(stmts, s.stmts, strict=True)) else seq(*stmts)
        case If():
            then = fn(s.then)
            return s if then is s.then else If(s.cond, then)
        case Block():
            init = None if s.init is None else fn(s.init)
            body = fn(s.body)
            return s if init is s.init and body is s.body else replace(s, init=init, body=body)
        case _:
            assert_never(s)


def transform(s: Stmt, fn: StmtFn) -> Stmt:
    """Rebuild `s` from its leaves up; `fn(stmt)` may replace a statement whose children are done (None: keep)."""
    node = map_children(s, lambda c: transform(c, fn))
    out = fn(node)
    return node if out is None else out


def substitute(s: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """Replace variables everywhere in `s`. The caller makes sure that `s` does not bind them."""
    memo: Memo = {}
    return map_exprs(s, lambda e: substitute_expr(e, values, memo))


def bound_store(block: Block) -> Store:
    """The block's single store, over what its iterators are bound to."""
    store, values = block.store, dict(zip((it.var for it in block.iters), block.bindings, strict=True))
    memo: Memo = {}
    indices = tuple(substitute_expr(i, values, memo) for i in store.indices)
    return Store(store.buffer, indices, substitute_expr(store.value, values, memo))


def replace_buffers(s: Stmt, buffers: Mapping[Buffer, Buffer]) -> Stmt:
    """Access other buffers at the same indices."""
    memo: Memo = {}

    def load(n: Expr) -> Expr | None:
        return Load(buffers[n.buffer], n.indices) if isinstance(n, Load) and n.buffer in buffers else None

    def store(n: Stmt) -> Stmt | None:
        if isinstance(n, Store | Alloc) and n.buffer in buffers:
            return replace(n, buffer=buffers[n.buffer])
        return None

    return transform(map_exprs(s, lambda e: transform_expr(e, load, memo)), store)
