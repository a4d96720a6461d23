"""simplify: index arithmetic in normal form, trivial loops and conditions gone, conditions as far out as
they can be.

for i in range(8):                      if n < 3:
    for j in range(1):           ──>        for i in range(8):
        if n + j < 3: ...                       ...
"""

from dataclasses import replace

from tilewright.ir.condition import conjuncts, logical_and
from tilewright.ir.expr import (
    FALSE,
    TRUE,
    Buffer,
    Expr,
    Var,
    free_vars,
    loads,
)
from tilewright.ir.simplify import Simplifier
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children, map_exprs
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import STREAM, Alloc, Emit, For, If, LoopKind, Seq, Stmt, Store, seq, walk_stmts

_NOTHING = Seq(())


def simplify_func(func: Func) -> Func:
    # A loop of one iteration has a known variable, so the simplifier has already replaced it when the loop goes.
    body = map_exprs(func.body, Simplifier(ranges(func.body)))
    return func.with_body(_tidy(body))


def _tidy(s: Stmt) -> Stmt:
    s = map_children(s, _tidy)
    match s:
        case Seq():
            left = [c for c in s.stmts if c != _NOTHING]
            return s if len(left) == len(s.stmts) else seq(*left)
        case If():
            if s.cond is TRUE:
                return s.then
            return _NOTHING if s.cond is FALSE or s.then == _NOTHING else s
        case For():
            if s.body == _NOTHING or s.extent == 0:
                return _NOTHING
            # Its annotations are about what is inside, however often it runs.
            if s.extent == 1 and s.kind is not LoopKind.PARALLEL and STREAM not in dict(s.annotations):
                return s.body
            return _hoist(s)
        case Alloc() | Emit():
            return _NOTHING if s.body == _NOTHING else s
        case _:
            return s


def _hoist(loop: For) -> Stmt:
    """Move the part of a condition that does not change in the loop out of it. The parallel loop stays
    outermost.
    """
    if loop.kind is LoopKind.PARALLEL or not isinstance(loop.body, If):
        return loop
    written = {n.buffer for n in walk_stmts(loop.body) if isinstance(n, Store)}
    outside, inside = list[Expr](), list[Expr]()
    for c in conjuncts(loop.body.cond):
        (inside if _changes(c, loop.var, written) else outside).append(c)
    if not outside:
        return loop
    then = If(logical_and(*inside), loop.body.then) if inside else loop.body.then
    return If(logical_and(*outside), _hoist(replace(loop, body=then)))


def _changes(cond: Expr, var: Var, written: set[Buffer]) -> bool:
    return var in free_vars(cond) or any(ld.buffer in written for ld in loads(cond))
