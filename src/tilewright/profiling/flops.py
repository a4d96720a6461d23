"""How much arithmetic a lowered kernel does."""

from typing import assert_never

from tilewright.ir.expr import Binary, Expr, Fma, Unary, walk
from tilewright.tir.stmt import Alloc, Block, Emit, For, If, Repeat, Seq, Stmt, Store


def count_flops(s: Stmt) -> int:
    """Floating-point operations when every condition holds, and a `while` runs once. A multiply-add counts as two,
    anything else as one; shared parts of an expression are computed, and counted, once.
    """
    match s:
        case For():
            return s.extent * count_flops(s.body)
        case Seq():
            return sum(map(count_flops, s.stmts))
        case Alloc() | Emit() | Repeat():
            return count_flops(s.body)
        case If():
            return count_flops(s.then)
        case Block():
            return count_flops(s.body)
        case Store():
            return sum(map(_operations, walk(s.value)))
        case _:
            assert_never(s)


def _operations(e: Expr) -> int:
    if isinstance(e, Fma):
        return 2
    return int(isinstance(e, Unary | Binary) and e.dtype.is_float)
