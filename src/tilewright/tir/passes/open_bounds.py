"""Which iterations of loops over open dimensions do anything that matters: bounds of what statements store.

A store matters only where
- the place is in use: its index is below the size of each open dimension of the buffer;
- what it stores is specified: so is the index of everything that its value is sure to read;
- it changes something: a reduction that takes up `select(k < size, value, neutral)` does so where the condition holds.

And a contraction over an open dimension must not run beyond it (`Iter.size`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.ir.condition import conjuncts
from tilewright.ir.expr import Binary, BinaryOp, Expr, Indices, Load, Select, Var, free_vars, loads
from tilewright.ir.rewrite import substitute
from tilewright.tir.build import identity
from tilewright.tir.stmt import Block, For, Stmt, Store, children

_NEUTRAL = {BinaryOp.ADD: "sum", BinaryOp.MAX: "max", BinaryOp.MIN: "min", BinaryOp.MUL: "prod"}


@dataclass(frozen=True, slots=True, eq=False)
class SizeBound:
    """An iteration matters only where `index` is below `size`; if it `must`, it may not run elsewhere. `read`: because
    what it reads is unspecified elsewhere.
    """

    index: Expr
    size: Expr
    must: bool = False
    read: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class OpenStore:
    """A store with what is around it: loops, outermost first, and the bounds outside of which it does not matter. All
    is over loop variables.
    """

    store: Store
    loops: tuple[For, ...]
    bounds: tuple[SizeBound, ...]
    indices: Indices

    def fills_whole(self, var: Var, bound: SizeBound) -> bool:
        """Would skipping iterations of `var` leave no dimension filled in part? What is copied for vectors is read in
        whole vectors, and what nobody wrote may be slow to compute with: pointers, as floats, are denormal.
        """
        if not bound.read or self.store.buffer.sizes:
            return True
        others = free_vars(bound.index) - {var}
        return not any(var in free_vars(i) and others & free_vars(i) for i in self.indices)


def open_stores(
    s: Stmt,
    loops: tuple[For, ...] = (),
    values: Mapping[Var, Expr] | None = None,
    musts: tuple[SizeBound, ...] = (),
) -> Iterator[OpenStore]:
    """All stores below, in program order. `values`: of the iterators of the blocks around, over loop variables."""
    known: Mapping[Var, Expr] = values or {}
    match s:
        case For():
            yield from open_stores(s.body, (*loops, s), known, musts)
        case Block():
            inside = {**known}
            for it, b in zip(s.iters, s.bindings, strict=True):
                inside[it.var] = substitute(b, known)
            own = [
                SizeBound(inside[it.var], substitute(it.size, inside), must=True)
                for it in s.iters
                if it.size is not None
            ]
            for part in children(s):
                yield from open_stores(part, loops, inside, (*musts, *own))
        case Store():
            # A place that data chooses says nothing about iterations: the data may not be there yet where they begin.
            found = [b for b in (*_of_place(s), *_of_value(s.value), *_of_update(s)) if not loads(b.index)]
            bounds = [
                SizeBound(substitute(b.index, known), substitute(b.size, known), read=b.read) for b in found
            ]
            indices = tuple([substitute(i, known) for i in s.indices])
            yield OpenStore(s, loops, (*bounds, *musts), indices)
        case _:
            for part in children(s):
                yield from open_stores(part, loops, known, musts)


def _of_place(s: Store) -> Iterator[SizeBound]:
    for i, size in zip(s.indices, s.buffer.sizes, strict=False):
        if size is not None:
            yield SizeBound(i, size)


def _of_value(e: Expr) -> Iterator[SizeBound]:
    """Of all that is read whatever conditions say."""
    stack, seen = [e], set[Expr]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Load):
            for i, size in zip(node.indices, node.buffer.sizes, strict=False):
                if size is not None:
                    yield SizeBound(i, size, read=True)
        stack.extend((node.cond,) if isinstance(node, Select) else node.children())


def _of_update(s: Store) -> Iterator[SizeBound]:
    if not isinstance(s.value, Binary) or s.value.op not in _NEUTRAL:
        return
    so_far, value = Load(s.buffer, s.indices), s.value
    taken = value.b if value.a is so_far else value.a if value.b is so_far else None
    if not isinstance(taken, Select) or taken.b is not identity(_NEUTRAL[value.op], taken.dtype):
        return
    for c in conjuncts(taken.cond):
        if isinstance(c, Binary) and c.op is BinaryOp.LT and c.a.dtype is not c.dtype:
            yield SizeBound(c.a, c.b)
