"""Simplifying index arithmetic in a whole Func.

Names of loops and iterators are unique, so one table of ranges serves the whole Func.
"""

from dataclasses import replace

from tilewright.ir.expr import Var
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children, map_exprs
from tilewright.tir.stmt import Block, For, Stmt, walk


def ranges(s: Stmt) -> dict[Var, Interval]:
    """The ranges of every loop variable and block iterator in `s`."""
    out: dict[Var, Interval] = {}
    for n in walk(s):
        if isinstance(n, For):
            out[n.var] = Interval(0, n.extent - 1)
        elif isinstance(n, Block):
            for it in n.iters:
                out[it.var] = Interval(0, it.extent - 1)
    return out


def simplify_func(func: Func) -> Func:
    """Every expression simplified under the ranges of all loops and iterators."""
    return func.with_body(map_exprs(func.body, Simplifier(ranges(func.body))))


def simplify_bindings(func: Func) -> Func:
    """Only bindings and predicates: what a step changes. Block bodies are not entered."""
    simplify = Simplifier(ranges(func.body))

    def visit(n: Stmt) -> Stmt:
        if not isinstance(n, Block):
            return map_children(n, visit)
        bindings, predicate = tuple([simplify(b) for b in n.bindings]), simplify(n.predicate)
        if predicate is n.predicate and all(a is b for a, b in zip(bindings, n.bindings, strict=True)):
            return n
        return replace(n, bindings=bindings, predicate=predicate)

    return func.with_body(visit(func.body))
