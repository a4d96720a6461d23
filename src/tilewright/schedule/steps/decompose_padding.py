"""decompose_padding: a block that copies into the middle of a constant fills first, then copies, and asks nothing.

    for h in range(7):                                     for h in range(7):
        for w in range(8):                                     for w_fill in range(8):
            P[h, w] = select(1 <= h < 6                            P[h, w_fill] = 0
                and 1 <= w < 7,                  ─────>        for w in range(6):
                X[h - 1, w - 1], 0)                                P[h, w + 1] = X[h - 1, w]    where 1 <= h < 6

        DecomposePadding("P", "w")

The block `<block>_fill` stands before `loop`, in copies of the loops from there to the block (suffix `_fill`, also of
its iterators). It fills all that the block writes there. The block keeps its name and its iterators, which now run over
the inside only; a loop from `loop` down that is such an iterator shrinks to it. What loops further out, or tiles, may
have outside is left to the predicate.

The value is a Select between anything and a literal, its condition bounds iterators by constants, and from `loop` to
the block there are only loops.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tilewright.ir.condition import conjuncts, logical_and
from tilewright.ir.expr import (
    FALSE,
    Binary,
    BinaryOp,
    Const,
    Expr,
    Select,
    Var,
    free_vars,
    loads,
)
from tilewright.ir.rewrite import substitute as substitute_expr
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.domain import inside_domain, other_conditions
from tilewright.schedule.edit import replace_nest, wrap
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import chain, find_block, find_loop
from tilewright.schedule.names import bound_names, check_fresh
from tilewright.schedule.step import BlockStep
from tilewright.tir.func import Func
from tilewright.tir.rename import rename
from tilewright.tir.rewrite import map_exprs, substitute_stmt
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, Iter, Store, seq


class IndexRange(NamedTuple):
    """low … high - 1."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class DecomposePadding(BlockStep):
    loop: str

    @property
    def name(self) -> str:
        """The new block."""
        return f"{self.block}_fill"

    def rewrite(self, func: Func) -> Func:
        block, loop = find_block(func, self.block), find_loop(func, self.loop)
        below = chain(loop)
        if below[-1].body is not block:
            raise step_refusal(
                func,
                loop,
                f"{self.loop} is not a loop around {self.block} alone",
                hint="name a loop from which only loops lead to the block",
            )
        thread = next((n for n in below if n.kind.is_thread_axis), None)
        if thread is not None:
            raise step_refusal(
                func, thread, f"{thread.var.name} is bound to {thread.kind.value}", hint="bind afterwards"
            )
        store, choice, fill = padded_store(func, block)
        inside = inside_of(func, block, choice.cond)

        filled = rename(wrap(below, replace(block, body=replace(store, value=fill))), "_fill")
        check_fresh(func, bound_names(filled))
        copied = copied_inside(func, block, replace(store, value=choice.a), below, inside)
        return replace_nest(func, loop, seq(filled, copied))


def padded_store(func: Func, block: Block) -> tuple[Store, Select, Const]:
    """What the block stores: the whole, the choice, and the literal."""
    store = block.try_store
    value = store.value if store is not None and not block.is_reduction else None
    if not isinstance(store, Store) or not isinstance(value, Select) or not isinstance(value.b, Const):
        raise step_refusal(
            func,
            block,
            f"{block.name} does not store select(inside, value, constant)",
            hint="is it inlined already?",
        )
    if any(load.buffer is store.buffer for load in loads(value)):
        raise step_refusal(func, block, f"{block.name} reads {store.buffer.name}, which it would fill first")
    return store, value, value.b


def inside_of(func: Func, block: Block, cond: Expr) -> dict[Var, IndexRange]:
    """The iterators that the condition bounds, with their bounds."""
    found = {it.var: IndexRange(0, it.extent) for it in block.iters}
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    for c in conjuncts(simplify(cond)):
        sides = (c.a, c.b) if isinstance(c, Binary) and c.op is BinaryOp.LT else None
        limit = None if sides is None else next((s for s in sides if isinstance(s, Const)), None)
        if sides is None or limit is None:
            raise _not_a_box(func, block)
        form = simplify.linear(sides[0] if sides[1] is limit else sides[1])
        if len(form.terms) != 1 or form.terms[0][1] != 1 or form.terms[0][0] not in found:
            raise _not_a_box(func, block)
        var, bound = form.terms[0][0], int(limit.value) - form.const
        assert isinstance(var, Var)
        low, high = found[var]
        found[var] = (
            IndexRange(low, min(high, bound)) if sides[1] is limit else IndexRange(max(low, bound + 1), high)
        )
    narrow = {it.var: found[it.var] for it in block.iters if found[it.var] != (0, it.extent)}
    if not narrow or any(r.low >= r.high for r in narrow.values()):
        raise step_refusal(
            func, block, f"the condition of {block.name} holds always or never: there is no padding"
        )
    return narrow


def _not_a_box(func: Func, block: Block) -> Exception:
    return step_refusal(
        func,
        block,
        f"the condition of {block.name} does not bound its iterators by constants",
        hint="an inside that is not a box stays a Select",
    )


def _nothing_left(func: Func, block: Block) -> Exception:
    return step_refusal(func, block, f"{block.name} copies nothing here, where its loops are all outside")


def copied_inside(
    func: Func, block: Block, store: Store, below: list[For], inside: Mapping[Var, IndexRange]
) -> For:
    """The loops `below` around a block that runs over the inside."""
    simplify = Simplifier(ranges(func.body))
    others = other_conditions(block, simplify)
    values = {v: v + r.low for v, r in inside.items()}
    iters: list[Iter] = []
    bindings: list[Expr] = []
    shrunk: dict[Var, int] = {}
    for it, binding in zip(block.iters, block.bindings, strict=True):
        if it.var not in inside:
            iters.append(it)
            bindings.append(binding)
            continue
        low, high = inside[it.var]
        iters.append(replace(it, extent=high - low))
        loop, start, end = own_loop(block, it, binding, below, others, inside[it.var], simplify)
        if loop is not None and start >= end:
            raise _nothing_left(func, block)
        if loop is not None:
            shrunk[loop.var] = end - start
            binding = substitute_expr(binding, {loop.var: loop.var + start})
        bindings.append(binding - low)
    stays = inside_domain(iters, bindings)  # of shrunk loops this is simplified away
    if any(simplify(c) is FALSE for c in stays):
        raise _nothing_left(func, block)
    shifted = Simplifier({it.var: Interval(0, it.extent - 1) for it in iters})
    inner = replace(
        block,
        iters=tuple(iters),
        bindings=tuple(bindings),
        body=map_exprs(substitute_stmt(store, values), shifted),
        predicate=logical_and(*others, *stays),
    )
    nest = wrap([replace(n, extent=shrunk.get(n.var, n.extent)) for n in below], inner)
    assert isinstance(nest, For)
    return nest


def own_loop(
    block: Block,
    it: Iter,
    binding: Expr,
    below: list[For],
    others: list[Expr],
    inside: IndexRange,
    simplify: Simplifier,
) -> tuple[For | None, int, int]:
    """The loop that is this iterator up to a constant, and nothing else; and where on it the inside starts and ends."""
    const, terms = simplify.linear(binding)
    loop = next((n for n in below if terms == ((n.var, 1),)), None)
    if loop is None:
        return None, 0, 0
    elsewhere = [b for v, b in zip(block.iters, block.bindings, strict=True) if v is not it]
    if any(loop.var in free_vars(e) for e in (*elsewhere, *others)):
        return None, 0, 0
    return loop, max(inside.low - const, 0), min(inside.high - const, loop.extent)
