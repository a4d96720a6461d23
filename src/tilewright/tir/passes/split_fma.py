"""without_fma: a·b + c in two roundings, for targets that have no fused multiply-add.

    fma(a, b, c)   ──>   a * b + c

The result differs in its last bits from that of a target with FMA; this is the one place where the instruction set
shows in the numbers. Of the functions of `tir.math` none loses its special values by it, and their errors grow to what
`docs/results/vector-math.md` states.
"""

from tilewright.ir.expr import Expr, Fma
from tilewright.ir.traits import FMAS
from tilewright.tir.func import Func
from tilewright.tir.rewrite import rewrite_where


def without_fma(func: Func) -> Func:
    return func.with_body(rewrite_where(func.body, FMAS, split_expr))


def split_expr(e: Expr) -> Expr | None:
    """One node in two roundings; None if it is no Fma."""
    return e.a * e.b + e.c if isinstance(e, Fma) else None
