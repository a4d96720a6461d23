"""Copies of statements under other names."""

from collections.abc import Mapping

from tilewright.ir.expr import Expr, Var
from tilewright.tir.rewrite import map_children, substitute_stmt
from tilewright.tir.stmt import Block, For, Iter, Stmt


def rename(s: Stmt, suffix: str, values: Mapping[Var, Expr] | None = None) -> Stmt:
    """A copy of `s` in which every loop, iterator and block that `s` binds has `suffix` appended to its name.

    `values` replace variables that `s` uses but does not bind.
    """
    new: dict[Var, Expr] = dict(values or {})
    renamed = _renamed(s, suffix, new)
    return substitute_stmt(renamed, new)


def _renamed(s: Stmt, suffix: str, new: dict[Var, Expr]) -> Stmt:
    """`s` with new names where they are bound, not yet where they are used; notes the variables in `new`."""

    def fresh(v: Var) -> Var:
        var = new[v] = Var(v.name + suffix)
        return var

    match s:
        case For():
            var = fresh(s.var)
            return For(var, s.extent, _renamed(s.body, suffix, new), s.kind, s.annotations, s.limit)
        case Block():
            iters = tuple([Iter(fresh(it.var), it.extent, it.kind, it.size) for it in s.iters])
            init = None if s.init is None else _renamed(s.init, suffix, new)
            body = _renamed(s.body, suffix, new)
            return Block(s.name + suffix, iters, s.bindings, body, init, s.predicate, s.annotations)
        case _:
            return map_children(s, lambda c: _renamed(c, suffix, new))
