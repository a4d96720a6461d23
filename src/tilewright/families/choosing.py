"""Iterators that choose among expressions: see `winograd/straight_line.py`."""

from math import prod
from weakref import WeakKeyDictionary

from tilewright.ir.expr import Binary, BinaryOp, Const, Expr, Select, Var, walk
from tilewright.tir.stmt import Block, Iter

MAX_STATEMENTS = 64  # statements that are written out; bound

_compared: WeakKeyDictionary[Expr, frozenset[Expr]] = WeakKeyDictionary()  # of values that were asked for


def choosing(block: Block) -> tuple[Iter, ...]:
    """The iterators that choose among expressions; none if it is no such block, or too long to be written out."""
    store = block.try_store
    if block.is_reduction or store is None:
        return ()
    compared = _compared.get(store.value)
    if compared is None:
        compared = _compared[store.value] = _cases(store.value)
    found = tuple(it for it in block.iters if it.var in compared)
    return found if prod(it.extent for it in found) <= MAX_STATEMENTS else ()


def _cases(value: Expr) -> frozenset[Expr]:
    """What is compared with a constant to choose."""
    return frozenset(
        e.cond.a
        for e in walk(value)
        if isinstance(e, Select) and isinstance(e.cond, Binary) and _is_case(e.cond)
    )


def _is_case(cond: Binary) -> bool:
    return cond.op is BinaryOp.EQ and isinstance(cond.a, Var) and isinstance(cond.b, Const)
