"""expand_intrinsics: a tensor intrinsic that the target has no instructions for becomes its body.

    with emit("x86.i16.dot2_8", …):
        for j in range(8):                               acc[0] = acc[0] + …
            for k in range(2):                  ──>      acc[0] = acc[0] + …
                acc[j] = acc[j] + …                      acc[1] = …

The loops are unrolled, as accumulators in registers need it: they are as many as one instruction's elements.
"""

from dataclasses import replace

from tilewright.target.intrinsics import find_intrinsic
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.passes.unroll_loops import unroll_loops
from tilewright.tir.rewrite import transform_stmt
from tilewright.tir.stmt import Emit, For, LoopKind, Stmt, walk_stmts


def expand_intrinsics(func: Func, target: Target) -> Func:
    def expand(s: Stmt) -> Stmt | None:
        return transform_stmt(s.body, _unrolled) if isinstance(s, Emit) and _is_missing(s, target) else None

    if not any(isinstance(s, Emit) and _is_missing(s, target) for s in walk_stmts(func.body)):
        return func
    return unroll_loops(func.with_body(transform_stmt(func.body, expand)))


def _is_missing(s: Emit, target: Target) -> bool:
    intrinsic = find_intrinsic(s.intrinsic)
    return intrinsic is None or not intrinsic.features <= target.features


def _unrolled(s: Stmt) -> Stmt | None:
    return replace(s, kind=LoopKind.UNROLLED) if isinstance(s, For) else None
