"""without_fma: a fused multiply-add becomes two operations, for targets that have none.

    fma(a, b, c)   ──>   a * b + c

It rounds twice where the fused one rounds once, so results differ in the last bits between instruction sets.
"""

from tilewright.ir.expr import Expr, Fma
from tilewright.ir.rewrite import transform
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_exprs


def without_fma(func: Func) -> Func:
    memo: dict[Expr, Expr] = {}

    def split(n: Expr) -> Expr | None:
        return n.a * n.b + n.c if isinstance(n, Fma) else None

    return func.with_body(map_exprs(func.body, lambda e: transform(e, split, memo)))
