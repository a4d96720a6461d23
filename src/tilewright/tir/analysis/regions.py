"""Access regions: which part of a buffer a subtree reads or writes.

`accesses` lists the loads and stores below a statement with their indices over loop variables (the bindings of the
blocks in between are substituted). `box` turns one access into a box: per dimension the smallest index, as an
expression of the fixed variables, and a constant extent, while the other variables range over theirs.

A box holds every element that is accessed. It may hold more, and `exact` says when it does not: then each element of
the box is accessed, but for those that the access's leftover `conditions` exclude. Boxes are not cut to the
buffer's shape unless `clip_span` is asked, since a guarded access may well run over the edge.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tilewright.ir.condition import conjuncts
from tilewright.ir.expr import (
    TRUE,
    Binary,
    BinaryOp,
    Buffer,
    Const,
    Expr,
    Indices,
    Load,
    Select,
    Var,
    as_index,
    floordiv,
    free_vars,
)
from tilewright.ir.rewrite import Memo
from tilewright.ir.rewrite import substitute as substitute_expr
from tilewright.ir.simplify import Linear, Simplifier
from tilewright.tir.stmt import Block, If, Iter, Repeat, Stmt, Store, children, loops

LinearTerms: TypeAlias = tuple[tuple[Expr, int], ...]


class Span(NamedTuple):
    """min … min + extent - 1 in one dimension."""

    min: Expr
    extent: int


BufferRegion: TypeAlias = tuple[Span, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One load or store, seen from outside its blocks."""

    buffer: Buffer
    place: Indices  # as it is written, over the iterators
    indices: Indices  # over loop variables
    is_write: bool
    block: Block | None  # the innermost around it
    iters: tuple[tuple[Iter, Expr], ...]  # the iterators of all blocks around it, and their values
    conditions: tuple[Expr, ...]  # it happens only where all of these hold
    guarded: bool  # … and where a Select or If inside the block says so

    def keeps_domain(self, condition: Expr, simplify: Simplifier) -> bool:
        """Does the (simplified) condition only say that an iterator stays in its domain?"""
        return any(
            condition is simplify(value < it.extent) or condition is simplify(as_index(0) <= value)
            for it, value in self.iters
        )


class Box(NamedTuple):
    spans: tuple[Span | None, ...]  # None: no bound is known
    exact: bool
    conditions: tuple[Expr, ...]  # those of the access that the spans do not express


# ----------------------------------------------------------------------------------------------------- accesses


def accesses(s: Stmt, *, reads: bool = True) -> list[Access]:
    """Every load (if `reads`) and store below `s`, in program order; bindings and predicates contain none."""
    out: list[Access] = []
    _collect(s, _Context({}, {}, None, (), (), False), reads, out)
    return out


class _Context(NamedTuple):
    values: Mapping[Var, Expr]  # of the iterators around
    memo: Memo
    block: Block | None
    iters: tuple[tuple[Iter, Expr], ...]
    conditions: tuple[Expr, ...]
    guarded: bool

    def access(self, buffer: Buffer, indices: Indices, is_write: bool, guarded: bool) -> Access:
        seen = tuple([substitute_expr(i, self.values, self.memo) for i in indices])
        return Access(buffer, indices, seen, is_write, self.block, self.iters, self.conditions, guarded)


def _collect(s: Stmt, at: _Context, reads: bool, out: list[Access]) -> None:
    match s:
        case Block():
            inside = dict(at.values)
            for it, b in zip(s.iters, s.bindings, strict=True):
                inside[it.var] = substitute_expr(b, at.values, at.memo)
            iters = (*at.iters, *((it, inside[it.var]) for it in s.iters))
            conditions = (*at.conditions, *conjuncts(substitute_expr(s.predicate, at.values, at.memo)))
            inner = _Context(inside, {}, s, iters, conditions, at.guarded)
            for c in children(s):
                _collect(c, inner, reads, out)
        case Store():
            if reads:
                for e in (*s.indices, s.value):
                    _collect_loads(e, at, out)
            out.append(at.access(s.buffer, s.indices, True, at.guarded))
        case If():
            if reads:
                _collect_loads(s.cond, at, out)
            _collect(s.then, at._replace(guarded=True), reads, out)
        case Repeat():
            if reads:
                _collect_loads(s.cond, at, out)
            _collect(s.body, at._replace(guarded=True), reads, out)
        case _:
            for c in children(s):
                _collect(c, at, reads, out)


def _collect_loads(e: Expr, at: _Context, out: list[Access]) -> None:
    found: dict[Load, bool] = {}  # a load is guarded if every way to it leads through a branch of a Select
    seen: set[tuple[Expr, bool]] = set()
    stack = [(e, at.guarded)]
    while stack:
        node, guarded = item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        if isinstance(node, Load):
            found[node] = found.get(node, True) and guarded
        if isinstance(node, Select):
            stack += [(node.b, True), (node.a, True), (node.cond, guarded)]
        else:
            stack += [(c, guarded) for c in reversed(node.children())]
    out.extend([at.access(load.buffer, load.indices, False, guarded) for load, guarded in found.items()])


# --------------------------------------------------------------------------------------------------------- boxes


def loop_extents(s: Stmt) -> dict[Var, int]:
    """The loops below `s`: the variables that range when `s` runs once."""
    return {n.var: n.extent for n in loops(s)}


def box(access: Access, ranging: Mapping[Var, int], simplify: Simplifier) -> Box:
    """What `access` touches while the variables of `ranging` take all their values and the others are fixed."""
    limits, conditions = _limits(access.conditions, ranging, simplify)
    spans: list[Span | None] = []
    used: set[LinearTerms] = set()
    digits: list[Digit] = []
    exact = not access.guarded
    for index in access.indices:
        form = simplify.linear(index)
        moving = tuple([t for t in form.terms if _depends(t[0], ranging)])
        spans.append(_span(form, moving, ranging, limits, simplify))
        if moving:
            used.add(moving)
            exact = exact and _is_dense(moving, ranging, digits)
    left = tuple([c for terms, c in conditions if terms is None or terms not in used])
    return Box(tuple(spans), exact and _are_independent(digits), left)


def span_of(e: Expr, ranging: Mapping[Var, int], simplify: Simplifier) -> Span | None:
    """The values of one integer expression; None if no bound is known."""
    form = simplify.linear(e)
    moving = tuple([t for t in form.terms if _depends(t[0], ranging)])
    return _span(form, moving, ranging, {}, simplify)


def _depends(e: Expr, ranging: Mapping[Var, int]) -> bool:
    return e in ranging if isinstance(e, Var) else any(v in ranging for v in free_vars(e))


class _Limit(NamedTuple):
    lo: int | None
    hi: int | None


def _limits(
    conditions: tuple[Expr, ...], ranging: Mapping[Var, int], simplify: Simplifier
) -> tuple[dict[LinearTerms, _Limit], list[tuple[LinearTerms | None, Expr]]]:
    """Bounds that conditions like `i_0*4 + i_1 < 10` put on sums of ranging variables; and for each condition that
    may exclude something, the sum that it bounds.
    """
    limits: dict[LinearTerms, _Limit] = {}
    kept: list[tuple[LinearTerms | None, Expr]] = []
    for given in conditions:
        c = simplify(given)
        if c is TRUE:
            continue
        terms: LinearTerms | None = None
        if isinstance(c, Binary) and c.op is BinaryOp.LT:
            upper = isinstance(c.b, Const)
            form, bound = simplify.linear(c.a if upper else c.b), c.b if upper else c.a
            if isinstance(bound, Const) and all(_depends(a, ranging) for a, _ in form.terms):
                terms = form.terms
                old = limits.get(terms, _Limit(None, None))
                value = int(bound.value) - form.const
                if upper:
                    limits[terms] = _Limit(old.lo, value - 1 if old.hi is None else min(old.hi, value - 1))
                else:
                    limits[terms] = _Limit(value + 1 if old.lo is None else max(old.lo, value + 1), old.hi)
        kept.append((terms, c))
    return limits, kept


def _span(
    form: Linear,
    moving: LinearTerms,
    ranging: Mapping[Var, int],
    limits: Mapping[LinearTerms, _Limit],
    simplify: Simplifier,
) -> Span | None:
    if not moving:
        return Span(simplify.expr(form), 1)
    low = Linear(form.const, tuple([t for t in form.terms if t not in moving]))
    start = simplify.expr(low)
    lo, hi = 0, 0
    for atom, k in moving:
        part = _atom_span(atom, ranging, simplify)
        if part is None:
            return None
        base, extent = part
        start = start + base * k
        lo, hi = (lo, hi + k * (extent - 1)) if k > 0 else (lo + k * (extent - 1), hi)
    limit = limits.get(moving)
    if limit is not None and all(isinstance(a, Var) for a, _ in moving):
        lo = lo if limit.lo is None else max(lo, limit.lo)
        hi = hi if limit.hi is None else min(hi, limit.hi)
    return Span(simplify(start + lo), max(hi - lo + 1, 1))


def _atom_span(atom: Expr, ranging: Mapping[Var, int], simplify: Simplifier) -> Span | None:
    """The values of one atom of a normal form."""
    if isinstance(atom, Var):
        return Span(as_index(0), ranging[atom])
    if isinstance(atom, Binary) and atom.op is BinaryOp.FLOORDIV and isinstance(atom.b, Const):
        form, c = simplify.linear(atom.a), int(atom.b.value)
        moving = tuple([t for t in form.terms if _depends(t[0], ranging)])
        inner = _span(form, moving, ranging, {}, simplify)
        if (
            inner is not None and c > 0
        ):  # an aligned start wastes nothing; otherwise one more block may be touched
            start = simplify(floordiv(inner.min, as_index(c)))
            aligned = simplify.constant(inner.min % c)
            extent = (
                -(-(inner.extent - 1) // c) + 1 if aligned is None else (aligned + inner.extent - 1) // c + 1
            )
            return Span(start, extent)
    lo, hi = simplify.bounds(atom)
    if lo == -math.inf or hi == math.inf:
        return None
    return Span(as_index(int(lo)), int(hi) - int(lo) + 1)


class Digit(NamedTuple):
    """(var // lower) % extent."""

    var: Var
    lower: int
    extent: int
    source: int  # the extent of var


def digit_of(atom: Expr, ranging: Mapping[Var, int]) -> Digit | None:
    """The part of one of the variables `ranging` that an expression is, if it is one and divides their extent."""
    lower, extent, node = 1, 0, atom
    if isinstance(node, Binary) and node.op is BinaryOp.MOD and isinstance(node.b, Const):
        extent, node = int(node.b.value), node.a
    if isinstance(node, Binary) and node.op is BinaryOp.FLOORDIV and isinstance(node.b, Const):
        lower, node = int(node.b.value), node.a
        if extent == 0 and isinstance(node, Binary) and node.op is BinaryOp.MOD and isinstance(node.b, Const):
            modulus, node = int(node.b.value), node.a  # (var % modulus) // lower
            if modulus % lower:
                return None
            extent = modulus // lower
    if not isinstance(node, Var) or node not in ranging:
        return None
    source = ranging[node]
    if source % (lower * max(extent, 1)):
        return None
    return Digit(node, lower, extent or source // lower, source)


def _is_dense(moving: LinearTerms, ranging: Mapping[Var, int], digits: list[Digit]) -> bool:
    """Does the sum take every value between its smallest and its largest? Adds the digits it is made of."""
    reach = 1  # the values 0 … reach-1 are taken by the terms so far
    for atom, k in sorted(moving, key=lambda t: abs(t[1])):
        d = digit_of(atom, ranging)
        if d is None or abs(k) > reach:
            return False
        digits.append(d)
        reach += abs(k) * (d.extent - 1)
    return True


def _are_independent(digits: list[Digit]) -> bool:
    """Do the digits take all combinations of their values?"""
    by_var: dict[Var, list[Digit]] = {}
    for d in digits:
        by_var.setdefault(d.var, []).append(d)
    for same in by_var.values():
        same.sort(key=lambda d: d.lower)
        for a, b in itertools.pairwise(same):
            if b.lower % (a.lower * a.extent):
                return False
    return True


# ------------------------------------------------------------------------------------------------------- regions


def clip_span(span: Span | None, size: int, simplify: Simplifier) -> Span:
    """The part of `span` inside 0 … size-1, for accesses that stay inside the buffer."""
    if span is None or span.extent >= size:
        return Span(as_index(0), size)
    if isinstance(span.min, Const):
        lo = max(int(span.min.value), 0)
        return Span(as_index(lo), max(min(int(span.min.value) + span.extent, size) - lo, 1))
    return span


def union(a: Span, b: Span, simplify: Simplifier) -> Span | None:
    """A span that holds both; None if their distance has no bound."""
    lo, hi = simplify.bounds(b.min - a.min)
    if lo == -math.inf or hi == math.inf:
        return None
    start = min(int(lo), 0)
    return Span(simplify(a.min + start), max(a.extent, int(hi) + b.extent) - start)


def exact_union(regions: Iterable[BufferRegion], simplify: Simplifier) -> BufferRegion | None:
    """The regions as one, if together they fill a box."""
    parts: list[BufferRegion] = list(dict.fromkeys(regions))
    while len(parts) > 1:
        for a, b in itertools.combinations(parts, 2):
            joined = _join(a, b, simplify)
            if joined is not None:
                parts = [joined, *(p for p in parts if p is not a and p is not b)]
                break
        else:
            return None
    return parts[0]


def _join(a: BufferRegion, b: BufferRegion, simplify: Simplifier) -> BufferRegion | None:
    """The union of two boxes: one holds the other, or they differ in one dimension where they touch."""
    out: list[Span] = []
    from_a, from_b = 0, 0  # dimensions in which the one reaches beyond the other
    for x, y in zip(a, b, strict=True):
        distance = simplify.constant(y.min - x.min)
        if distance is None or distance > x.extent or -distance > y.extent:
            return None
        lo, hi = min(0, distance), max(x.extent, distance + y.extent)
        from_a += (lo, hi) != (distance, distance + y.extent)
        from_b += (lo, hi) != (0, x.extent)
        out.append(Span(x.min if lo == 0 else y.min, hi - lo))
    one_holds_other = from_a == 0 or from_b == 0
    same_but_one = (
        sum(s.extent != x.extent or s.extent != y.extent for s, x, y in zip(out, a, b, strict=True)) <= 1
    )
    return tuple(out) if one_holds_other or same_but_one else None


def contains(outer: Span, inner: Span, size: int, simplify: Simplifier) -> bool:
    """Is `inner`, as far as it is inside 0 … size-1, provably inside `outer`?"""
    below = simplify.bounds(inner.min - outer.min)
    above = simplify.bounds(outer.min - inner.min)
    starts = below.lo >= 0 or simplify.bounds(outer.min).hi <= 0
    ends = above.lo + outer.extent - inner.extent >= 0 or simplify.bounds(outer.min).lo + outer.extent >= size
    return starts and ends


def covering_region(
    touched: Iterable[Access], buffer: Buffer, ranging: Mapping[Var, int], simplify: Simplifier
) -> BufferRegion | None:
    """One region inside the buffer's shape that holds all accesses to `buffer`; None if there are none."""
    out: list[Span] | None = None
    for access in touched:
        if access.buffer is not buffer:
            continue
        spans = [
            clip_span(s, n, simplify)
            for s, n in zip(box(access, ranging, simplify).spans, buffer.shape, strict=True)
        ]
        if out is None:
            out = spans
        else:
            joined = [union(a, b, simplify) for a, b in zip(out, spans, strict=True)]
            out = [clip_span(s, n, simplify) for s, n in zip(joined, buffer.shape, strict=True)]
    return None if out is None else tuple(out)


def region(
    s: Stmt,
    buffer: Buffer,
    simplify: Simplifier,
    *,
    reads: bool = True,
    writes: bool = True,
    ranging: Mapping[Var, int] | None = None,
) -> BufferRegion | None:
    """The part of `buffer` that one run of `s` touches. `simplify` knows the ranges of all loops; the variables of
    `ranging` (by default the loops below `s`) take all their values, the others are fixed and may occur in `min`.
    """
    touched = [a for a in accesses(s) if (writes if a.is_write else reads)]
    return covering_region(touched, buffer, loop_extents(s) if ranging is None else ranging, simplify)
