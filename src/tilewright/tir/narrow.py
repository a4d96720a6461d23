"""A Func for less than the whole range of its open dimensions.

    for i in range(128):                                  for i in range(8):
        Y[i] = …    Y: 128, of which size("n", 1, 128)        Y[i] = …    Y: 128, of which size("n", 1, 8)

Loops run as far as the narrower range can reach (`loop_limits` knows which iterations do anything that matters), and
blocks and names are the same. Buffers keep their shape: the Func is another one over the same memory, and may be called
in place of the first where the sizes are within its range. A dimension of which one size is left is a number.
"""

from collections.abc import Mapping
from dataclasses import replace

from tilewright.ir.expr import Buffer, Const, DimSize, Expr, Var, const, walk
from tilewright.ir.rewrite import Memo, transform_where
from tilewright.ir.simplify import Simplifier
from tilewright.ir.traits import SIZES
from tilewright.tir.func import Func
from tilewright.tir.passes.limit_loops import loop_limits
from tilewright.tir.rewrite import map_exprs, redirect, transform_stmt
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, Iter, Stmt


def open_ranges(func: Func) -> dict[str, tuple[int, int]]:
    """The ranges of the open dimensions that its buffers have, in multiples."""
    found: dict[str, tuple[int, int]] = {}
    for b in (*func.params, *func.locals):
        for size in b.sizes:
            for e in () if size is None else walk(size):
                if isinstance(e, DimSize):
                    found[e.name] = (e.least, e.most)
    return found


def narrowed(func: Func, most: Mapping[str, int], *, is_compact: bool = False) -> Func:
    """The Func where these dimensions are at most so large, in multiples. If it `is_compact`, buffers have the shape of
    that: not for code, but what is known of the shapes is what it would be if the model were made for this range.
    """
    simplify = Simplifier(ranges(func.body))
    memo: Memo = {}

    def smaller(e: Expr) -> Expr | None:
        if not isinstance(e, DimSize) or e.name not in most:
            return None
        end = max(e.least, min(e.most, most[e.name]))
        return const(end) if end == e.least else DimSize(e.name, e.least, end)

    def narrow(e: Expr) -> Expr:
        done = transform_where(e, SIZES, smaller, memo)
        return e if done is e else simplify(done)

    extents: dict[Var, int] = {}
    for loop, limit in loop_limits(func):
        end = max(1, int(min(loop.extent, simplify.bounds(narrow(limit)).hi)))
        if end < loop.extent:
            extents[loop.var] = end

    def shorter(s: Stmt) -> Stmt | None:
        if isinstance(s, For) and s.var in extents:
            return replace(s, extent=extents[s.var])
        if isinstance(s, Block):
            iters = tuple(_iter(it, b, extents) for it, b in zip(s.iters, s.bindings, strict=True))
            return replace(s, iters=iters)
        return None

    buffers: dict[Buffer, Buffer] = {}
    for b in (*func.params, *func.locals):
        if b.sizes:
            sizes = tuple(None if n is None else narrow(n) for n in b.sizes)
            buffers[b] = Buffer(
                b.name, _shape(b, sizes, simplify) if is_compact else b.shape, b.dtype, b.scope, sizes
            )
    body = redirect(transform_stmt(map_exprs(func.body, narrow), shorter), buffers)
    renamed = {**{b: b for b in (*func.params, *func.locals)}, **buffers}
    return Func(
        func.name,
        tuple(renamed[b] for b in func.params),
        tuple(renamed[b] for b in func.locals),
        body,
        tuple(renamed[b] for b in func.outputs),
        algorithm=func.algorithm,
    )


def _iter(it: Iter, binding: Expr, extents: Mapping[Var, int]) -> Iter:
    extent = extents.get(binding, it.extent) if isinstance(binding, Var) else it.extent
    is_whole = isinstance(it.size, Const) and it.size.value >= extent
    return replace(it, extent=extent, size=None if is_whole else it.size)


def _shape(b: Buffer, sizes: tuple[Expr | None, ...], simplify: Simplifier) -> tuple[int, ...]:
    ends = [n if e is None else simplify.bounds(e).hi for n, e in zip(b.shape, sizes, strict=True)]
    return tuple(max(1, int(min(n, e))) for n, e in zip(b.shape, ends, strict=True))
