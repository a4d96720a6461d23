"""fill_border: a block that copies into the middle of a constant fills the border first, then copies, and asks nothing.

    for h in range(7):                                     for h_fill0 in range(1): … P[h_fill0, w] = 0
        for w in range(8):                                 for h_fill1 in range(1): … P[h_fill1 + 6, w] = 0
            P[h, w] = select(1 <= h < 6                    for h_fill2 in range(7): for w_fill2 in range(1): … = 0
                and 1 <= w < 7,                ─────>      for h_fill3 in range(7): for w_fill3 in range(1): … = 0
                X[h - 1, w - 1], 0)                        for h in range(5):
                                                               for w in range(6):
        FillBorder("P", "h")                                       P[h + 1, w + 1] = X[h, w]

Like `decompose_padding`, but elements inside are stored once: each side of the border is a block, `<block>_fill<n>`, in
copies of the loops from `loop` to the block (with the suffix of the block, also of its iterators). A loop that is an
iterator shrinks to the side. Of an iterator that has loops further out, a predicate chooses the side.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    FALSE,
    Expr,
    as_index,
)
from tilewright.ir.rewrite import substitute as substitute_expr
from tilewright.ir.simplify import Simplifier
from tilewright.schedule.domain import inside_domain, other_conditions
from tilewright.schedule.edit import replace_nest, wrap
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import chain, find_block, find_loop
from tilewright.schedule.names import bound_names, check_fresh
from tilewright.schedule.step import BlockStep
from tilewright.schedule.steps.decompose_padding import (
    IndexRange,
    copied_inside,
    inside_of,
    own_loop,
    padded_store,
)
from tilewright.tir.func import Func
from tilewright.tir.rename import rename
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import Block, For, Iter, LoopKind, Stmt, blocks, seq


@dataclass(frozen=True, slots=True)
class FillBorder(BlockStep):
    loop: str

    def blocks(self, func: Func) -> list[Block]:
        """The sides, in a Func that has taken this step."""
        return [b for b in blocks(func.body) if re.fullmatch(rf"{re.escape(self.block)}_fill\d+", b.name)]

    def rewrite(self, func: Func) -> Func:
        block, loop = find_block(func, self.block), find_loop(func, self.loop)
        below = chain(loop)
        if below[-1].body is not block or any(n.kind is not LoopKind.SERIAL for n in below):
            raise step_refusal(
                func,
                loop,
                f"{self.loop} is not a plain loop around {self.block} alone",
                hint="name a loop from which only loops lead to the block",
            )
        store, choice, fill = padded_store(func, block)
        inside = inside_of(func, block, choice.cond)
        filling = replace(block, body=replace(store, value=fill))
        simplify = Simplifier(ranges(func.body))
        sides: list[Stmt] = []
        for it in block.iters:
            for high in (False, True) if it.var in inside else ():
                side = _side(filling, it, inside[it.var], below, simplify, high=high)
                if side is not None:
                    sides.append(rename(side, f"_fill{len(sides)}"))
        check_fresh(func, [n for s in sides for n in bound_names(s)])
        copied = copied_inside(func, block, replace(store, value=choice.a), below, inside)
        return replace_nest(func, loop, seq(*sides, copied))


def _side(
    block: Block, it: Iter, inside: IndexRange, below: Sequence[For], simplify: Simplifier, *, high: bool
) -> Stmt | None:
    """The loops around a block that fills what is before the inside along one iterator, or after it; None if nothing
    is.
    """
    at = block.iters.index(it)
    bindings, others = list(block.bindings), other_conditions(block, simplify)
    loop, start, end = own_loop(block, it, bindings[at], list(below), others, inside, simplify)
    if loop is not None:
        count = loop.extent - end if high else start
        if count <= 0:
            return None
        loops = [replace(n, extent=count) if n is loop else n for n in below]
        if high:
            bindings[at] = substitute_expr(bindings[at], {loop.var: loop.var + end})
        predicate = logical_and(*others, *inside_domain(block.iters, bindings))
        return wrap(loops, replace(block, bindings=tuple(bindings), predicate=predicate))
    outside: Expr = as_index(inside.high) <= bindings[at] if high else bindings[at] < inside.low
    if simplify(outside) is FALSE or (it.extent <= inside.high if high else inside.low <= 0):
        return None
    return wrap(below, replace(block, predicate=logical_and(block.predicate, simplify(outside))))
