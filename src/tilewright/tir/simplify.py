"""What a Simplifier knows of a program: names of loops and iterators are unique, so one table serves all of a Func."""

from tilewright.ir.expr import Var
from tilewright.ir.simplify import Interval
from tilewright.tir.declared import declared
from tilewright.tir.stmt import Stmt


def ranges(s: Stmt) -> dict[Var, Interval]:
    """The ranges of every loop variable and block iterator in `s`: shared, not to be changed."""
    return declared(s).ranges
