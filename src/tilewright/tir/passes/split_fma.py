"""without_fma: a·b + c in two roundings, for targets that have no fused multiply-add.

    fma(a, b, c)   ──>   a * b + c

The result differs in its last bits from that of a target with FMA; this is the one place where the instruction set
shows in the numbers. Of the functions of `tir.math` none loses its special values by it, and their errors grow to what
`docs/results/vector-math.md` states.
"""

from tilewright.ir.expr import Expr, Fma
from tilewright.ir.rewrite import Memo, transform_values
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_exprs


def without_fma(func: Func) -> Func:
    memo: Memo = {}
    return func.with_body(map_exprs(func.body, lambda e: transform_values(e, split, memo)))


def split(e: Expr) -> Expr | None:
    """One node in two roundings; None if it is no Fma."""
    return e.a * e.b + e.c if isinstance(e, Fma) else None
