"""Names of loops, blocks and buffers in a Func: which there are, and which are free."""

from collections.abc import Iterable, Mapping

from tilewright.ir.expr import (
    Expr,
    Var,
)
from tilewright.support.errors import ScheduleError
from tilewright.tir.declared import declared
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children, substitute_stmt
from tilewright.tir.stmt import (
    Block,
    For,
    Iter,
    Stmt,
)


def bound_names(s: Stmt) -> set[str]:
    """Every name that `s` binds: loops, blocks, iterators."""
    found = declared(s)
    return {*found.blocks, *(v.name for v in found.ranges)}


def check_fresh(func: Func, names: Iterable[str]) -> None:
    """Refuse to make a loop, an iterator, a block or a buffer whose name is taken: equal names are equal variables."""
    taken, buffers = func.names, {b.name for b in (*func.params, *func.locals)}
    clash = min((n for n in names if n in taken or n in buffers), default=None)
    if clash is not None:
        raise ScheduleError(
            f"the new name {clash!r} is taken in {func.name}",
            hint="this step was applied to the same loop, block or buffer before; apply it to what it made",
        )


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
            return For(var, s.extent, _renamed(s.body, suffix, new), s.kind, s.annotations)
        case Block():
            iters = tuple([Iter(fresh(it.var), it.extent, it.kind) for it in s.iters])
            init = None if s.init is None else _renamed(s.init, suffix, new)
            body = _renamed(s.body, suffix, new)
            return Block(s.name + suffix, iters, s.bindings, body, init, s.predicate, s.annotations)
        case _:
            return map_children(s, lambda c: _renamed(c, suffix, new))
