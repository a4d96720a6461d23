"""expand_intrinsics: a tensor intrinsic that the target has no instructions for becomes its body.

    with emit("x86.i16.dot2_8", …):
        for j in range(8):                               acc[0] = acc[0] + …
            for k in range(2):                  ──>      acc[0] = acc[0] + …
                acc[j] = acc[j] + …                      acc[1] = …

The loops are unrolled, as accumulators in registers need it: they are as many as one instruction's elements. Those of
registers for matrices are not: their accumulators are in memory then.
"""

from dataclasses import replace

from tilewright.ir.expr import Buffer, Scope
from tilewright.target.intrinsics import find_intrinsic
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.passes.unroll_loops import unroll_loops
from tilewright.tir.rewrite import redirect, transform_stmt
from tilewright.tir.stmt import Emit, For, LoopKind, Stmt, walk_stmts


def expand_intrinsics(func: Func, target: Target) -> Func:
    def expand(s: Stmt) -> Stmt | None:
        if not isinstance(s, Emit) or not _is_missing(s, target):
            return None
        return s.body if _has_tiles(s) else transform_stmt(s.body, _unrolled)

    missing = [s for s in walk_stmts(func.body) if isinstance(s, Emit) and _is_missing(s, target)]
    if not missing:
        return func
    sums = {p[0].buffer for s in missing if _has_tiles(s) for p in s.operands}
    local = {b: Buffer(b.name, b.shape, b.dtype, Scope.LOCAL) for b in sums if b.scope is Scope.REGISTER}
    body = redirect(func.body, local) if local else func.body
    return unroll_loops(func.with_body(transform_stmt(body, expand)))


def _has_tiles(s: Emit) -> bool:
    intrinsic = find_intrinsic(s.intrinsic)
    return intrinsic is not None and bool(intrinsic.tiles or intrinsic.vectors)


def _is_missing(s: Emit, target: Target) -> bool:
    intrinsic = find_intrinsic(s.intrinsic)
    return intrinsic is None or not intrinsic.features <= target.features


def _unrolled(s: Stmt) -> Stmt | None:
    return replace(s, kind=LoopKind.UNROLLED) if isinstance(s, For) else None
