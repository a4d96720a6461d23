"""What a program lays out for rows or elements that data chooses, and what reads these: neither is inlined.

    rows[p, c] = select(p < 900, x[c, p], 0)            # a row for each place, and one of zeros
    sums[i, c] = rows[at[i], c] * w[i] + …              # along rows
    y[c, i] = sums[i, c]                                # as the consumer wants them

Inlined, the first would be computed anew, and out of order, for each element that is chosen; and the second would
gather elements from far apart in the order of the third. Where few elements are chosen, laying all of them out is not
worth it, so a transpose before a small gather is inlined as any other.
"""

from tilewright.cost.work import domain
from tilewright.ir.expr import Load, Select, Var, free_vars, loads, walk
from tilewright.tir.stmt import Block


def is_laid_out(block: Block, user: Block) -> bool:
    """Does `block` bring elements into an order or a frame in which `user` reads most of them where data says?"""
    made = block.try_store
    if made is None or user.try_store is None:
        return False
    chosen = [
        ld for ld in loads(user.store.value) if ld.buffer is made.buffer and any(loads(i) for i in ld.indices)
    ]
    if not chosen or len(chosen) * domain(user) < domain(block):
        return False
    framed = any(isinstance(e, Select) and free_vars(e.cond) for e in walk(made.value))
    return framed or _is_transposed(block)


def keeps_rows(block: Block, user: Block) -> bool:
    """Does `block` read rows that data chooses, and `user` its result across them?"""
    made = block.try_store
    if made is None or not made.indices or user.try_store is None:
        return False
    along = made.indices[-1]
    if not isinstance(along, Var) or not any(_is_row(ld, along) for ld in loads(made.value)):
        return False
    inner = free_vars(user.store.indices[-1]) if user.store.indices else frozenset[Var]()
    return any(
        not free_vars(ld.indices[-1]) & inner for ld in loads(user.store.value) if ld.buffer is made.buffer
    )


def _is_row(ld: Load, along: Var) -> bool:
    if not ld.indices:
        return False
    *before, last = ld.indices
    return last is along and any(loads(i) for i in before)


def _is_transposed(block: Block) -> bool:
    """Is what it stores side by side read from apart?"""
    along, value = block.store.indices[-1] if block.store.indices else None, block.store.value
    if not isinstance(value, Load) or not value.indices or not isinstance(along, Var):
        return False
    return along not in free_vars(value.indices[-1])
