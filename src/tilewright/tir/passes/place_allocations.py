"""place_allocations: a local buffer gets its extent, the smallest loop body that holds all that flows
through it.

    acc = alloc(f32[M, N], "register")                for i in range(M // 6):
    for i in range(M // 6):                  ──>          acc = alloc(f32[M, N], "register")   #
    compact_buffers shrinks it
        ... acc[i * 6 + ii, j] ...                        ... acc[i * 6 + ii, j] ...

Statements that touch different parts of a buffer, as the parts of a partitioned loop do, get a buffer each.

A buffer may move into a loop only if nothing is carried in it from one iteration to the next: every access
names the loop's variable (an accumulator's indices do not name the reduction loop, so it stays outside), and
iterations either touch different elements or fill what they read (a running sum does neither). Registers must be as
far inside as they may be: there the second is enough.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from tilewright.ir.expr import Buffer, Expr, Scope, free_vars, loads
from tilewright.ir.simplify import Linear, Number, Simplifier
from tilewright.tir.analysis.independence import dependence
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children, redirect
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Alloc, For, Repeat, Seq, Stmt, Store, children, stmt_exprs, walk_stmts
from tilewright.tir.touched import touched

IndicesByBuffer: TypeAlias = dict[Buffer, list[tuple[Expr, ...]]]


class _Span(NamedTuple):
    """One dimension of what a statement touches: base + lo … base + hi; the base is unknown where it is None."""

    base: tuple[tuple[Expr, int], ...] | None
    lo: Number
    hi: Number


def place_allocations(func: Func) -> Func:
    """All locals; an unused one disappears."""
    if not func.locals:
        return func
    simplify = Simplifier(ranges(func.body))
    return replace(func, body=_place(func.body, frozenset(func.locals), simplify), locals=())


def separate_buffers(func: Func, *, keep: frozenset[Buffer] = frozenset()) -> Func:
    """Nests of the body that touch different parts of a local buffer get a buffer each, but for those to `keep`."""
    if not isinstance(func.body, Seq):
        return func
    body, local = _separate(func.body, frozenset(func.locals) - keep, Simplifier(ranges(func.body)))
    return replace(func, body=body, locals=tuple(_in_order(body, local | keep)))


def _in_order(s: Stmt, buffers: frozenset[Buffer]) -> list[Buffer]:
    """By the first statement that touches them: Funcs that are equal but for their names have the same code."""
    first: dict[Buffer, int] = {}
    for at, n in enumerate(_touching(s, buffers)):
        for b in _uses_here(n, buffers):
            first.setdefault(b, at)
    return sorted(buffers, key=lambda b: (first.get(b, -1), b.name))


def _touching(s: Stmt, buffers: frozenset[Buffer]) -> Iterator[Stmt]:
    """The statements below and including `s` with one of the buffers in them, in program order, parents first."""
    stack = [s]
    while stack:
        n = stack.pop()
        if isinstance(n, Store):
            yield n
        elif touched(n).any_of(buffers):
            yield n
            stack.extend(n.stmts[::-1] if isinstance(n, Seq) else reversed(children(n)))


def indices_by_buffer(s: Stmt, buffers: frozenset[Buffer]) -> IndicesByBuffer:
    """The indices of every load and store below, by buffer."""
    found: IndicesByBuffer = {}
    for n in _touching(s, buffers):
        if isinstance(n, Store) and n.buffer in buffers:
            found.setdefault(n.buffer, []).append(n.indices)
        for e in stmt_exprs(n):
            for ld in loads(e):
                if ld.buffer in buffers:
                    found.setdefault(ld.buffer, []).append(ld.indices)
    return found


def _place(
    s: Stmt, buffers: frozenset[Buffer], simplify: Simplifier, below: IndicesByBuffer | None = None
) -> Stmt:
    """`s` with the buffers allocated in it, each as deep as it may be. All their uses are in `s`; `below` are those in
    the body of a loop, and perhaps others, where they are known.
    """
    if not buffers:
        return s
    if isinstance(s, Seq):
        s, buffers = _separate(s, buffers, simplify)
    if below is None:
        used = [indices_by_buffer(c, buffers) for c in children(s)]
    else:
        used = [{b: indices for b, indices in below.items() if b in buffers}]
    count = Counter(b for u in used for b in u)
    own = _uses_here(s, buffers)
    inner: set[Buffer] = set()
    for u in used:
        for b, all_indices in u.items():
            if count[b] == 1 and b not in own and _may_enter(s, b, all_indices, simplify):
                inner.add(b)
    here = [b for b in buffers if b not in inner and (count[b] or b in own)]
    deeper = frozenset(inner)
    remaining = iter(used)

    def placed(c: Stmt) -> Stmt:
        uses = next(remaining)
        has_none = isinstance(c, For) and c.limit is None  # no index of its own: all of them are in its body
        return _place(c, deeper & frozenset(uses), simplify, uses if has_none else None)

    s = map_children(s, placed)
    for b in _in_order(s, frozenset(here)) if len(here) > 1 else here:
        s = Alloc(b, s)
    return s


def _uses_here(s: Stmt, buffers: frozenset[Buffer]) -> set[Buffer]:
    own = {ld.buffer for e in stmt_exprs(s) for ld in loads(e)} & buffers
    return own | {s.buffer} if isinstance(s, Store) and s.buffer in buffers else own


def _may_enter(s: Stmt, b: Buffer, all_indices: list[tuple[Expr, ...]], simplify: Simplifier) -> bool:
    if isinstance(s, Repeat):
        return False  # what it carries from one iteration to the next is not known
    if not isinstance(s, For):
        return True
    named = all(any(s.var in free_vars(i) for i in indices) for indices in all_indices)
    if not named and b.scope is not Scope.REGISTER:
        return False  # memory that does not change with the loop is filled once
    return dependence(Func("nest", (), (b,), s), s, only=b, simplify=simplify) is None


# ------------------------------------------------------------------------------------------ parts of a sequence


def _separate(s: Seq, buffers: frozenset[Buffer], simplify: Simplifier) -> tuple[Seq, frozenset[Buffer]]:
    """A buffer for each group of statements that touch a part of it which the others do not."""
    stmts, result = list(s.stmts), set(buffers)
    used = [indices_by_buffer(c, buffers) for c in stmts]
    for b in _in_order(s, buffers):
        users = {n: found[b] for n, found in enumerate(used) if b in found}
        if len(users) < 2:
            continue
        groups = _groups({n: _box(stmts[n], indices, simplify) for n, indices in users.items()})
        if len(groups) < 2:
            continue
        result.remove(b)
        for number, group in enumerate(groups):
            copy = Buffer(f"{b.name}_{number}", b.shape, b.dtype, b.scope, b.sizes)
            result.add(copy)
            for n in group:
                stmts[n] = redirect(stmts[n], {b: copy})
                used[n] = indices_by_buffer(stmts[n], buffers)
    return Seq(tuple(stmts)), frozenset(result)


def _box(s: Stmt, all_indices: list[tuple[Expr, ...]], simplify: Simplifier) -> list[_Span]:
    """Per dimension the part over outer loops, and bounds of the rest; what no bound is known of has infinite ones."""
    inside = {n.var for n in walk_stmts(s) if isinstance(n, For)}
    spans: list[_Span] = []
    for dim in zip(*all_indices, strict=True):
        forms = [simplify.linear(i) for i in dim]
        bases = {tuple(t for t in f.terms if not free_vars(t[0]) & inside) for f in forms}
        base = bases.pop() if len(bases) == 1 else None
        bounds = [
            simplify.bounds(
                simplify.expr(Linear(f.const, tuple(t for t in f.terms if free_vars(t[0]) & inside)))
            )
            for f in forms
        ]
        spans.append(_Span(base, min(b.lo for b in bounds), max(b.hi for b in bounds)))
    return spans


def _groups(boxes: dict[int, list[_Span]]) -> list[list[int]]:
    """Numbers whose boxes meet, directly or through others."""
    groups: list[list[int]] = []
    for n, box in boxes.items():
        met = [g for g in groups if any(_meet(box, boxes[m]) for m in g)]
        groups = [g for g in groups if g not in met] + [[*(m for g in met for m in g), n]]
    return groups


def _meet(a: list[_Span], b: list[_Span]) -> bool:
    return not any(
        x.base is not None and x.base == y.base and (x.hi < y.lo or y.hi < x.lo)
        for x, y in zip(a, b, strict=True)
    )
