"""place_allocations: a local buffer gets its extent, the smallest loop body that holds all that flows
through it.

    acc = alloc(f32[M, N], "register")                for i in range(M // 6):
    for i in range(M // 6):                  ──>          acc = alloc(f32[M, N], "register")   #
    compact_buffers shrinks it
        ... acc[i * 6 + ii, j] ...                        ... acc[i * 6 + ii, j] ...

A buffer may move into a loop only if every access to it names the loop's variable: then iterations touch
different elements and nothing is carried from one to the next. (An accumulator's indices do not name the
reduction loop, so it stays outside.)
"""

from collections import Counter
from dataclasses import replace

from tilewright.ir.expr import Buffer, Expr, free_vars, loads
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children
from tilewright.tir.stmt import Alloc, For, Stmt, Store, children, stmt_exprs, walk


def place_allocations(func: Func) -> Func:
    """All locals; an unused one disappears."""
    if not func.locals:
        return func
    return replace(func, body=_place(func.body, frozenset(func.locals)), locals=())


def accesses(s: Stmt, buffers: frozenset[Buffer]) -> dict[Buffer, list[tuple[Expr, ...]]]:
    """The indices of every load and store below, by buffer."""
    found: dict[Buffer, list[tuple[Expr, ...]]] = {}
    for n in walk(s):
        if isinstance(n, Store) and n.buffer in buffers:
            found.setdefault(n.buffer, []).append(n.indices)
        for e in stmt_exprs(n):
            for ld in loads(e):
                if ld.buffer in buffers:
                    found.setdefault(ld.buffer, []).append(ld.indices)
    return found


def _place(s: Stmt, buffers: frozenset[Buffer]) -> Stmt:
    """`s` with the buffers allocated in it, each as deep as it may be. All their uses are in `s`."""
    if not buffers:
        return s
    used = [accesses(c, buffers) for c in children(s)]
    count = Counter(b for u in used for b in u)
    own = _uses_here(s, buffers)
    inner: set[Buffer] = set()
    for u in used:
        for b, all_indices in u.items():
            if count[b] == 1 and b not in own and _may_enter(s, all_indices):
                inner.add(b)
    here = [b for b in buffers if b not in inner and (count[b] or b in own)]
    deeper = frozenset(inner)
    remaining = iter(used)
    s = map_children(s, lambda c: _place(c, deeper & frozenset(next(remaining))))
    for b in here:
        s = Alloc(b, s)
    return s


def _uses_here(s: Stmt, buffers: frozenset[Buffer]) -> set[Buffer]:
    own = {ld.buffer for e in stmt_exprs(s) for ld in loads(e)} & buffers
    return own | {s.buffer} if isinstance(s, Store) and s.buffer in buffers else own


def _may_enter(s: Stmt, all_indices: list[tuple[Expr, ...]]) -> bool:
    if not isinstance(s, For):
        return True
    return all(any(s.var in free_vars(i) for i in indices) for indices in all_indices)
