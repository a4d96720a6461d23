"""lower_blocks: blocks become plain statements over loop variables.

for i in range(4):                                for i in range(4):
    with block("C"):                                  if i * 2 < 7:            # predicate
        v = spatial(8, i * 2); where(i * 2 < 7)  ──>      if k == 0:           # init at the first reduction
        step ...                                                   C[i * 2] = 0
                                                          C[i * 2] = C[i * 2] + A[i * 2, k]
"""

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    TRUE,
    Expr,
    equal,
)
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children, substitute_stmt
from tilewright.tir.stmt import Block, If, IterKind, Stmt, seq


def lower_blocks(func: Func) -> Func:
    return func.with_body(_lower(func.body))


def _lower(s: Stmt) -> Stmt:
    if not isinstance(s, Block):
        return map_children(s, _lower)
    values = {it.var: binding for it, binding in zip(s.iters, s.bindings, strict=True)}
    body = substitute_stmt(_lower(s.body), values)
    if s.init is not None:
        body = seq(_guard(_first_step(s), substitute_stmt(_lower(s.init), values)), body)
    return _guard(s.predicate, body)


def _first_step(s: Block) -> Expr:
    reduce = (
        b for it, b in zip(s.iters, s.bindings, strict=True) if it.kind is IterKind.REDUCE and it.extent > 1
    )
    return logical_and(*(equal(b, 0) for b in reduce))


def _guard(cond: Expr, body: Stmt) -> Stmt:
    return body if cond is TRUE else If(cond, body)
