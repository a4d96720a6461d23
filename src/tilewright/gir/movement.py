"""Monotone rewrites: what a flow graph and its plan make of blocks moves no more than the blocks did.

    memory      bytes of memory that nests read, and bytes that they write: each buffer once for each nest that has it,
                but once for all nests of a graph, whose last rows may be a nest of their own
    scratch     bytes that wait near, in buffers of a worker; of a block that reduces or scans, its results so far
    registers   elements that are loaded and stored, wherever they are

compared in this order: less of one pays for any of the next. Blocks move every value through memory, so bringing them
together can only take bytes away; a rewrite that adds some has lost what it was for. Partial results, which a division
of rows adds so that workers find parts, are the one exception: then only what was in memory before is compared.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor, prod
from typing import NamedTuple

from tilewright.gir.from_scan import reads_own
from tilewright.ir.condition import conjuncts
from tilewright.ir.expr import Binary, BinaryOp, Buffer, Expr, Scope, Var, loads
from tilewright.ir.simplify import Interval, Linear, Simplifier
from tilewright.tir.analysis.footprints import Footprints
from tilewright.tir.func import Func
from tilewright.tir.stmt import (
    Block,
    For,
    If,
    Seq,
    Stmt,
    Store,
    blocks,
    children,
    seq,
    stmt_exprs,
    walk_stmts,
)

_COMPARED = (BinaryOp.LT, BinaryOp.LE, BinaryOp.EQ)


class Movement(NamedTuple):
    """Compares as the module says."""

    memory: int
    scratch: int
    registers: int

    def __str__(self) -> str:
        return (
            f"{self.memory} B of memory, {self.scratch} B of scratch, {self.registers} elements in registers"
        )


def movement_of(func: Func, but: frozenset[Buffer] = frozenset(), *, is_one_pass: bool = False) -> Movement:
    """What a Func moves, without the buffers `but`. `is_one_pass`: its nests count as one."""
    found = Footprints(func)
    memory = scratch = 0
    for nest in (func.body,) if is_one_pass else _nests(func):
        waiting: dict[Buffer, int] = {}
        for use, box in found.boxes(nest).items():
            nbytes = prod(box.extents(use.buffer)) * use.buffer.dtype.bytes
            if use.buffer in but:
                continue
            if use.buffer.scope is Scope.GLOBAL:
                memory += nbytes
            else:
                waiting[use.buffer] = max(waiting.get(use.buffer, 0), nbytes)
        scratch += sum(waiting.values()) + sum(map(_so_far, blocks(nest)))
    return Movement(memory, scratch, _elements(func.body))


def added_movement(before: Func, after: Func, *, is_divided: bool = False) -> str | None:
    """How a Func moves more than the one that it was made of, if it does. `is_divided`: rows are folded in parts."""
    new = frozenset(b for b in after.locals if b not in before.locals and b.scope is Scope.GLOBAL)
    old = movement_of(before)
    now = movement_of(after, new if is_divided else frozenset(), is_one_pass=True)
    if now.memory > old.memory or (now > old and not is_divided):
        return f"moves more than the blocks did: {now}; not {old}"
    return None


def added_accesses(before: Func, after: Func) -> str | None:
    """How the nests of a Func that are others than those it was made of move more than these, if they do: bytes of
    memory, or elements that are loaded from it and stored to it. Squares that are transposed wait in registers, which
    is what they are for.
    """
    old, new = (
        [n for n in _nests(f) if all(n is not m for m in _nests(g))]
        for f, g in ((before, after), (after, before))
    )
    was = movement_of(before.with_body(seq(*old))).memory, _elements(seq(*old), _is_memory)
    now = movement_of(after.with_body(seq(*new)), is_one_pass=True).memory, _elements(seq(*new), _is_memory)
    if now[0] > was[0] or now[1] > was[1]:
        return f"moves more than the block did: {_text(now)}; not {_text(was)}"
    return None


def _is_memory(b: Buffer) -> bool:
    return b.scope is Scope.GLOBAL


def _text(moved: tuple[int, int]) -> str:
    return f"{moved[0]} B of memory in {moved[1]} elements"


def _nests(func: Func) -> tuple[Stmt, ...]:
    return func.body.stmts if isinstance(func.body, Seq) else (func.body,)


def _so_far(block: Block) -> int:
    """Bytes of the results of a reduction or scan, which are in memory until it is done."""
    stored = {s.buffer for s in walk_stmts(block.body) if isinstance(s, Store)}
    store = block.try_store
    is_scan = store is not None and reads_own(store)
    return sum(b.bytes for b in stored) if block.is_reduction or is_scan else 0


def _elements(s: Stmt, counts: Callable[[Buffer], bool] = lambda b: True) -> int:
    """Loads and stores, of registers too unless they are not to count."""
    return ceil(_counted(s, counts, {}))


def _counted(s: Stmt, counts: Callable[[Buffer], bool], around: Mapping[Var, int]) -> Fraction:
    """`around`: the variables of loops and blocks that it is inside of, with their extents."""
    own = sum(counts(ld.buffer) for e in stmt_exprs(s) for ld in loads(e))
    own += isinstance(s, Store) and counts(s.buffer)
    match s:
        case For():
            return s.extent * (own + _inside(s, counts, {**around, s.var: s.extent}))
        case Block():
            return own + _inside(s, counts, {**around, **{it.var: it.extent for it in s.iters}})
        case If():
            return own + share_of(s.cond, around) * _inside(s, counts, around)
        case _:
            return own + _inside(s, counts, around)


def _inside(s: Stmt, counts: Callable[[Buffer], bool], around: Mapping[Var, int]) -> Fraction:
    return sum((_counted(c, counts, around) for c in children(s)), Fraction(0))


def share_of(cond: Expr, extents: Mapping[Var, int]) -> Fraction:
    """Of the points of these variables, how many a condition holds for, as far as that can be counted: comparisons of a
    number of which the variables are the digits, such as the iterations of a last part. Others count as if they held.
    """
    out = Fraction(1)
    simplify = Simplifier({v: Interval(0, e - 1) for v, e in extents.items()})
    for c in conjuncts(cond):
        if isinstance(c, Binary) and c.op in _COMPARED and not loads(c):
            out *= _share_of(simplify.linear(c.a - c.b), c.op, extents)
    return out


def _share_of(form: Linear, op: BinaryOp, extents: Mapping[Var, int]) -> Fraction:
    """Of all points, those at which the form compares so with zero."""
    digits = [(abs(k), extents[v]) for v, k in form.terms if isinstance(v, Var) and v in extents]
    signs = {k > 0 for _, k in form.terms}
    if len(digits) != len(form.terms) or len(signs) != 1:
        return Fraction(1)
    digits.sort()
    if any(k * extent != after for (k, extent), (after, _) in pairwise(digits)):
        return Fraction(1)
    # The n-th number is step * n + const, or const - step * n.
    step, total = digits[0][0], prod(extent for _, extent in digits)
    is_growing = signs == {True}
    if op is BinaryOp.EQ:
        n = Fraction(-form.const if is_growing else form.const, step)
        return Fraction(n.denominator == 1 and 0 <= n < total, total)
    limit = form.const - 1 if op is BinaryOp.LE else form.const
    below = ceil(Fraction(-limit, step)) if is_growing else total - 1 - floor(Fraction(limit, step))
    return Fraction(min(max(below, 0), total), total)
