"""compact_buffers: an allocated buffer shrinks to what one iteration of the loops around it touches.

    for i in range(M // 6):                           for i in range(M // 6):
        acc = alloc(f32[M, N], "register")    ──>         acc = alloc(f32[6, N], "register")
        ... acc[i * 6 + ii, j] ...                        ... acc[ii, j] ...

A dimension shrinks if all accesses share their part over outer loops; else it keeps its extent.
"""

import math

from tilewright.ir.expr import Buffer, Expr, Indices, Var, free_vars, loads
from tilewright.ir.simplify import Interval, Linear, Simplifier
from tilewright.tir.func import Func
from tilewright.tir.passes.place_allocations import indices_by_buffer
from tilewright.tir.passes.place_sizes import size_name
from tilewright.tir.rewrite import map_children, redirect
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Alloc, For, Stmt


def compact_buffers(func: Func) -> Func:
    simplify = Simplifier(ranges(func.body))
    return func.with_body(_compact(func.body, frozenset(), simplify))


def _compact(s: Stmt, outer: frozenset[Var], simplify: Simplifier) -> Stmt:
    if isinstance(s, For):
        outer = outer | {s.var}
    s = map_children(s, lambda c: _compact(c, outer, simplify))
    return _shrink(s, outer, simplify) if isinstance(s, Alloc) else s


def _shrink(s: Alloc, outer: frozenset[Var], simplify: Simplifier) -> Stmt:
    old = s.buffer
    every = indices_by_buffer(s.body, frozenset({old})).get(old)
    if every is None:  # nobody uses it
        return s.body
    dims = [_dimension([i[d] for i in every], old.shape[d], outer, simplify) for d in range(len(old.shape))]
    new = Buffer(old.name, tuple(extent for _, extent in dims), old.dtype, old.scope)
    if new is old:
        return s

    def shifted(_: Buffer, indices: Indices) -> Indices:
        return tuple([simplify(i - base) for i, (base, _) in zip(indices, dims, strict=True)])

    return Alloc(new, redirect(s.body, {old: new}, shifted))


def _dimension(
    indices: list[Expr], extent: int, outer: frozenset[Var], simplify: Simplifier
) -> tuple[Expr | int, int]:
    """(base, extent) that covers all the indices; the base depends on outer loops only."""
    bases: set[tuple[tuple[Expr, int], ...]] = set()
    low, high = math.inf, -math.inf
    for index in indices:
        form = simplify.linear(index)
        base, inner = list[tuple[Expr, int]](), list[tuple[Expr, int]]()
        for atom, k in form.terms:
            if any(size_name(ld.buffer) is None for ld in loads(atom)):
                return 0, extent  # what it reads may change in between
            names = free_vars(atom)
            if names <= outer:
                base.append((atom, k))
            else:
                inner.append((atom, k))
                if names & outer:
                    return 0, extent  # mixes outer and inner loops in one atom
        bases.add(tuple(base))
        bound: Interval = simplify.bounds(simplify.expr(Linear(form.const, tuple(inner))))
        low, high = min(low, bound.lo), max(high, bound.hi)
    if len(bases) != 1 or math.isinf(low) or math.isinf(high) or high - low + 1 >= extent:
        return 0, extent
    return simplify.expr(Linear(int(low), bases.pop())), int(high - low + 1)
