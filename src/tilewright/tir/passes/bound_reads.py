"""bound_reads: what is computed beyond the sizes of open dimensions reads inside of buffers all the same.

    Y[i] = X[size("n", 1, 64) - 1 - i]   ──>   Y[i] = X[max(size("n", 1, 64) - 1 - i, 0)]

An iteration beyond the size in use may run, because tiles are whole; what it stores is unspecified. But what it reads
has to be memory: indices that depend on a size may leave the buffer there, and are brought back. Where the conditions
around a read, or the size that an iterator must stay below, keep the index inside, it stays as it is; so does one that
data chooses, which operators bring into range themselves.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from tilewright.ir.condition import conjuncts
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Expr,
    Load,
    Scope,
    Select,
    loads,
    maximum,
    minimum,
)
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children, map_exprs
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, Stmt, walk_stmts

_Facts: TypeAlias = tuple[tuple[Expr, Expr, int], ...]  # (a, b, d): a + d is at most b


def bound_reads(func: Func) -> Func:
    """All reads of a Func as it was built: loops, blocks, and conditions inside of expressions."""
    simplify = Simplifier(ranges(func.body))

    def bounded(s: Stmt, facts: _Facts) -> Stmt:
        reads = _Reads(simplify)
        return map_exprs(s, lambda e: reads.bounded(e, facts))

    def block(s: Block) -> Block:
        facts = tuple((it.var, it.size, 1) for it in s.iters if it.size is not None)
        init = None if s.init is None else bounded(s.init, facts)
        return replace(s, body=bounded(s.body, facts), init=init)

    made = {s: block(s) for s in walk_stmts(func.body) if isinstance(s, Block)}
    return func.with_body(_with_blocks(func.body, made))


def _with_blocks(s: Stmt, made: Mapping[Block, Block]) -> Stmt:
    return made[s] if isinstance(s, Block) and s in made else map_children(s, lambda c: _with_blocks(c, made))


class _Reads:
    def __init__(self, simplify: Simplifier) -> None:
        self._simplify = simplify
        self._memo: dict[tuple[Expr, _Facts], Expr] = {}

    def bounded(self, e: Expr, facts: _Facts) -> Expr:
        """The expression with its reads inside of their buffers, where these facts hold."""
        key = (e, facts)
        if key not in self._memo:
            self._memo[key] = self._bounded(e, facts)
        return self._memo[key]

    def _bounded(self, e: Expr, facts: _Facts) -> Expr:
        if isinstance(e, Select):
            cond = self.bounded(e.cond, facts)
            a = self.bounded(e.a, (*facts, *_facts(e.cond)))
            b = self.bounded(e.b, (*facts, *_contrary(e.cond)))
            return e if (cond, a, b) == e.children() else e.rebuild((cond, a, b))
        parts = e.children()
        made = tuple([self.bounded(c, facts) for c in parts])
        e = e if made == parts else e.rebuild(made)
        if not isinstance(e, Load) or e.buffer.scope is Scope.REGISTER:
            return e
        indices = tuple([self._inside(i, n, facts) for i, n in zip(e.indices, e.buffer.shape, strict=True)])
        return e if indices == e.indices else Load(e.buffer, indices)

    def _inside(self, index: Expr, extent: int, facts: _Facts) -> Expr:
        if loads(index):
            return index
        low, high = self._bounds(index)
        if low < 0:
            low = max([low, *(self._bounds(index - b + a).lo + d for a, b, d in facts)])
        if high >= extent:
            high = min([high, *(self._bounds(index + b - a).hi - d for a, b, d in facts)])
        index = maximum(index, 0) if low < 0 else index
        return minimum(index, extent - 1) if high >= extent else index

    def _bounds(self, e: Expr) -> Interval:
        found = self._simplify.bounds(e)
        if isinstance(e, Binary) and e.op in (BinaryOp.MOD, BinaryOp.FLOORDIV):
            of, by = self._simplify.bounds(e.a), self._simplify.bounds(e.b)
            if by.lo >= 1 and of.lo >= 0:  # by a number that is known when the program runs
                high = by.hi - 1 if e.op is BinaryOp.MOD else of.hi // by.lo
                return Interval(max(found.lo, 0), min(found.hi, high))
        return found


def _facts(cond: Expr) -> _Facts:
    """What a condition says about numbers."""
    found: list[tuple[Expr, Expr, int]] = []
    for c in conjuncts(cond):
        if isinstance(c, Binary) and c.op in (BinaryOp.LT, BinaryOp.LE) and c.a.dtype.is_int:
            found.append((c.a, c.b, 1 if c.op is BinaryOp.LT else 0))
    return tuple(found)


def _contrary(cond: Expr) -> _Facts:
    """What it says where it does not hold."""
    if len(conjuncts(cond)) != 1:
        return ()
    return tuple((b, a, 1 - d) for a, b, d in _facts(cond))
