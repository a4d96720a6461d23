"""Reductions over open dimensions: which of them rely on their iterators being stopped.

A reduction of single values takes a neutral one in beyond the size (`FuncBuilder.reduce`), so it may run as far as it
likes. A contraction does not: its factors stay plain, for register tiles. Steps that would lose `Iter.size` of such a
block refuse, or guard its factors.
"""

from tilewright.ir.expr import Expr, Var, walk
from tilewright.tir.stmt import Block, Iter


def relies_on_size(block: Block) -> bool:
    """Would the block compute something else if it did not stop at the sizes of its iterators?"""
    return any(it.size is not None and not _is_masked(block, it) for it in block.iters)


def mask_of(block: Block) -> tuple[tuple[Var, Expr], ...]:
    """The iterators that something has to stop, with the conditions under which the block does anything."""
    return tuple(
        (it.var, it.var < it.size) for it in block.iters if it.size is not None and not _is_masked(block, it)
    )


def _is_masked(block: Block, it: Iter) -> bool:
    store = block.try_store
    if store is None or it.size is None:
        return False
    condition = it.var < it.size
    return any(e is condition for e in walk(store.value))
