"""split: one loop becomes a nest.

    for i in range(20):            Split("i", (None, 6))      for i_0 in range(4):
        block(vi = i)                    ─────>                   for i_1 in range(6):
                                                                      block(vi = i_0 * 6 + i_1)  where i_0 * 6 +
                                                                      i_1 < 20

Factors go from the outermost loop in; one may be None and is then inferred, rounded up. Where the product exceeds
the extent, blocks below get a predicate. `loop_partition` first gives exact tiles instead.
"""

import math
from dataclasses import dataclass, replace

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    Expr,
    Var,
    as_index,
)
from tilewright.schedule.edit import replace_nest
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_loop
from tilewright.schedule.names import check_fresh
from tilewright.schedule.plain_loop import check_plain
from tilewright.schedule.step import LoopStep
from tilewright.tir.func import Func
from tilewright.tir.rewrite import map_children, substitute_stmt
from tilewright.tir.stmt import Block, For, Stmt, blocks


@dataclass(frozen=True, slots=True)
class Split(LoopStep):
    factors: tuple[int | None, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The new loops, outermost first."""
        return tuple(f"{self.loop}_{n}" for n in range(len(self.factors)))

    def rewrite(self, func: Func) -> Func:
        loop = find_loop(func, self.loop)
        check_plain(func, loop, "split")
        extents = self._extents(func, loop)
        check_fresh(func, self.names)
        outer = {Var(n): e for n, e in zip(self.names, extents, strict=True)}
        index: Expr = as_index(0)
        for var, extent in outer.items():
            index = index * extent + var
        body = substitute_stmt(loop.body, {loop.var: index})
        if math.prod(extents) != loop.extent:
            if not any(blocks(loop.body)):
                raise step_refusal(
                    func,
                    loop,
                    f"is inside of a block, and {math.prod(extents)} iterations are more than its {loop.extent}",
                    hint="choose factors whose product is the number of iterations",
                )
            body = guard(body, index < loop.extent)
        for var, extent in reversed(outer.items()):
            body = For(var, extent, body)
        return replace_nest(func, loop, body)

    def _extents(self, func: Func, loop: For) -> list[int]:
        known = [f for f in self.factors if f is not None]
        if len(self.factors) < 2 or len(known) < len(self.factors) - 1 or any(f <= 0 for f in known):
            raise step_refusal(func, loop, "needs two or more positive factors, at most one of them None")
        extents = [-(-loop.extent // math.prod(known)) if f is None else f for f in self.factors]
        if math.prod(extents) < loop.extent:
            raise step_refusal(
                func,
                loop,
                f"the factors cover {math.prod(extents)} of {loop.extent} iterations",
                hint="leave one factor None to have it inferred",
            )
        return extents


def guard(body: Stmt, cond: Expr) -> Stmt:
    """Add `cond` to the predicate of the outermost blocks below."""
    if isinstance(body, Block):
        return replace(body, predicate=logical_and(body.predicate, cond))
    return map_children(body, lambda c: guard(c, cond))
