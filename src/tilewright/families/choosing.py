"""Iterators that choose among expressions: see `winograd/straight_line.py`."""

from math import prod

from tilewright.ir.expr import Binary, BinaryOp, Const, Select, Var, walk
from tilewright.tir.stmt import Block, Iter

MAX_STATEMENTS = 64  # statements that are written out; bound


def choosing(block: Block) -> tuple[Iter, ...]:
    """The iterators that choose among expressions; none if it is no such block, or too long to be written out."""
    store = block.try_store
    if block.is_reduction or store is None:
        return ()
    compared = {
        e.cond.a
        for e in walk(store.value)
        if isinstance(e, Select) and isinstance(e.cond, Binary) and _is_case(e.cond)
    }
    found = tuple(it for it in block.iters if it.var in compared)
    return found if prod(it.extent for it in found) <= MAX_STATEMENTS else ()


def _is_case(cond: Binary) -> bool:
    return cond.op is BinaryOp.EQ and isinstance(cond.a, Var) and isinstance(cond.b, Const)
