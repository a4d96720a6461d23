"""unroll_loops: an UNROLLED loop becomes a sequence of its iterations.

for i in unrolled(2):                acc[0] = A[0, k]
    acc[i] = A[i, k]         ──>     acc[1] = A[1, k]
"""

from tilewright.ir.expr import as_index
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children, substitute_stmt
from tilewright.tir.stmt import For, LoopKind, Stmt, seq


def unroll_loops(func: Func) -> Func:
    return func.with_body(_unroll(func.body))


def _unroll(s: Stmt) -> Stmt:
    s = map_children(s, _unroll)
    if isinstance(s, For) and s.kind is LoopKind.UNROLLED:
        return seq(*(substitute_stmt(s.body, {s.var: as_index(n)}) for n in range(s.extent)))
    return s
