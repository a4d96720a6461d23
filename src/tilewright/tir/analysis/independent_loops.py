"""Loops whose iterations provably do not touch what another iteration writes.

Sufficient, not necessary. One dimension of the buffer shows that two accesses of different iterations differ, in
which the indices have the form c·v + outer + inner: v is the loop variable, `outer` is over variables bound outside the
loop and the same for both, and `inner` (with the constants) is over variables bound inside it, so only its bounds are
known. Memory allocated inside the loop belongs to one iteration.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tilewright.ir.expr import Buffer, Expr, Indices, Var, free_vars, loads
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Number, Simplifier
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Alloc, Block, For, Stmt, Store, children, loops, stmt_exprs, walk_stmts

_MAX_PAIRS = 20_000  # of accesses to one buffer; beyond that the answer is no


def independent_loops(body: Stmt) -> frozenset[Var]:
    """The loops of `body` of which all iterations may run at once, statement by statement."""
    simplify = Simplifier(ranges(body))
    return frozenset(loop.var for loop in loops(body) if _is_independent(loop, body, simplify))


class _Index(NamedTuple):
    """here·v + outer + something from lo to hi."""

    here: int
    outer: frozenset[tuple[Expr, int]]
    lo: Number
    hi: Number


def _is_independent(loop: For, body: Stmt, simplify: Simplifier) -> bool:
    private = {s.buffer for s in walk_stmts(loop.body) if isinstance(s, Alloc)}
    inner = {n.var for n in loops(loop.body)}
    stores: dict[Buffer, set[Indices]] = {}
    accesses: dict[Buffer, set[Indices]] = {}
    for buffer, indices, is_store in _accesses(body, {}, False, loop):
        if buffer not in private:
            accesses.setdefault(buffer, set()).add(indices)
            if is_store:
                stores.setdefault(buffer, set()).add(indices)
    for buffer, written in stores.items():
        touched = accesses[buffer]
        if len(written) * len(touched) > _MAX_PAIRS:
            return False
        forms = {a: [_index(i, loop.var, inner, simplify) for i in a] for a in touched}
        for w in written:
            for t in touched:
                if not any(_differ(p, q, loop.extent) for p, q in zip(forms[w], forms[t], strict=True)):
                    return False
    return True


def _accesses(
    s: Stmt, bound: Mapping[Var, Expr], inside: bool, loop: For
) -> Iterator[tuple[Buffer, Indices, bool]]:
    """(buffer, indices over loop variables, is it a store?) of every access in `loop`."""
    here = inside or s is loop
    if here:
        for e in stmt_exprs(s):
            yield from ((n.buffer, tuple([substitute(i, bound) for i in n.indices]), False) for n in loads(e))
        if isinstance(s, Store):
            yield s.buffer, tuple([substitute(i, bound) for i in s.indices]), True
    if isinstance(s, Block):
        values = [substitute(b, bound) for b in s.bindings]
        bound = {**bound, **{it.var: v for it, v in zip(s.iters, values, strict=True)}}
    for c in children(s):
        yield from _accesses(c, bound, here, loop)


def _index(index: Expr, var: Var, inner: set[Var], simplify: Simplifier) -> _Index | None:
    constant, terms = simplify.linear(index)
    here, outer = 0, set[tuple[Expr, int]]()
    lo: Number = constant
    hi: Number = constant
    for atom, k in terms:
        names = free_vars(atom)
        if atom is var:
            here = k
        elif var in names or loads(atom):
            return None
        elif names & inner:
            low, high = simplify.bounds(atom)
            lo, hi = lo + min(low * k, high * k), hi + max(low * k, high * k)
        else:
            outer.add((atom, k))
    return _Index(here, frozenset(outer), lo, hi)


def _differ(p: _Index | None, q: _Index | None, extent: int) -> bool:
    """Is p in one iteration never equal to q in another?"""
    if p is None or q is None or p.outer != q.outer:
        return False
    lo, hi = p.lo - q.hi, p.hi - q.lo  # of the difference, but for the loop variables
    last = extent - 1
    if lo + min(0, p.here * last) - max(0, q.here * last) > 0:
        return True
    if hi + max(0, p.here * last) - min(0, q.here * last) < 0:
        return True
    return p.here == q.here != 0 and max(-lo, hi) < abs(p.here)  # iterations are at least one apart
