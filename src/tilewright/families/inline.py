"""Inlining: what need not be stored is computed where it is used.

A block that only moves data is inlined wherever it is read. A block that computes is inlined into blocks that are not
reductions, where each element would be computed once per reduction step; and where that costs no more than to store it
and to load it: into blocks of no more elements than it has itself, or few more if it takes few operations. What is read
before a fold and again by what depends on it is left, as a row that is normed: it may be kept near from one sweep to
the next, which is a choice of whoever schedules the sweeps. What widens halves for a contraction is a part of it.

The two operands of a contraction may be moved parts of one buffer, as queries and keys that were computed together are.
Then one of them stays: a step that packs an operand names its buffer. Once it is packed, what it is packed from
can be read in place (`inline_moved`).
"""

from collections.abc import Mapping

from tilewright.cost.work import domain, instructions
from tilewright.families.choosing import choosing
from tilewright.families.laid_out import is_laid_out, keeps_rows
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Cast, Fma, Load, loads
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.schedule.steps.compute_inline import ComputeInline
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Store, blocks, stmt_exprs, walk_stmts


def inline_spatial(s: Draft) -> None:
    """Inline every producer for which it pays, in program order, so that chains collapse into their last
    block.
    """
    for block in list(blocks(s.func.body)):
        store = block.try_store
        if block.is_reduction or store is None or store.buffer not in s.func.locals:
            continue
        if choosing(block):  # all its expressions, where one is needed
            continue
        users = consumers(s.func, store.buffer)
        now = find_block(s.func, block.name)  # what it read may have been inlined
        if any(_is_factor_of_same(now, u) or is_laid_out(now, u) or keeps_rows(now, u) for u in users):
            continue
        is_moved = is_movement(block) or all(_widens_factor(block, u) for u in users)
        if users and (is_moved or all(_pays(block, u) for u in users)):
            if not is_moved and _is_worth_keeping(now, users, s.func):
                continue
            s.attempt(ComputeInline(block.name))


def _widens_factor(block: Block, user: Block) -> bool:
    """Does the block make f32 of halves for products, which do that in registers?"""
    value, used = block.store.value, user.try_store
    is_widened = isinstance(value, Cast) and isinstance(value.a, Load) and value.a.dtype.is_half
    is_product = user.is_reduction and used is not None and isinstance(used.value, Fma)
    return is_widened and is_product and value.dtype is DType.F32


def inline_moved(s: Draft, block: Block) -> bool:
    """Inline a block that only moves data into those that read it, if none of them is a reduction."""
    store = block.try_store
    if store is None or not is_movement(block) or store.buffer not in s.func.locals:
        return False
    users = consumers(s.func, store.buffer)
    if not users or any(u.is_reduction or is_laid_out(block, u) for u in users):
        return False
    return s.attempt(ComputeInline(block.name))


def _is_factor_of_same(block: Block, user: Block) -> bool:
    """Does the block move one operand of the contraction, and is the other one of the buffer that it moves from?"""
    moved, used = block.try_store, user.try_store
    if moved is None or used is None:
        return False
    source, fma = moved.value, used.value
    if not isinstance(source, Load) or not isinstance(fma, Fma):
        return False
    factors = [f.buffer for f in (fma.a, fma.b) if isinstance(f, Load)]
    return user.is_reduction and moved.buffer in factors and source.buffer in factors


def consumers(func: Func, buffer: Buffer) -> list[Block]:
    """The blocks that read `buffer`, in program order; a reduction reading its own accumulator is none."""
    return _readers(func).get(buffer, [])


def _readers(func: Func) -> dict[Buffer, list[Block]]:
    """The consumers of each buffer."""
    found: dict[Buffer, list[Block]] = {}
    for b in blocks(func.body):
        writes = {n.buffer for n in walk_stmts(b.body) if isinstance(n, Store)}
        reads = dict.fromkeys(ld.buffer for n in walk_stmts(b) for e in stmt_exprs(n) for ld in loads(e))
        for buffer in reads:
            if buffer not in writes:
                found.setdefault(buffer, []).append(b)
    return found


def single_consumer(func: Func, buffer: Buffer) -> Block | None:
    users = consumers(func, buffer)
    return users[0] if len(users) == 1 else None


def is_movement(block: Block) -> bool:
    """Each element stored is one element loaded."""
    return block.try_store is not None and isinstance(block.store.value, Load)


_KEPT = 2  # operations: a store and a load; counted


def _is_worth_keeping(block: Block, users: list[Block], func: Func) -> bool:
    """Is a reader behind a fold of what another makes of it, and does it take more to compute its elements again than
    to keep them?
    """
    value, elements = block.store.value, domain(block)
    again = instructions(value) + sum(ld.buffer.size >= elements for ld in loads(value))
    if again <= _KEPT:
        return False
    readers = _readers(func)
    for first in users:
        behind = _behind_folds(first, readers)
        if any(u is not first and domain(u) == elements and u.name in behind for u in users):
            return True
    return False


def _behind_folds(first: Block, readers: Mapping[Buffer, list[Block]]) -> set[str]:
    """The blocks that depend on a fold of what `first` makes. A contraction is none: it has others beside."""
    behind, seen = set[str](), set[tuple[str, bool]]()
    stack = [(first, False)]
    while stack:
        b, is_folded = stack.pop()
        if is_folded:
            behind.add(b.name)
        store = b.try_store
        if store is None or (b.name, is_folded) in seen or (b.is_reduction and isinstance(store.value, Fma)):
            continue
        seen.add((b.name, is_folded))
        stack += [(u, is_folded or b.is_reduction) for u in readers.get(store.buffer, [])]
    return behind


def _pays(producer: Block, user: Block) -> bool:
    if user.is_reduction:
        return False
    # Once for each element of the user, against once and a store, and then a load for each: the inverse root of a
    # channel is not computed for each of its pixels, but a negated half may be where both halves are put together.
    value = producer.store.value
    once = instructions(value) + len(loads(value))
    return domain(user) * once <= domain(producer) * (once + 1) + domain(user)
