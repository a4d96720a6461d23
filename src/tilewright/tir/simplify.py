"""What a Simplifier is told of a program: names of loops and iterators are unique, so one table serves a whole Func."""

from tilewright.ir.expr import Var
from tilewright.ir.simplify import Interval
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
