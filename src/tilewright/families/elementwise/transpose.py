"""Transposes: copies of rows into columns: what is stored side by side is far apart where it is read.

    for w, c: T[w, c] = f(x[c, w])      ──>      for w_0, c_0:
                                                     for c_1: for w_1 in lanes: r[c_1, w_1] = x[…]     # whole vectors
                                                     for w_1: for c_1 in lanes: T[…] = f(r[c_1, w_1])

A square tile of the source goes through registers, where code generation transposes it: both sides see whole vectors.
"""

from dataclasses import dataclass

from tilewright.ir.expr import Load, Scope, Var, free_vars, loads
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block, loops_above
from tilewright.schedule.steps.cache_read import CacheRead
from tilewright.schedule.steps.compute_at import ComputeAt
from tilewright.schedule.steps.loop_kind import Unroll, Vectorize
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.split import Split


@dataclass(frozen=True, slots=True)
class TransposedNest:
    """A block under loops that reads `sources` along the loop `across`, but stores along the loop `inner`."""

    block: str
    across: str
    inner: str
    sources: tuple[str, ...]


def find_transposed(s: Draft, name: str, order: tuple[str, ...], lanes: int) -> TransposedNest | None:
    """The block as such a copy, if what it reads is side by side along another loop in `order` than the last."""
    block = find_block(s.func, name)
    inner = Var(order[-1])
    simplify = Simplifier({n.var: Interval(0, n.extent - 1) for n in loops_above(s.func, block)})
    bound = {it.var: b for it, b in zip(block.iters, block.bindings, strict=True)}
    value = simplify(substitute(block.store.value, bound))
    target = Load(block.store.buffer, tuple(substitute(i, bound) for i in block.store.indices))
    stored = _steps(target, simplify)
    found = {
        ld: steps for ld in set(loads(value)) if (steps := _steps(ld, simplify)).get(inner, 0) not in (0, 1)
    }
    across = {v.name for steps in found.values() for v, k in steps.items() if k == 1}
    if stored.get(inner) != 1 or len(across) != 1 or any(1 not in steps.values() for steps in found.values()):
        return None
    (loop,) = across
    sources = [ld.buffer.name for ld in found]
    # As the block has it, with the sides of conditions that do not hold here: what is cached covers all of them.
    read = [ld.buffer.name for ld in set(loads(block.store.value))]
    whole = all(s.loop(n).extent >= lanes for n in (loop, inner.name)) if loop in order else False
    if not whole or any(read.count(b) != 1 or b == target.buffer.name for b in sources):
        return None
    if any(
        loads(i) for ld in found for i in ld.indices
    ):  # a tile may be anywhere: no box in registers covers it
        return None
    if any(_is_bent(ld, v, simplify) for ld in found for v in (Var(loop), inner)):
        return None
    return TransposedNest(name, loop, inner.name, tuple(sorted(sources)))


def _is_bent(load: Load, loop: Var, simplify: Simplifier) -> bool:
    """Does a tile along the loop cover no box of the buffer, although its elements are side by side?"""
    atoms = [atom for i in load.indices for atom, _ in simplify.linear(i).terms]
    return any(not isinstance(atom, Var) and loop in free_vars(atom) for atom in atoms)


def _steps(load: Load, simplify: Simplifier) -> dict[Var, int]:
    """How far the address moves with each loop that it is linear in."""
    form = simplify.weighted(load.indices, load.buffer.strides)
    bent = {v for atom, _ in form.terms if not isinstance(atom, Var) for v in free_vars(atom)}
    return {atom: k for atom, k in form.terms if isinstance(atom, Var) and atom not in bent}


def schedule_transposed(s: Draft, t: TransposedNest, order: tuple[str, ...], lanes: int) -> tuple[str, ...]:
    """Cut the loops, whose extents are multiples of `lanes`, into tiles that go through registers; the loops around
    them, from the outermost in.
    """
    # Two tiles in a row use up a cache line of the source before the next is read.
    twice = s.loop(t.across).extent % (2 * lanes) == 0
    *rows, row = s.apply(Split(t.across, (None, 2, lanes) if twice else (None, lanes))).names
    tiles, col = s.apply(Split(t.inner, (None, lanes))).names
    outer = (*(n for n in order if n not in (t.across, t.inner)), rows[0], tiles)
    s.apply(Reorder((*outer, *rows[1:], row, col)))
    for source in t.sources:
        copy = s.apply(CacheRead(t.block, source, Scope.REGISTER)).copy
        at = (*outer, *rows[1:])[-1]
        s.apply(ComputeAt(copy, at))
        above = [n.var.name for n in loops_above(s.func, find_block(s.func, copy))]
        *unrolled, last = [n for n in above[above.index(at) + 1 :] if s.loop(n).extent > 1]
        for n in unrolled:
            s.apply(Unroll(n))
        s.apply(Vectorize(last))
    s.apply(Unroll(row))
    s.apply(Vectorize(col))
    return outer
